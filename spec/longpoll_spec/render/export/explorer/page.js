"use strict";
/* What a reader sees and clicks. Every text is written as text, never as HTML. The law is run by `law.js`. */
const data = JSON.parse(document.getElementById("data").textContent);
const at = (name) => document.getElementById(name);
/* English words -> Chinese ones; names of the law's own, such as those of variables and properties, stay as they are. */
const words = JSON.parse(at("words").textContent);
const language = languageOf(new URLSearchParams(location.search).get("lang") ?? navigator.language);
const name = (number) => data.texts[number];
const text = (number) => say(data.texts[number]);

/* The law, the slip or the names of the changes by hand (or null), the run, and how many of its steps have been taken. */
const now = { law: 0, slip: null, run: [], step: 0, machine: null, states: [], property: "" };
/* A slip may make the space endless; what it breaks shows long before this. */
const STATES_MAX_OF_SLIP = 100_000;
let worker = null;
let playing = null;

function languageOf(wanted) {
  return wanted.toLowerCase().startsWith("zh") ? "zh" : "en";
}

/* Words in the page's language, with what belongs in their places; what the table lacks stays English. */
function say(english, ...values) {
  const found = language === "zh" ? (words[english] ?? english) : english;
  return found.replace(/\{(\d)\}/g, (_, place) => values[Number(place)]);
}

/* Put the template's own words into the page's language, once. */
function translate() {
  document.documentElement.lang = language === "zh" ? "zh-Hans" : "en";
  at("language").value = language;
  const policy = data.laws[0].policy;
  document.title = at("title").textContent = say("Long polling, step by step: {0}", policy);
  if (language === "en") return;
  for (const element of document.querySelectorAll("[aria-label]")) element.ariaLabel = say(element.ariaLabel);
  const walker = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode, english = node.data.trim();
    if (english in words) node.data = node.data.replace(english, () => words[english]);
  }
}

function put(parent, tag, content = "", attributes = {}) {
  const made = document.createElement(tag);
  made.textContent = content;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  parent.append(made);
  return made;
}

const state = () => now.states[now.step];
const law = () => now.machine?.law ?? data.laws[now.law];
const preset = () => law().policy.split("+")[0];

/* Take up a law and a run of it; throws where the run cannot happen. */
function open(number, slip, run, step = run.length, property = "") {
  const machine = new Law.Machine(data, number, slip);
  const states = machine.follow(run);
  Object.assign(now, { law: number, slip, run, step, machine, states, property });
  halt();
  rest();
  at("found").replaceChildren();
  at("progress").textContent = at("notice").textContent = "";
}

function take(number) {
  at("notice").textContent = "";
  now.run = [...now.run.slice(0, now.step), number];
  now.states = [...now.states.slice(0, now.step + 1), now.machine.after(state(), number)];
  now.step += 1;
  now.property = "";
  follow();
  // A step is an entry of the browser's history, so that Back undoes it.
  history.pushState(null, "", `#${address()}`);
  draw();
}

/* The text that may be broken by hand is the last step's, until another is chosen. */
function follow() {
  const last = now.run[now.step - 1], number = data.hand.texts.findIndex((each) => each.instances.includes(last));
  if (now.law === 0 && number >= 0) at("text").value = String(number);
}

function jump(step) {
  at("notice").textContent = "";
  now.step = Math.max(0, Math.min(now.run.length, step));
  follow();
  draw();
}

/* The run as the page's fragment: a token, and behind a `~` each the slip or the changes by hand, by their words, as a
 * token is of the law alone. */
function address() {
  const names = byHand() ? now.slip : now.slip === null ? [] : [slipName(data.slips[now.slip])];
  return [Law.tokenOf(law(), now.run.slice(0, now.step), shown()), ...names.map(encodeURIComponent)].join("~");
}

/* The property that the run shows: the one that it was opened for, at its end; else what its last step broke, the step
 * itself before the state. */
function shown() {
  if (now.property && now.step === now.run.length) return now.property;
  const before = now.step ? brokenAt(now.step - 1) : new Set();
  return [...brokenAt(now.step)].filter((name) => !before.has(name)).at(-1) ?? "";
}

const brokenAt = (step) => brokenBy(now.machine, now.states, now.run, step, now.machine.enabled(now.states[step]));
const byHand = () => Array.isArray(now.slip);
/* Everything that a hand may change in the page's first law. */
const places = Law.places(data);
const changeOf = new Map(places.flatMap((place) => place.changes.map((change) => [change.name, change])));
const samePlace = (one, other) => one.text === other.text && one.part === other.part && one.line === other.line;

const slipName = (slip) => `${slip.action} ${slip.what}`;

/* The name as a reader sees it: what the slip does in words, and of whom and to what by the law's own names. */
function slipShown(slip) {
  const [, who, what] = /^(\(.*?\) )?(.*)$/.exec(slip.what);
  const kind = ["forgets to write {0}", "forgets what its guard says of {0}", "takes the other case for {0}"]
    .find((each) => what.startsWith(each.slice(0, -3)));
  const shown = kind ? say(kind, what.slice(kind.length - 3)) : say(what);
  return `${slip.action} ${who ?? ""}${shown}`;
}

/* Take up the run that the address names; whether there was another one than is shown. */
function read() {
  const fragment = location.hash.slice(1);
  if (!fragment || fragment === address()) return false;
  halt();
  at("notice").textContent = "";
  try {
    const [token, ...broken] = fragment.split("~");
    const named = Law.readToken(data, token);
    open(named.law, brokenOf(broken.map(decoded), named.law), named.run, named.run.length, named.property);
    draw();
    return true;
  } catch (error) {
    at("notice").textContent = say("The address does not name a run: {0}", error.words ? say(error.words, ...error.values) : error.message);
    return false;
  }
}

/* The settings of a law beside its policy's own, such as `take=in_place`. */
const settingsOf = (each) => each.policy.split("+").slice(1);
const lawWith = (settings) => data.laws.findIndex((each) => each.policy === [preset(), ...settings].join("+"));

/* The knob that is otherwise, and of the others those that change some step beside it; and what they change. */
function drawKnobs() {
  const own = settingsOf(law()), knob = at("knob"), another = at("knob2");
  const first = own.find((each) => String(lawWith([each])) === knob.value) ?? own[0];
  const alone = lawWith(first === undefined ? [] : [first]);
  // The page's own policy may have several settings, of which none has a law for itself here.
  knob.value = String(alone < 0 ? now.law : alone);
  another.replaceChildren();
  put(another, "option", say("none"), { value: knob.value });
  data.laws.forEach((each, number) => {
    const two = settingsOf(each);
    if (each.policy.split("+")[0] !== preset() || two.length !== 2 || !two.includes(first)) return;
    put(another, "option", two.find((setting) => setting !== first), { value: String(number) });
  });
  another.value = String(now.law);
  another.disabled = another.options.length === 1;
  at("differs").textContent = own.length ? differs(lawWith([])) : "";
}

/* What the law's steps say otherwise than those of another law, by the steps' names. */
function differs(number) {
  const texts = (each) => new Map(each.actions.map((entry) => [data.entries[entry].label, entry]));
  const here = texts(data.laws[now.law]), there = texts(data.laws[number]);
  const named = (labels) => [...new Set([...labels].map((label) => label.split("(")[0]))].join(", ") || say("none");
  const other = [...here.keys()].filter((label) => there.has(label) && there.get(label) !== here.get(label));
  const come = [...here.keys()].filter((label) => !there.has(label)), gone = [...there.keys()].filter((label) => !here.has(label));
  if (!other.length && !come.length && !gone.length) return say("Under these bounds this changes no step.");
  return say("Changed steps: {0}; new steps: {1}; removed steps: {2}.", named(other), named(come), named(gone));
}

function decoded(name) {
  try {
    return decodeURIComponent(name);
  } catch {
    throw new Error(say("this page does not have this mutant of this specification"));
  }
}

/* What an address has broken: a slip's number, the changes by hand, or null. */
function brokenOf(names, number) {
  if (!names.length) return null;
  const slip = data.slips.findIndex((each) => names.length === 1 && slipName(each) === names[0]);
  if (number !== 0 || (slip < 0 && !names.every((each) => changeOf.has(each)))) {
    throw new Error(say("this page does not have this mutant of this specification"));
  }
  return slip < 0 ? names : slip;
}

function draw() {
  if (at("policy").value !== preset() || !at("knob").options.length) settings();
  at("policy").value = preset();
  drawKnobs();
  at("slip").value = now.slip === null || byHand() ? "" : String(now.slip);
  at("slip").disabled = at("text").disabled = now.law !== 0;
  const sizes = law().sizes.split(", ").map((size) => size.replace(/^(\D+) (\d+)$/, (_, word, count) => `${say(word)} ${count}`));
  at("sizes").textContent = `${law().policy}: ${sizes.join(", ")}.`;
  const may = now.machine.enabled(state());
  drawState();
  drawBroken(may);
  drawEnabled(may);
  drawLanes();
  drawPlaces();
  drawStory(at("story"), now.machine, now.run.slice(0, now.step), now.states);
  at("command").textContent = now.slip === null ? `longpoll explain ${address()}` : say("none: the command explains runs of unchanged specifications only");
  at("back").disabled = at("first").disabled = now.step === 0;
  at("on").disabled = now.step === now.run.length;
  at("play").disabled = now.run.length === 0;
  history.replaceState(null, "", `#${address()}`);
}

function said(variable, value) {
  return variable.words.length ? name(variable.words[value]) : String(value);
}

/* The requests' own variables as a table, a row for each; all others as the clock, the queue's ends and the threads. */
function drawState() {
  const rows = new Map(), columns = new Set();
  at("clock").replaceChildren();
  law().variables.forEach((variable, place) => {
    const called = name(variable.name), match = /^(.*)_(\d+)$/.exec(called);
    const shown = said(variable, state()[place]);
    if (!match) {
      const box = put(at("clock"), "div", "", { title: text(variable.sentence) });
      put(box, "dt", called.replaceAll("_", " "));
      put(box, "dd", shown);
      return;
    }
    columns.add(match[1]);
    if (!rows.has(match[2])) rows.set(match[2], new Map());
    rows.get(match[2]).set(match[1], shown);
  });
  const table = at("requests");
  table.querySelectorAll("thead, tbody").forEach((part) => part.remove());
  const head = put(put(table, "thead"), "tr");
  put(head, "th", say("request"), { scope: "col" });
  for (const column of columns) put(head, "th", column.replaceAll("_", " "), { scope: "col" });
  const body = put(table, "tbody");
  for (const [slot, values] of rows) {
    const row = put(body, "tr");
    if (values.get("phase") === "held") row.dataset.held = "yes";
    put(row, "th", slot, { scope: "row" });
    for (const column of columns) put(row, "td", (values.get(column) ?? "").replaceAll("_", " "));
  }
}

/* What has gone wrong, in one sentence each, and the properties that the state or the run's last step violates. */
function drawBroken(may) {
  const list = at("broken");
  list.replaceChildren();
  const names = [...brokenBy(now.machine, now.states, now.run, now.step, may)];
  for (const sentence of new Set(names.flatMap((name) => WRONG[name]?.() ?? []))) put(put(list, "li"), "strong", sentence);
  for (const name of names) {
    const item = now.machine.properties.find((each) => each.name === name);
    put(put(list, "li", say("Violated: {0}", text(item.sentence))), "small", name);
  }
}

/* The value of a variable of the state that is shown, and a request's phase. */
const valueOf = (called) => state()[law().variables.findIndex((each) => name(each.name) === called)];
const phaseOf = (slot) => {
  const variable = law().variables.find((each) => name(each.name) === `phase_${slot}`);
  return name(variable.words[valueOf(`phase_${slot}`)]);
};

/* A sentence for each request in this phase of which the test holds; only where the law has one queue. */
function ofRequests(test, sentence) {
  if (valueOf("visible_end") === undefined) return [];
  const slots = law().variables.map((each) => /^phase_(\d+)$/.exec(name(each.name))?.[1]).filter((slot) => slot !== undefined);
  return slots.filter(test).map(sentence);
}

/* What has gone wrong with which request, by the property, as `longpoll explain` says it. */
const lost = () => ofRequests((slot) => phaseOf(slot) === "held" && valueOf(`offset_${slot}`) < valueOf("visible_end"),
  (slot) => say("Request {0} waits in the bucket for offset {1} although maxOffset is {2}: its wakeup is lost.", slot, valueOf(`offset_${slot}`), valueOf("visible_end")));
const late = () => ofRequests((slot) => phaseOf(slot) !== "idle" && valueOf(`deadline_${slot}`) <= 0,
  (slot) => say("The deadline of request {0} has passed, and it still has no answer.", slot));
const dropped = () => ofRequests((slot) => phaseOf(slot) === "idle" && valueOf(`open_${slot}`) && valueOf(`copies_${slot}`) === 0,
  (slot) => say("Consumer {0} waits for an answer, but no thread and no list has request {0}.", slot));
const silent = () => ofRequests((slot) => phaseOf(slot) === "held",
  (slot) => say("Request {0} is in the table of a stopped broker, and gets no answer.", slot));
const WRONG = {
  no_lost_wakeup: lost, lost_by_hold: lost, lost_by_keep: lost, queued_by_deadline: late, answered_by_deadline: late,
  nothing_dropped: dropped, dropped_by_reject: dropped, dropped_by_throw: dropped, answered_on_stop: silent,
};

function brokenBy(machine, states, run, step, may) {
  const must = ([number]) => machine.properties[number].kind !== "sometimes";
  const found = machine.decided(states[step], may).filter(([number, by]) => by < 0 && must([number]));
  if (step) {
    const before = machine.decided(states[step - 1], machine.enabled(states[step - 1]));
    found.push(...before.filter(([number, by]) => by === run[step - 1] && must([number])));
  }
  return new Set(found.map(([number]) => machine.properties[number].name));
}

function drawEnabled(may) {
  const focused = document.activeElement?.closest("#enabled") !== null;
  at("enabled").replaceChildren();
  may.forEach((number, place) => {
    const action = now.machine.actions[number];
    const button = put(at("enabled"), "button", "", { type: "button", "data-action": action.label });
    put(button, "strong", `${place < 9 ? `${place + 1}. ` : ""}${action.label}`);
    put(button, "span", ` ${told(now.machine, number, state(), now.machine.after(state(), number))}`);
    if (text(action.place)) put(button, "small", text(action.place));
    button.addEventListener("click", () => {
      halt();
      take(number);
    });
  });
  if (!may.length) put(at("enabled"), "p", say("Nothing: the run has ended."));
  if (focused) at("enabled").querySelector("button")?.focus();
}

function drawLanes() {
  const threads = [...new Set(now.run.map((number) => text(now.machine.actions[number].thread)))];
  const table = at("lanes");
  table.querySelectorAll("thead, tbody").forEach((part) => part.remove());
  const head = put(put(table, "thead"), "tr");
  put(head, "th", say("step"), { scope: "col" });
  for (const thread of threads) {
    const [, who, where] = /^(.*?)(?: \((.*)\))?$/.exec(thread), cell = put(head, "th", who, { scope: "col" });
    if (where) put(cell, "small", where);
  }
  const body = put(table, "tbody");
  now.run.forEach((number, place) => {
    const action = now.machine.actions[number], row = put(body, "tr");
    put(row, "th", String(place + 1), { scope: "row" });
    for (const thread of threads) {
      const cell = put(row, "td");
      if (thread !== text(action.thread)) continue;
      const button = put(cell, "button", action.label, { type: "button", "aria-label": say("Go to step {0}: {1}", place + 1, action.label) });
      if (place + 1 === now.step) button.setAttribute("aria-current", "step");
      button.addEventListener("click", () => {
        halt();
        jump(place + 1);
      });
    }
  });
}

/* The guard and the effect of the chosen text, each place with what it may become. */
function drawPlaces() {
  const focused = document.activeElement?.closest("#places [id]")?.id;
  const text = data.hand.texts[Number(at("text").value)], chosen = byHand() ? now.slip.map((each) => changeOf.get(each)) : [];
  at("places").replaceChildren();
  places.filter((place) => place.text === Number(at("text").value)).forEach((place, number, all) => {
    const part = place.part !== undefined;
    if (number === 0 || (!part && all[number - 1].part !== undefined)) {
      put(at("places"), "h3", part ? say("Possible if all of this holds") : say("Effect"));
    }
    drawPlace(place, chosen.find((each) => samePlace(each, place.changes[0])), number);
  });
  if (text.instances.length > 1) put(at("places"), "p", say("Shown for the first thread; a change applies to all."), { class: "small" });
  const told = chosen.map((each) => `${headOf(each)} ${changeShown(each)}`);
  at("changes").textContent = now.law !== 0 ? say("Choose the page's own policy to change it by hand.")
    : told.length ? say("Changed: {0}.", told.join("; ")) : "";
  at("mend").disabled = !told.length;
  if (focused) at(focused)?.focus();
}

function drawPlace(place, chosen, number) {
  const row = put(at("places"), "div", "", { class: "place", "data-place": `${place.part ?? place.line}` });
  const strike = place.changes[0], struck = chosen === strike;
  put(row, struck ? "del" : "code", place.written);
  const button = put(row, "button", say("Strike out"), { type: "button", id: `strike-${number}`, "aria-pressed": String(struck), "aria-label": say("Strike out {0}", place.written) });
  button.disabled = now.law !== 0;
  button.addEventListener("click", () => change(strike, !struck));
  const box = put(row, "select", "", { id: `other-${number}`, "aria-label": say("Replace {0}", place.written) });
  box.disabled = now.law !== 0;
  put(box, "option", say("unchanged"), { value: "" });
  for (const each of place.changes) put(box, "option", each === strike ? say("struck out") : changeShown(each), { value: each.name });
  box.value = chosen?.name ?? "";
  box.addEventListener("change", () => change(changeOf.get(box.value) ?? strike, box.value !== ""));
}

const headOf = ({ text }) => [data.hand.texts[text].action, data.hand.texts[text].who].filter(Boolean).join(" ");

/* Each kind of change in words, of what it is about. */
const OF_GUARD = "what its guard says of ";
const SHOWN = {
  forgets: (what) => say("forgets what its guard says of {0}", what.slice(OF_GUARD.length)),
  "turns round": (what) => say("turns round what its guard says of {0}", what.slice(OF_GUARD.length)),
  "moves the border in": (what) => say("moves the border in what its guard says of {0}", what.slice(OF_GUARD.length)),
  "forgets to write": (what) => say("forgets to write {0}", what),
  "takes the other case for": (what) => say("takes the other case for {0}", what),
  "writes one more to": (what) => say("writes one more to {0}", what),
  "writes one less to": (what) => say("writes one less to {0}", what),
  "writes 0 to": (what) => say("writes {0} to {1}", "0", what),
};
const changeShown = ({ kind, what, word }) => (word === undefined ? SHOWN[kind](what) : say("writes {0} to {1}", word, what));

/* Make a change by hand in place of another at its place, or take it back; the law that comes of it is searched. */
function change(wanted, made) {
  const kept = byHand() ? now.slip.filter((each) => !samePlace(changeOf.get(each), wanted)) : [];
  const names = made ? [...kept, wanted.name] : kept;
  open(0, names.length ? names : null, []);
  draw();
  if (names.length) search();
}

/* A step in one sentence, from the values before and after it, as `longpoll explain` has it. Where several queues or tags
 * are in the law, and for a step that has no sentence here, it is what the action may do in general. */
function told(machine, number, before, after) {
  const action = machine.actions[number], [, called, actors] = /^(\w+)(?:\((.*)\))?$/.exec(action.label);
  const slot = (actors ?? "").split(/, ?/).filter((each) => /^\d+$/.test(each)).at(-1);
  const place = new Map(machine.law.variables.map((variable, index) => [name(variable.name), index]));
  const was = (which) => before[place.get(which)], is = (which) => after[place.get(which)];
  const word = (values, which) => said(machine.law.variables[place.get(which)], values[place.get(which)]);
  const slots = [...place.keys()].map((each) => /^phase_(\d+)$/.exec(each)?.[1]).filter((each) => each !== undefined);
  const phases = (values, each) => word(values, `phase_${each}`);
  const moved = (prefix) => slots.filter((each) => phases(after, each).startsWith(prefix) && !phases(before, each).startsWith(prefix));
  const named = (found) => (found.length === 1 ? say("request {0}", found[0]) : say("requests {0}", found.join(", ")));
  const sentence = TOLD[called.replace(/^(scan|walk)_/, "notify_")] ?? TOLD[called];
  const specific = place.has("visible_end") && !place.has("announced") && sentence?.({ slot, was, is, phases, before, after, moved, named });
  if (called === "tick") return specific || text(action.sentence);
  return specific ? say("{0} {1}", text(action.thread), specific) : say("{0}: {1}", text(action.thread), text(action.sentence));
}

const more = ({ slot, was }) => was(`offset_${slot}`) < was("visible_end");
const TOLD = {
  append: ({ was }) => say("appends message {0} to the log; pulls do not see it yet", was("log_end")),
  make_visible: ({ is }) => say("writes message {0} into the consume queue: maxOffset is now {1}, and arriving() is to follow", is("visible_end") - 1, is("visible_end")),
  next_pull: ({ slot, is }) => say("sends PULL_MESSAGE for offset {0}, to be held for {1} tick(s)", is(`offset_${slot}`), is(`deadline_${slot}`)),
  pull_read: (step) => {
    const values = [step.was(`offset_${step.slot}`), step.was("visible_end")];
    return more(step) ? say("reads offset {0}, maxOffset is {1}: answers FOUND", ...values)
      : say("reads offset {0} and finds nothing, for maxOffset is {1}: PULL_NOT_FOUND, the request is to be held", ...values);
  },
  hold: ({ slot, was, phases, after }) => {
    if (phases(after, slot) !== "held") return say("finds the broker stopped and answers instead of holding");
    const offset = was(`offset_${slot}`), end = was("visible_end");
    return offset < end ? say("puts request {0} into the bucket, waiting for offset {1}, though maxOffset is {2} by now", slot, offset, end)
      : say("puts request {0} into the bucket, waiting for offset {1}", slot, offset);
  },
  notify_start: ({ moved, named }) => (moved("taken").length ? say("takes {0} out of the bucket, to look at one after the other", named(moved("taken")))
    : say("goes to the bucket and finds no request in it: there is nobody to wake")),
  notify_each: (step) => {
    const end = step.was("visible_end");
    if (step.moved("queued").length) {
      return more(step) ? say("looks at request {0}: maxOffset is {1}; wakes it, to be run by the executor", step.slot, end)
        : say("looks at request {0}: its deadline has passed; wakes it, to be run by the executor", step.slot);
    }
    return more(step) ? say("looks at request {0}: maxOffset is {1}, and the message announced is not for it; keeps it", step.slot, end)
      : say("looks at request {0}: maxOffset is {1}, nothing for it; keeps it", step.slot, end);
  },
  notify_end: ({ moved, named }) => {
    if (moved("held").length) return say("puts {0} back into the bucket", named(moved("held")));
    if (moved("idle").length) return say("finds the broker stopped and answers {0}", named(moved("idle")));
    return say("has nothing to put back and ends its walk");
  },
  expire: ({ slot, moved }) => (moved("queued").length ? say("finds the deadline of request {0} passed and hands it to the executor", slot)
    : say("spends the entry of request {0}, which a notifier has just now", slot)),
  run: (step) => say("runs pull {0} again, may not hold it, and answers {1}", step.slot, more(step) ? "FOUND" : "PULL_NOT_FOUND"),
  executor_rejects: ({ slot, is }) => (is(`open_${slot}`) ? say("refuses request {0}; it is logged and forgotten, nobody answers", slot)
    : say("refuses request {0}, which is answered SYSTEM_BUSY", slot)),
  stop: ({ moved, named }) => (moved("idle").length ? say("stops the broker: no append, dispatch, pull or scan begins any more, and {0} is answered", named(moved("idle")))
    : say("stops the broker: no append, dispatch, pull or scan begins any more, and nothing is answered")),
  tick: ({ before, after }) => (before.some((value, index) => value !== after[index]) ? say("One tick passes.") : say("One tick passes; it changes nothing.")),
};

/* Each step in a sentence: who, what, where in RocketMQ, and what it changed. */
function drawStory(list, machine, run, states) {
  list.replaceChildren();
  run.forEach((number, place) => {
    const action = machine.actions[number], item = put(list, "li", told(machine, number, states[place], states[place + 1]));
    const changed = machine.law.variables
      .map((variable, which) => [variable, states[place][which], states[place + 1][which]])
      .filter(([, before, after]) => before !== after)
      .map(([variable, before, after]) => `${name(variable.name)}: ${said(variable, before)} → ${said(variable, after)}`);
    put(item, "small", [`[${action.label}] ${text(action.place)}`.trim(), ...changed].join("; "));
  });
}

/* Search in a worker, so that the page stays alive; it is made of the interpreter's own text. */
function search() {
  rest();
  const from = now.step, run = now.run.slice(0, from);
  const source = `${at("law").textContent}
onmessage = ({ data: asked }) => {
  const machine = new Law.Machine(asked.data, asked.law, asked.slip);
  const told = (states, level) => postMessage({ states, level });
  const found = Law.explore(machine, { start: asked.start, limit: asked.limit ?? Infinity, told });
  // What the law breaks or never reaches without the slip says nothing of the slip.
  const right = asked.slip === null ? null : Law.explore(new Law.Machine(asked.data, asked.law));
  postMessage({ ...found, right, done: true });
};`;
  const address = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
  worker = new Worker(address);
  URL.revokeObjectURL(address);
  at("search").disabled = true;
  at("stop").disabled = false;
  at("found").replaceChildren();
  at("progress").textContent = say("Searching…");
  const asked = { law: now.law, slip: now.slip };
  worker.onmessage = ({ data: answer }) => {
    if (!answer.done) {
      at("progress").textContent = say("Searching: {0} states, {1} steps deep.", answer.states.toLocaleString("en"), answer.level);
      return;
    }
    rest();
    drawFound(answer, run, asked);
  };
  worker.onerror = (error) => {
    rest();
    at("progress").textContent = say("The search has ended: {0}", error.message);
  };
  const limit = now.slip === null ? null : STATES_MAX_OF_SLIP;
  worker.postMessage({ data, start: state(), limit, ...asked });
}

function rest() {
  worker?.terminate();
  worker = null;
  at("search").disabled = false;
  at("stop").disabled = true;
}

function drawFound(answer, before, asked) {
  const { properties } = now.machine;
  const broken = properties
    .map((item, number) => [item, answer.findings.get(number)])
    .filter(([item, run]) => item.kind !== "sometimes" && run !== undefined)
    .sort(([, one], [, other]) => one.length - other.length);
  const own = (number) => asked.slip !== null && answer.right.findings.has(number);
  const isNew = ([item]) => !own(properties.indexOf(item));
  const caught = asked.slip === null ? [] : broken.filter(isNew);
  broken.sort((one, other) => Number(isNew(other)) - Number(isNew(one)));
  const counts = [answer.states, answer.transitions].map((count) => count.toLocaleString("en"));
  const told = say("{0} states, {1} transitions, depth {2}", ...counts, answer.depth);
  const end = answer.whole ? "" : say(" The search stopped at its limit of states, so other violations are possible.");
  const names = caught.map(([item]) => item.name).join(", ");
  const slip = asked.slip === null ? "" : broke(asked, names);
  const count = broken.length === 1 ? say("1 property is violated")
    : broken.length ? say("{0} properties are violated", broken.length) : say("no property is violated");
  at("progress").textContent = `${say("{0}: {1}", told, count)}${language === "zh" ? "。" : "."}${slip}${end}`;
  for (const [item, run] of broken) {
    const box = put(at("found"), "div", "", { class: "found", "data-property": item.name });
    const too = own(properties.indexOf(item)) ? say(" The unchanged specification violates it, too.") : "";
    const far = run.length === 1 ? say("{0}, 1 step from here: {2}", item.name, 1, text(item.sentence))
      : say("{0}, {1} steps from here: {2}", item.name, run.length, text(item.sentence));
    put(box, "p", `${far}${too}`);
    put(box, "button", say("Show the shortest run"), { type: "button", "aria-label": say("Show the shortest run that violates {0}", item.name) })
      .addEventListener("click", () => {
        open(asked.law, asked.slip, [...before, ...run], before.length + run.length, item.name);
        draw();
        at("run-title").scrollIntoView();
      });
  }
  // A slip may break nothing, and yet no longer do what the law does.
  const missed = properties.filter(
    (item, number) =>
      item.kind === "sometimes" && !answer.findings.has(number) && (asked.slip === null || own(number)),
  );
  if (missed.length && !before.length && answer.whole) {
    const names = missed.map((item) => item.name).join(", ");
    const never = asked.slip === null ? say("Never reached: {0}.", names) : say("No longer reached: {0}.", names);
    put(at("found"), "p", never);
  }
  if (asked.slip !== null && answer.whole && !caught.length && !missed.length) {
    put(at("found"), "p", say("No property notices this change under these bounds. A larger configuration may show it, or it makes no difference."));
  }
}

function broke({ slip }, names) {
  if (Array.isArray(slip)) return names ? say(" {0} catches your change.", names) : say(" No property catches your change.");
  return names ? say(" {0} catches the mutant.", names) : say(" No property catches the mutant.");
}

/* Replay the whole run, a step a second. */
function play() {
  if (playing !== null) return halt();
  if (now.step === now.run.length) jump(0);
  at("play").textContent = say("Pause");
  playing = setInterval(() => {
    jump(now.step + 1);
    if (now.step === now.run.length) halt();
  }, 1000);
}

function halt() {
  clearInterval(playing);
  playing = null;
  at("play").textContent = say("Replay");
}

/* The choices of policy, of one knob of the policy, and of a slip in the page's first law. */
function settings() {
  const here = now.machine ? preset() : data.laws[0].policy;
  at("policy").replaceChildren();
  data.laws.forEach((each) => {
    if (!each.policy.includes("+")) put(at("policy"), "option", each.policy, { value: each.policy });
  });
  at("policy").value = here;
  at("knob").replaceChildren();
  data.laws.forEach((each, number) => {
    const [name, ...knobs] = each.policy.split("+");
    if (name !== here || (knobs.length > 1 && number)) return;
    put(at("knob"), "option", knobs.join(", ") || say("none"), { value: String(number) });
  });
  at("slip").replaceChildren();
  put(at("slip"), "option", say("none"), { value: "" });
  data.slips.forEach((each, number) => put(at("slip"), "option", slipShown(each), { value: String(number) }));
  if (at("text").options.length) return;
  data.hand.texts.forEach((each, number) => put(at("text"), "option", headOf({ text: number }), { value: String(number) }));
}

function begin() {
  translate();
  // The run stands behind `#`, so it is kept when the page is read anew in another language.
  at("language").addEventListener("change", () => {
    const address = new URL(location.href);
    address.searchParams.set("lang", at("language").value);
    location.href = address.href;
  });
  at("policy").addEventListener("change", () => {
    open(data.laws.findIndex((each) => each.policy === at("policy").value), null, []);
    at("knob").replaceChildren();
    draw();
  });
  for (const name of ["knob", "knob2"]) {
    at(name).addEventListener("change", () => {
      open(Number(at(name).value), null, []);
      draw();
    });
  }
  at("slip").addEventListener("change", () => {
    open(now.law, at("slip").value === "" ? null : Number(at("slip").value), []);
    draw();
    if (now.slip !== null) search();
  });
  at("text").addEventListener("change", drawPlaces);
  at("mend").addEventListener("click", () => {
    open(0, null, []);
    draw();
    at("text").focus();
  });
  const doing = { first: () => jump(0), back: () => jump(now.step - 1), on: () => jump(now.step + 1) };
  for (const [name, act] of Object.entries(doing)) {
    at(name).addEventListener("click", () => {
      halt();
      act();
    });
  }
  at("play").addEventListener("click", play);
  at("search").addEventListener("click", search);
  at("stop").addEventListener("click", () => {
    rest();
    at("progress").textContent = say("The search was stopped.");
  });
  addEventListener("hashchange", read);
  addEventListener("keydown", onKey);
  open(0, null, []);
  if (!read()) draw();
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("select, input, .scroller:focus")) return;
  const keys = {
    ArrowLeft: () => jump(now.step - 1),
    ArrowRight: () => jump(now.step + 1),
    Home: () => jump(0),
    s: () => worker ?? search(),
  };
  const chosen = /^[1-9]$/.test(event.key) ? at("enabled").querySelectorAll("button")[Number(event.key) - 1] : null;
  if (!chosen && !(event.key in keys)) return;
  event.preventDefault();
  if (chosen) chosen.click();
  else keys[event.key]();
}

begin();
