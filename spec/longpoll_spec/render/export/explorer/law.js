"use strict";
/* The interpreter of the law: what may happen in a state, what comes of it, and what is broken.
 *
 * It knows nothing of polling: the law is the table of terms that `page.py` writes. Runs in a page, in a worker of it,
 * and under Node. Leaves out everything that is seen.
 */
const Law = (() => {
  // The operators by their numbers, as in `page.py`.
  const [CONST, VAR, ADD, SUB, LT, LE, EQ, NOT, ITE, AND, OR, AFTER, GUARD] = Array(13).keys();
  const CHARACTER = 64; // values from -64 up stand for themselves in a state's key
  const PREFIX = "lp1.";
  const CRC_BYTES = 4;
  const LENGTH_MAX = 4096; // of a token, as `longpoll explain` has it
  // Where a token's fields stand.
  const [PROPERTY, FINGERPRINT, RUN] = [3, 4, 5];

  /* An error whose sentence a page may say in another language: its words, and what belongs in their places. */
  function fault(words, ...values) {
    const told = words.replace(/\{(\d)\}/g, (_, place) => values[Number(place)]);
    return Object.assign(new Error(told), { words, values });
  }

  /* A law with its variables, actions and properties in place of their numbers. */
  function lawOf(data, number) {
    const law = data.laws[number], entries = (numbers) => numbers.map((each) => data.entries[each]);
    const { variables, actions, properties } = law;
    return { ...law, variables: entries(variables), actions: entries(actions), properties: entries(properties) };
  }

  /* What a guard's part may become, and what a line of an effect may: kind -> the new node, of the old one and how to add
   * one; null strikes it out, undefined says that the kind is none of this node's. */
  const OF_PART = {
    forgets: () => null,
    "turns round": (old, add) => add([NOT, old]),
    "moves the border in": (old, add, nodes) => {
      const [operator, ...rest] = nodes[old];
      if (operator === NOT && nodes[rest[0]][0] <= LE && nodes[rest[0]][0] >= LT) return add([NOT, moved(nodes[rest[0]], add)]);
      return operator === LT || operator === LE ? moved(nodes[old], add) : undefined;
    },
  };
  const moved = ([operator, ...rest], add) => add([operator === LT ? LE : LT, ...rest]);
  const OF_LINE = {
    "forgets to write": () => null,
    "takes the other case for": (old, add, nodes) =>
      nodes[old][0] === ITE ? add([ITE, nodes[old][1], nodes[old][3], nodes[old][2]]) : undefined,
  };
  const OF_NUMBER = {
    "writes one more to": (old, add) => add([ADD, old, add([CONST, 1])]),
    "writes one less to": (old, add) => add([SUB, old, add([CONST, 1])]),
    "writes 0 to": (old, add) => add([CONST, 0]),
  };

  const called = (variable) => variable.replace(/_q?\d+$/, "");

  /* Every place of the first law that a hand may change: {text, part or line, how it is written, changes}. A change is
   * {name, kind, what, value}: its name is a planted slip's, where a slip does the same. */
  function places(data) {
    const law = lawOf(data, 0), texts = data.texts;
    return data.hand.texts.flatMap((text, at) => {
      const head = [text.action, text.who].filter(Boolean).join(" ");
      const made = (kind, what, more = {}) => ({ name: `${head} ${kind} ${what}`, kind, what, text: at, ...more });
      const first = law.actions[text.instances[0]];
      const can = (make, old) => make(old, () => 0, data.nodes) !== undefined;
      const place = (each, what, written, changes) => ({ text: at, [each]: what, written, changes });
      return [
        ...text.parts.map(([name, written]) => {
          const what = texts[name], old = partsOf(data, first.guard)[data.hand.parts[text.instances[0]].indexOf(name)];
          const kinds = Object.keys(OF_PART).filter((kind) => can(OF_PART[kind], old));
          return place("part", what, texts[written], kinds.map((kind) => made(kind, what, { part: name })));
        }),
        ...text.lines.map(([name, written]) => {
          const what = texts[name], lines = first.effect.filter(([variable]) => called(texts[variable]) === what);
          const variable = law.variables.find((each) => each.name === lines[0][0]);
          const kinds = Object.keys(OF_LINE).filter((kind) => lines.some(([, old]) => can(OF_LINE[kind], old)));
          const changes = kinds.map((kind) => made(kind, what, { line: what }));
          variable.words.forEach((word, value) => {
            changes.push(made(`writes ${texts[word]} to`, what, { line: what, value, word: texts[word] }));
          });
          if (!variable.words.length) {
            for (const kind of Object.keys(OF_NUMBER)) changes.push(made(kind, what, { line: what }));
          }
          return place("line", what, texts[written], changes);
        }),
      ];
    });
  }

  const partsOf = (data, guard) => (data.nodes[guard][0] === AND ? data.nodes[guard].slice(1) : [guard]);

  /* Change the actions of a machine of the first law by hand; throws where it has not such a place. */
  function changeByHand(machine, names) {
    const { data } = machine, all = places(data).flatMap((place) => place.changes);
    const add = (node) => machine.nodes.push(node) - 1;
    const parts = new Map();
    for (const name of names) {
      const change = all.find((each) => each.name === name);
      if (!change) throw fault("this specification has no place for {0}", name);
      for (const number of data.hand.texts[change.text].instances) {
        const action = machine.actions[number];
        if (change.part !== undefined) {
          if (!parts.has(number)) parts.set(number, partsOf(data, action.guard));
          const own = parts.get(number), at = data.hand.parts[number].indexOf(change.part);
          if (at >= 0) own[at] = OF_PART[change.kind](own[at], add, machine.nodes) ?? null;
          continue;
        }
        const make = change.value !== undefined ? () => add([CONST, change.value]) : (OF_LINE[change.kind] ?? OF_NUMBER[change.kind]);
        const effect = action.effect.flatMap(([variable, old]) => {
          if (called(data.texts[variable]) !== change.line) return [[variable, old]];
          const node = make(old, add, machine.nodes);
          return node === null ? [] : [[variable, node ?? old]];
        });
        machine.actions[number] = { ...action, effect };
      }
    }
    for (const [number, own] of parts) {
      const kept = own.filter((part) => part !== null);
      machine.actions[number] = { ...machine.actions[number], guard: add(kept.length ? [AND, ...kept] : [CONST, 1]) };
    }
    machine.properties = data.hand.properties.map((each) => data.entries[each]);
  }

  /* One law, as it is or changed: evaluates each node at most once in a state. `change` is the number of a slip, or the
   * names of changes by hand, of which the later one counts where two are of one place. */
  class Machine {
    constructor(data, number, change = null) {
      const law = lawOf(data, number);
      this.data = data;
      this.law = law;
      this.nodes = data.nodes;
      this.actions = law.actions.slice();
      this.properties = law.properties.slice();
      if (Array.isArray(change)) {
        this.nodes = data.nodes.slice();
        changeByHand(this, change);
      } else if (change !== null) {
        for (const [at, text] of data.slips[change].actions) this.actions[at] = { ...this.actions[at], ...text };
        for (const [at, item] of data.slips[change].properties) this.properties[at] = item;
      }
      this.effects = this.actions.map((action) => new Map(action.effect));
      this.initial = law.variables.map((each) => each.first);
      this.place = new Map(law.variables.map((each, at) => [each.name, at]));
      this.byLabel = new Map(this.actions.map((action, at) => [action.label, at]));
      this.values = new Int32Array(this.nodes.length);
      this.stamps = new Int32Array(this.nodes.length);
      this.now = 0;
      this.state = this.initial;
    }

    look(state) {
      this.state = state;
      this.now += 1;
    }

    value(number) {
      if (this.stamps[number] === this.now) return this.values[number];
      const found = this.evaluate(this.nodes[number]);
      this.stamps[number] = this.now;
      this.values[number] = found;
      return found;
    }

    evaluate(node) {
      switch (node[0]) {
        case CONST: return node[1];
        case VAR: return this.state[this.place.get(node[1])];
        case ADD: return this.value(node[1]) + this.value(node[2]);
        case SUB: return this.value(node[1]) - this.value(node[2]);
        case LT: return Number(this.value(node[1]) < this.value(node[2]));
        case LE: return Number(this.value(node[1]) <= this.value(node[2]));
        case EQ: return Number(this.value(node[1]) === this.value(node[2]));
        case NOT: return 1 - this.value(node[1]);
        case ITE: return this.value(node[1]) ? this.value(node[2]) : this.value(node[3]);
        case AND:
          for (let at = 1; at < node.length; at++) if (!this.value(node[at])) return 0;
          return 1;
        case OR:
          for (let at = 1; at < node.length; at++) if (this.value(node[at])) return 1;
          return 0;
        case AFTER: {
          const made = this.effects[node[1]].get(node[2]);
          return made === undefined ? this.state[this.place.get(node[2])] : this.value(made);
        }
        case GUARD: return Number(this.mayHappen(this.actions[node[1]]));
        default: throw new Error(`unknown operator ${node[0]}`);
      }
    }

    /* Whether an action may happen in the state that is looked at; time may wait for the others. */
    mayHappen(action) {
      if (!this.value(action.guard)) return false;
      return !(action.name === "tick" && this.law.waits && this.actions.some((each) => each.urgent && this.value(each.guard)));
    }

    /* The numbers of the actions that may happen in a state, in the law's order. */
    enabled(state) {
      this.look(state);
      const found = [];
      let urgent = false;
      this.actions.forEach((action, at) => {
        if (!this.value(action.guard)) return;
        found.push(at);
        urgent ||= action.urgent;
      });
      return urgent && this.law.waits ? found.filter((at) => this.actions[at].name !== "tick") : found;
    }

    /* The state after an action, which must be one that may happen. */
    after(state, number) {
      this.look(state);
      const next = state.slice();
      for (const [name, term] of this.actions[number].effect) next[this.place.get(name)] = this.value(term);
      return next;
    }

    /* The states of a run from the first one; throws where a step may not happen. */
    follow(run) {
      const states = [this.initial];
      for (const number of run) {
        const here = states[states.length - 1];
        if (!this.enabled(here).includes(number)) {
          throw fault("step {0}: {1} cannot happen here", states.length, this.actions[number]?.label ?? number);
        }
        states.push(this.after(here, number));
      }
      return states;
    }

    /* What a state decides by itself, and what each step that may happen in it decides: [property, step or -1]. */
    decided(state, enabled) {
      this.look(state);
      const found = [];
      this.properties.forEach((item, at) => {
        if (item.kind === "sometimes") {
          if (this.value(item.term)) found.push([at, -1]);
          return;
        }
        if (!this.value(item.here)) found.push([at, -1]);
        for (const [label, condition] of item.closing) {
          const step = this.byLabel.get(this.data.texts[label]);
          if (enabled.includes(step) && this.value(condition)) found.push([at, step]);
        }
      });
      return found;
    }
  }

  const key = (state) => String.fromCharCode(...state.map((value) => value + CHARACTER));

  /* Every state that can be reached from `start`, breadth first, so that the first run to a finding is a shortest one.
   * From `limit` states on it ends at the next level, is not `whole`, and has looked at that level's states without
   * their steps. `told` is called now and then with (states, level). The answer's `findings`: a property's number -> its
   * run from `start`; of what must hold the run breaks it, of what must be found it gets there. */
  function explore(machine, { start = machine.initial, limit = Infinity, told = () => {} } = {}) {
    const states = [start], parents = [-1], by = [-1], levels = [0];
    const known = new Set([key(start)]);
    const findings = new Map();
    let transitions = 0, at = 0;
    const back = (from) => {
      const run = [];
      for (let here = from; parents[here] >= 0; here = parents[here]) run.push(by[here]);
      return run.reverse();
    };
    const keep = (property, run) => {
      if (run.length < (findings.get(property)?.length ?? Infinity)) findings.set(property, run);
    };
    let whole = true;
    for (; at < states.length; at++) {
      whole &&= states.length < limit || levels[at] === levels[at - 1];
      const state = states[at], enabled = whole ? machine.enabled(state) : [];
      for (const [property, step] of machine.decided(state, enabled)) {
        const length = levels[at] + Number(step >= 0);
        if (length < (findings.get(property)?.length ?? Infinity)) {
          keep(property, step < 0 ? back(at) : [...back(at), step]);
        }
      }
      transitions += enabled.length;
      for (const step of enabled) {
        const next = machine.after(state, step), name = key(next);
        if (known.has(name)) continue;
        known.add(name);
        states.push(next);
        parents.push(at);
        by.push(step);
        levels.push(levels[at] + 1);
      }
      if (at % 1000 === 0) told(states.length, levels[at]);
    }
    return { states: states.length, transitions, depth: levels[levels.length - 1], findings, whole };
  }

  /* CRC-32 as zlib has it. */
  function crc(bytes) {
    let rest = ~0;
    for (const byte of bytes) {
      rest ^= byte;
      for (let bit = 0; bit < 8; bit++) rest = (rest >>> 1) ^ (rest & 1 ? 0xedb88320 : 0);
    }
    return ~rest >>> 0;
  }

  const big = (value, size) => Array.from({ length: size }, (_, at) => (value >>> (8 * (size - 1 - at))) & 255);

  /* MessagePack of the integers, texts and lists that a token has, each as short as it can be. */
  function packed(value) {
    if (typeof value === "string") {
      const bytes = [...new TextEncoder().encode(value)];
      return [...sized(bytes.length, 0xa0, 31, 0xd9), ...bytes];
    }
    if (Array.isArray(value)) return [...sized(value.length, 0x90, 15, null), ...value.flatMap(packed)];
    if (value < 0) return [256 + value];
    if (value < 128) return [value];
    if (value < 256) return [0xcc, value];
    return value < 65536 ? [0xcd, ...big(value, 2)] : [0xce, ...big(value, 4)];
  }

  function sized(length, small, most, byte) {
    if (length <= most) return [small + length];
    if (byte !== null && length < 256) return [byte, length];
    return [byte === null ? 0xdc : byte + 1, ...big(length, 2)];
  }

  function unpacked(bytes) {
    let at = 0;
    const take = (size) => {
      if (at + size > bytes.length) throw damaged();
      at += size;
      return bytes.slice(at - size, at);
    };
    const number = (size) => take(size).reduce((sum, byte) => sum * 256 + byte, 0);
    const text = (size) => new TextDecoder().decode(Uint8Array.from(take(size)));
    const list = (size, depth) => {
      if (size > bytes.length) throw damaged();
      if (depth > 1) throw other(); // a token is a list of lists, and no deeper
      return Array.from({ length: size }, () => read(depth + 1));
    };
    const read = (depth = 0) => {
      const head = number(1);
      if (head < 0x80) return head;
      if (head >= 0xe0) return head - 256;
      if (head >= 0xa0 && head < 0xc0) return text(head - 0xa0);
      if (head >= 0x90 && head < 0xa0) return list(head - 0x90, depth);
      switch (head) {
        case 0xcc: return number(1);
        case 0xcd: return number(2);
        case 0xce: return number(4);
        case 0xd9: return text(number(1));
        case 0xda: return text(number(2));
        case 0xdc: return list(number(2), depth);
        default: throw other();
      }
    };
    const value = read();
    if (at !== bytes.length) throw damaged();
    return value;
  }

  const damaged = () => fault("the token is damaged; copy the whole token again");
  const other = () => fault("the token is from another version");

  /* Whether these are the fields of a token: texts, lists and whole numbers where they belong. */
  function areFields(fields) {
    const isText = (each) => typeof each === "string", isNumber = Number.isInteger;
    const isList = (each, ofWhat) => Array.isArray(each) && each.every(ofWhat);
    if (!Array.isArray(fields) || fields.length < RUN + 1 || fields.length > RUN + 4) return false;
    const [preset, knobs, bounds, property, fingerprint, run, queues = 1, tags = 1, aspects = []] = fields;
    return isText(preset) && isList(knobs, isText) && isList(bounds, isNumber) && isText(property) && isNumber(fingerprint)
      && isList(run, isNumber) && isNumber(queues) && isNumber(tags) && isList(aspects, isText);
  }

  /* The fields of a token; throws with a sentence where they cannot be read. */
  function fieldsOf(token) {
    if (!token.startsWith(PREFIX)) throw fault("not a token of this version, which begins with '{0}'", PREFIX);
    if (token.length > LENGTH_MAX) throw fault("the token has {1} characters; at most {0} are allowed", LENGTH_MAX, token.length);
    let bytes;
    try {
      const letters = token.slice(PREFIX.length).replaceAll("-", "+").replaceAll("_", "/");
      bytes = [...atob(letters)].map((letter) => letter.charCodeAt(0));
    } catch {
      throw damaged();
    }
    const raw = bytes.slice(0, -CRC_BYTES);
    const checked = [...raw, ...big(crc(raw), CRC_BYTES)];
    // The last character has bits that decoding ignores: a token has one spelling only.
    if (bytes.length <= CRC_BYTES || spelled(checked) !== token) throw damaged();
    const fields = unpacked(raw);
    if (!areFields(fields)) throw other();
    return fields;
  }

  const spelled = (bytes) =>
    PREFIX + btoa(String.fromCharCode(...bytes)).replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "");

  /* The token of a run of a law, as `longpoll explain` takes it. */
  function tokenOf(law, run, property = "") {
    const fields = fieldsOf(law.token);
    fields[PROPERTY] = property;
    fields[RUN] = run;
    const raw = packed(fields);
    return spelled([...raw, ...big(crc(raw), CRC_BYTES)]);
  }

  /* What a token names: {law: its number in the data, run, property}; throws with a sentence where it cannot be told. */
  function readToken(data, token) {
    const fields = fieldsOf(token);
    const setting = (all) => JSON.stringify(all.filter((_, at) => ![PROPERTY, RUN, FINGERPRINT].includes(at)));
    const law = data.laws.findIndex((each) => setting(fieldsOf(each.token)) === setting(fields));
    if (law < 0) {
      const which = [fields[0], ...fields[1]].join("+");
      throw fault("this page does not have the specification of {0} under these bounds: write one with longpoll export --to explorer", which);
    }
    if (fieldsOf(data.laws[law].token)[FINGERPRINT] !== fields[FINGERPRINT]) {
      throw fault("the token is from another version of the specification");
    }
    return { law, run: fields[RUN], property: fields[PROPERTY] };
  }

  return { Machine, explore, places, tokenOf, readToken };
})();
