"use strict";
// Draws the timeline, the latencies and the list of pulls from the data below the page.
// Whatever stood in the record is written as text (textContent, fillText) and never as markup.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const bars = data.bars;
  const AXIS = 20, STRIP = 62, TOP = AXIS + STRIP, ROW = 16, HEAD = 17, PAD = 10;
  const WIDTH_MAX = 8e6; // browsers lay out about 3.3e7 px at most
  const RUNS_MANY = 200, STRIP_WIDTH_MAX = 4096; // 10,000 pulls have 50 such strips at most, of 200 kB each
  const dots = () => window.devicePixelRatio || 1;
  const LIST_ROW = 44, LETTER = 7.3;

  const lanes = document.getElementById("lanes"), list = document.getElementById("pulls");
  const plot = document.getElementById("latency"), record = document.getElementById("record");
  const canvas = lanes.querySelector("canvas"), spacer = lanes.querySelector(".spacer");
  const rows = [];          // row -> its bars in order of time, none of which overlaps another
  const tops = [];          // row -> its distance from the lanes' top, in px
  const laneTops = [];
  let lanesHeight = 0, scale = 1, chosen = -1, chosenLine = -1, queue = 0, finding = -1, colours = {}, asked = false;
  let laid = { scale: 0, rows: [] };

  data.lanes.forEach((lane, at) => {
    laneTops[at] = lanesHeight;
    for (let row = 0; row < lane.rows; row++) tops[lane.row + row] = lanesHeight + HEAD + row * ROW;
    lanesHeight += HEAD + lane.rows * ROW + 4;
  });
  bars.forEach((bar, number) => (rows[bar.row] ??= []).push(number));

  const span = Math.max(data.span_ms, 0.001);
  let scrolled = 0;         // as `lanes` was at the last `sync`: asking it for every bar takes too long
  const sync = () => { scrolled = lanes.scrollLeft; };
  const xOf = (ms) => PAD + ms * scale - scrolled;
  const msOf = (x) => (x + scrolled - PAD) / scale;
  const least = () => Math.max((lanes.clientWidth - 2 * PAD) / span, 1e-9);
  const most = () => Math.max(least(), Math.min(WIDTH_MAX / span, 2000));

  function readColours() {
    const style = getComputedStyle(document.documentElement);
    for (const name of ["text", "soft", "back", "panel", "line", "pull", "sure", "held", "may", "over", "perhaps",
      "deadline", "limit", "end", "chosen"]) colours[name] = style.getPropertyValue("--" + name).trim();
  }

  function context(area, width, height) {
    const pixels = [Math.round(width * dots()), Math.round(height * dots())];
    if (area.width !== pixels[0] || area.height !== pixels[1]) {
      [area.width, area.height] = pixels;
      area.style.width = width + "px";
      area.style.height = height + "px";
    }
    const pen = area.getContext("2d");
    pen.setTransform(dots(), 0, 0, dots(), 0, 0);
    pen.font = "11px system-ui, sans-serif";
    pen.fillStyle = colours.back;
    pen.fillRect(0, 0, width, height);
    return pen;
  }

  // A text of at most `letters` letters: what is left out is the middle.
  function fit(text, letters) {
    if (text.length <= letters) return text;
    const half = Math.max(Math.floor((letters - 1) / 2), 1);
    return text.slice(0, half) + "…" + text.slice(-half);
  }

  // A text that fits into `width` px.
  function fitted(pen, text, width) {
    let shown = text;
    for (let letters = text.length; letters > 3 && pen.measureText(shown).width > width; letters = Math.floor(letters * 0.9)) {
      shown = fit(text, letters);
    }
    return shown;
  }

  const time = (ms) => Math.abs(ms) >= 1000 ? (ms / 1000).toFixed(3) + " s" : ms.toFixed(3) + " ms";

  function nice(ms) {
    const unit = 10 ** Math.floor(Math.log10(ms));
    return [1, 2, 5, 10].map((times) => times * unit).find((step) => step >= ms);
  }

  // The first bar of a row that ends at or after a moment.
  function firstOf(numbers, ms) {
    let low = 0, high = numbers.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (bars[numbers[middle]].end < ms) low = middle + 1; else high = middle;
    }
    return low;
  }

  function draw() {
    asked = false;
    sync();
    const width = lanes.clientWidth, height = lanes.clientHeight;
    const pen = context(canvas, width, height);
    const from = msOf(0), until = msOf(width);
    pen.save();
    pen.beginPath();
    pen.rect(0, TOP, width, height - TOP);
    pen.clip();
    data.lanes.forEach((lane, at) => {
      const top = TOP + laneTops[at] - lanes.scrollTop;
      if (top > height || top + HEAD + lane.rows * ROW < TOP) return;
      for (let row = lane.row; row < lane.row + lane.rows; row++) drawRow(pen, row, from, until, height);
      pen.fillStyle = colours.line;
      pen.fillRect(0, top, width, 1);
      pen.fillStyle = colours.soft;
      pen.fillText(fitted(pen, lane.name, width - 2 * PAD), PAD, top + 13);
    });
    pen.restore();
    drawStrip(pen, width, from, until);
    drawAxis(pen, width, from, until);
  }

  function drawRow(pen, row, from, until, height) {
    const y = TOP + tops[row] - lanes.scrollTop;
    if (y > height || y + ROW < TOP) return;
    const { runs, wide, strip } = laidOut(row);
    if (strip) pen.drawImage(strip, -scrolled, y + 2, strip.width / dots(), ROW - 4);
    for (let at = firstRun(runs); at < runs.length && !strip; at++) {
      const run = runs[at], left = run.left - scrolled;
      if (left > lanes.clientWidth) break;
      pen.fillStyle = colours[run.colour];
      pen.fillRect(left, y + 2, run.right - run.left, ROW - 4);
    }
    for (let at = firstOf(wide, from); at < wide.length && bars[wide[at]].asked[0] <= until; at++) {
      drawBar(pen, bars[wide[at]], y + 2, wide[at] === chosen);
    }
    if (chosen >= 0 && bars[chosen].row === row) drawBar(pen, bars[chosen], y + 2, true);
  }

  // What a row looks like at this scale: bars of a few pixels as runs, and those that are drawn one by one.
  function laidOut(row) {
    if (laid.scale !== scale) laid = { scale, rows: [] };
    if (laid.rows[row]) return laid.rows[row];
    const runs = [], wide = [];
    for (const number of rows[row] || []) {
      const bar = bars[number];
      if (bar.finding >= 0 || (bar.end - bar.asked[0]) * scale > 4) wide.push(number); else grow(runs, bar);
    }
    return (laid.rows[row] = { runs, wide, strip: painted(runs) });
  }

  // The runs as a picture where they are many and lie close together, so that a frame need not draw each of them.
  function painted(runs) {
    const width = 2 * PAD + span * scale;
    if (runs.length < RUNS_MANY || width > STRIP_WIDTH_MAX) return null;
    const strip = new OffscreenCanvas(Math.ceil(width * dots()), Math.ceil((ROW - 4) * dots()));
    const pen = strip.getContext("2d");
    for (const run of runs) {
      pen.fillStyle = colours[run.colour];
      pen.fillRect(run.left * dots(), 0, (run.right - run.left) * dots(), strip.height);
    }
    return strip;
  }

  // Bars are drawn as one where nothing could be seen between them.
  function grow(runs, bar) {
    const left = Math.round(PAD + bar.asked[0] * scale), last = runs[runs.length - 1];
    const right = Math.max(Math.round(PAD + bar.end * scale), left + 1);
    const colour = bar.held !== null ? "held" : bar.may_be_held ? "may" : "pull";
    if (!last || left > last.right + 1 || (colour !== last.colour && left >= last.right)) runs.push({ left, right, colour });
    else last.right = Math.max(last.right, right);
  }

  // The first run that is in view.
  function firstRun(runs) {
    let low = 0, high = runs.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (runs[middle].right < scrolled) low = middle + 1; else high = middle;
    }
    return low;
  }

  function fill(pen, from, until, y, height, colour, narrowest) {
    const left = xOf(from);
    pen.fillStyle = colour;
    pen.fillRect(left, y, Math.max(xOf(until) - left, narrowest), height);
  }

  function drawBar(pen, bar, y, isChosen) {
    const height = ROW - 4;
    fill(pen, bar.asked[0], bar.end, y, height, colours.pull, 1);
    if (bar.held !== null) fill(pen, bar.held, bar.end, y, height, colours.held, 1);
    if (bar.may_be_held) hatch(pen, xOf(bar.asked[0]), xOf(bar.end), y, height);
    if (xOf(bar.end) - xOf(bar.asked[0]) > 6) {
      fill(pen, bar.asked[0], bar.asked[1], y, height, colours.sure, 2);
      if (bar.answered) fill(pen, bar.answered[0], bar.end, y, height, colours.sure, 2);
    }
    if (bar.overrun !== null) drawOverrun(pen, bar, y, height);
    else if (bar.finding >= 0) outline(pen, bar, y, height, bar.verdict === "violated" ? colours.over : colours.perhaps);
    if (isChosen || bar.overrun !== null || (bar.deadline !== null && bar.end > bar.deadline)) drawLimits(pen, bar, y);
    if (isChosen) outline(pen, bar, y, height, colours.chosen);
  }

  function outline(pen, bar, y, height, colour) {
    pen.strokeStyle = colour;
    pen.lineWidth = 2;
    pen.strokeRect(xOf(bar.asked[0]) - 1, y - 1, Math.max(xOf(bar.end) - xOf(bar.asked[0]), 2) + 2, height + 2);
  }

  function hatch(pen, from, until, y, height) {
    const left = Math.max(from, -20), right = Math.min(until, lanes.clientWidth + 20);
    if (right - left < 4) return;
    pen.save();
    pen.beginPath();
    pen.rect(left, y, right - left, height);
    pen.clip();
    pen.strokeStyle = colours.may;
    pen.lineWidth = 2;
    pen.beginPath();
    for (let x = left - height - ((left % 7) + 7) % 7; x < right; x += 7) {
      pen.moveTo(x, y + height);
      pen.lineTo(x + height, y);
    }
    pen.stroke();
    pen.restore();
  }

  function drawOverrun(pen, bar, y, height) {
    const until = bar.answered && bar.answered[0] > bar.overrun ? bar.answered[0] : bar.end;
    fill(pen, bar.overrun, until, y, height, bar.verdict === "violated" ? colours.over : colours.perhaps, 3);
    const left = Math.max(xOf(bar.overrun), 0), right = Math.min(xOf(until), lanes.clientWidth);
    const text = (bar.answered ? "late by at least " : "no answer for ") + time(until - bar.overrun);
    if (right - left > pen.measureText(text).width + 8) {
      pen.fillStyle = colours.back;
      pen.fillText(text, left + 4, y + height - 2);
    }
  }

  function drawLimits(pen, bar, y) {
    if (bar.deadline !== null) fill(pen, bar.deadline, bar.deadline, y - 2, ROW, colours.deadline, 2);
    if (bar.limit === null) return;
    pen.fillStyle = colours.limit;
    for (let down = 0; down < ROW; down += 4) pen.fillRect(xOf(bar.limit), y - 2 + down, 2, 2);
  }

  // The points of the queue's line that are in view, with the one before them.
  function points(from, until) {
    const all = data.queues[queue] ? data.queues[queue].points : [];
    let low = 0, high = all.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (all[middle][0] < from) low = middle + 1; else high = middle;
    }
    let last = low;
    while (last < all.length && all[last][0] <= until) last++;
    return all.slice(Math.max(low - 1, 0), last);
  }

  // The last point of each pixel column.
  function thinned(all) {
    const column = (point) => Math.floor(xOf(point[0]));
    return all.filter((point, at) => at + 1 === all.length || column(all[at + 1]) > column(point));
  }

  function stripScale(shown) {
    const ends = shown.map((point) => point[1]);
    let low = Infinity, high = -Infinity;
    for (const end of ends) { low = Math.min(low, end); high = Math.max(high, end); }
    const room = STRIP - 26;
    return (end) => AXIS + STRIP - 6 - (high > low ? (end - low) / (high - low) : 0.5) * room;
  }

  function drawStrip(pen, width, from, until) {
    pen.fillStyle = colours.panel;
    pen.fillRect(0, AXIS, width, STRIP);
    const shown = thinned(points(from, until));
    if (data.queues[queue]) {
      pen.fillStyle = colours.soft;
      const text = "visible end, " + data.queues[queue].name + (shown.length ? "" : ": not told here");
      pen.fillText(fitted(pen, text, width - 2 * PAD), PAD, AXIS + 12);
    }
    if (!shown.length) return;
    const yOf = stripScale(shown);
    pen.strokeStyle = colours.end;
    pen.lineWidth = 2;
    pen.beginPath();
    shown.forEach((point, at) => {
      const x = xOf(point[0]);
      if (at === 0) pen.moveTo(x, yOf(point[1])); else pen.lineTo(x, yOf(shown[at - 1][1]));
      pen.lineTo(x, yOf(point[1]));
    });
    pen.lineTo(width, yOf(shown[shown.length - 1][1]));
    pen.stroke();
    let free = PAD;
    pen.fillStyle = colours.text;
    for (const point of shown) {
      const text = String(point[1]), x = Math.max(xOf(point[0]) + 3, PAD);
      if (x < free) continue;
      const room = pen.measureText(text).width;
      if (x + room > width) continue;
      pen.fillText(text, x, Math.max(yOf(point[1]) - 3, AXIS + 23));
      free = x + room + 6;
    }
  }

  function drawAxis(pen, width, from, until) {
    pen.fillStyle = colours.back;
    pen.fillRect(0, 0, width, AXIS);
    const step = nice(Math.max((until - from) / Math.max(width / 90, 1), 1e-6));
    const digits = Math.max(0, -Math.floor(Math.log10(step / 1000)));
    pen.fillStyle = colours.text;
    for (let ms = Math.ceil(from / step) * step; ms <= until; ms += step) {
      const x = xOf(ms), text = (ms / 1000).toFixed(Math.min(digits, 6)) + " s";
      pen.fillRect(x, AXIS - 4, 1, 4);
      if (x >= 0 && x + 3 + pen.measureText(text).width < width) pen.fillText(text, x + 3, 12);
    }
    for (const mark of data.marks) {
      const left = xOf(mark.start), right = xOf(mark.end);
      if (right < 0 || left > width) continue;
      pen.fillStyle = mark.verdict === "violated" ? colours.over : colours.perhaps;
      pen.fillRect(left, AXIS - 3, Math.max(right - left, 3), 3);
    }
  }

  function redraw() {
    if (!asked) { asked = true; requestAnimationFrame(draw); }
  }

  function layOut() {
    scale = Math.min(Math.max(scale, least()), most());
    spacer.style.width = Math.max(2 * PAD + span * scale, 1) + "px";
    spacer.style.height = TOP + lanesHeight + "px";
  }

  function zoom(times, x) {
    sync();
    const at = x ?? lanes.clientWidth / 2, ms = msOf(at);
    scale *= times;
    layOut();
    lanes.scrollLeft = PAD + ms * scale - at;
    redraw();
  }

  function look(from, until, row) {
    const length = Math.max(until - from, 0.01);
    scale = (lanes.clientWidth - 2 * PAD) / (length * 1.3);
    layOut();
    lanes.scrollLeft = PAD + (from - length * 0.15) * scale;
    const y = tops[row] ?? 0, room = lanes.clientHeight - TOP;
    lanes.scrollTop = Math.max(y - room / 2, 0);
    redraw();
  }

  function choose(number, line, follows) {
    chosen = number;
    const bar = bars[number];
    queue = bar.queue;
    chosenLine = line ?? -1;
    tell([`request ${bar.request}, ${data.queues[bar.queue].name}: ${bar.told}; `
      + `${bar.answered ? "answered" : "open"} after at most ${time(bar.end - bar.asked[0])}`], bar.lines);
    if (follows) look(bar.asked[0], bar.end, bar.row);
    redraw();
  }

  function tell(sentences, lines) {
    const heading = document.createElement("p");
    heading.textContent = sentences.join(" ");
    const all = document.createElement("ol");
    all.className = "lines";
    for (const number of lines) {
      const item = document.createElement("li"), code = document.createElement("code");
      code.textContent = data.lines[number];
      if (number === chosenLine) item.className = "chosen";
      item.append(code);
      all.append(item);
    }
    record.replaceChildren(heading, all);
  }

  // The event of a bar that is nearest to a moment: its receipt, its hold, or its answer.
  function nearest(bar, ms) {
    const moments = [bar.asked[0]];
    if (bar.held !== null) moments.push(bar.held);
    if (bar.answered) moments.push(bar.end);
    let best = 0;
    moments.forEach((moment, at) => { if (Math.abs(moment - ms) < Math.abs(moments[best] - ms)) best = at; });
    return best === moments.length - 1 && bar.answered ? bar.lines[bar.lines.length - 1] : bar.lines[best];
  }

  function hit(x, y) {
    const ms = msOf(x), reach = 6 / scale;
    if (y < TOP) return;
    const row = tops.findIndex((top) => { const at = TOP + top - lanes.scrollTop; return y >= at && y < at + ROW; });
    const numbers = rows[row] || [];
    let best = -1, distance = Infinity;
    for (let at = firstOf(numbers, ms - reach); at < numbers.length; at++) {
      const bar = bars[numbers[at]];
      if (bar.asked[0] > ms + reach) break;
      const away = Math.max(bar.asked[0] - ms, ms - bar.end, 0);
      if (away < distance) { distance = away; best = numbers[at]; }
    }
    if (best >= 0) choose(best, nearest(bars[best], ms), false);
  }

  function hitStrip(x) {
    const shown = points(msOf(0), msOf(lanes.clientWidth));
    let best = null;
    for (const point of shown) {
      if (!best || Math.abs(xOf(point[0]) - x) < Math.abs(xOf(best[0]) - x)) best = point;
    }
    if (!best) return;
    chosen = -1;
    chosenLine = best[2];
    tell([`visible end ${best[1]} of ${data.queues[queue].name}, at the latest at ${time(best[0])}`], [best[2]]);
    redraw();
  }

  function showFinding(number) {
    if (!data.marks.length) return;
    finding = (number + data.marks.length) % data.marks.length;
    const at = bars.findIndex((bar) => bar.finding === finding);
    if (at >= 0) choose(at, undefined, true);
    else look(data.marks[finding].start, data.marks[finding].end, 0);
  }

  // ---- Latency over time ----

  const took = (bar) => Math.max(bar.end - bar.asked[0], 0.001);

  function plotScales() {
    const width = plot.clientWidth, height = 190;
    let high = 1, low = Infinity;
    for (const bar of bars) { high = Math.max(high, took(bar)); low = Math.min(low, took(bar)); }
    const bottom = Math.floor(Math.log10(Math.min(low, high / 10))), top = Math.log10(high) + 0.1;
    const x = (ms) => 48 + ms / span * (width - 60);
    const y = (ms) => height - 22 - (Math.log10(ms) - bottom) / (top - bottom) * (height - 34);
    return { width, height, bottom, top, x, y };
  }

  function drawLatency() {
    const to = plotScales();
    const pen = context(plot.querySelector("canvas"), to.width, to.height);
    for (let power = to.bottom; power <= to.top; power++) {
      const y = to.y(10 ** power);
      pen.fillStyle = colours.line;
      pen.fillRect(48, y, to.width - 60, 1);
      pen.fillStyle = colours.soft;
      pen.fillText((10 ** power).toLocaleString("en", { maximumFractionDigits: 3 }), 4, y + 4);
    }
    const step = nice(span / Math.max(to.width / 120, 1));
    for (let ms = 0; ms <= span; ms += step) {
      const text = Number((ms / 1000).toPrecision(6)) + " s", x = to.x(ms);
      if (x + pen.measureText(text).width < to.width) pen.fillText(text, x, to.height - 6);
    }
    for (const mark of data.marks) {
      pen.fillStyle = mark.verdict === "violated" ? colours.over : colours.perhaps;
      pen.globalAlpha = 0.25;
      pen.fillRect(to.x(mark.start), 8, Math.max(to.x(mark.end) - to.x(mark.start), 1), to.height - 30);
      pen.globalAlpha = 1;
    }
    pen.fillStyle = colours.sure;
    for (const bar of bars) if (bar.finding < 0) pen.fillRect(to.x(bar.asked[0]) - 1, to.y(took(bar)) - 1, 2.5, 2.5);
    for (const bar of bars) {
      if (bar.finding < 0) continue;
      pen.fillStyle = bar.verdict === "violated" ? colours.over : colours.perhaps;
      pen.fillRect(to.x(bar.asked[0]) - 4, to.y(took(bar)) - 4, 8, 8);
    }
  }

  function hitLatency(x, y) {
    const to = plotScales();
    let best = -1, distance = 24;
    bars.forEach((bar, number) => {
      const away = Math.hypot(to.x(bar.asked[0]) - x, to.y(took(bar)) - y) - (bar.finding >= 0 ? 6 : 0);
      if (away < distance) { distance = away; best = number; }
    });
    if (best >= 0) choose(best, undefined, true);
  }

  // ---- The same as text: only the rows in view are in the document ----

  const rowgroup = list.querySelector(".spacer");
  const shownRows = new Map();
  let listAsked = false;

  function makeRow(number) {
    const bar = bars[number], row = document.createElement("div");
    row.setAttribute("role", "row");
    row.setAttribute("aria-rowindex", number + 1);
    row.tabIndex = 0;
    row.dataset.number = number;
    row.className = bar.verdict;
    row.style.top = number * LIST_ROW + "px";
    const letters = Math.floor((list.clientWidth - 24) / LETTER);
    const name = data.queues[bar.queue].name;
    const said = bar.finding >= 0 ? `${data.marks[bar.finding].name}, ` : "";
    const lines = [`${time(bar.asked[0])}  ${name}  ${bar.request}`,
      `${said}${bar.told}, ${bar.answered ? "" : "open "}${time(bar.end - bar.asked[0])}`];
    for (const line of lines) {
      const cell = document.createElement("span");
      cell.setAttribute("role", "cell");
      cell.setAttribute("aria-label", line);
      cell.textContent = fit(line, letters);
      row.append(cell);
    }
    return row;
  }

  function drawList() {
    listAsked = false;
    const first = Math.max(Math.floor(list.scrollTop / LIST_ROW) - 4, 0);
    const last = Math.min(Math.ceil((list.scrollTop + list.clientHeight) / LIST_ROW) + 4, bars.length);
    for (const [number, row] of shownRows) {
      if (number < first || number >= last) { row.remove(); shownRows.delete(number); }
    }
    for (let number = first; number < last; number++) {
      if (shownRows.has(number)) continue;
      const row = makeRow(number);
      shownRows.set(number, row);
      rowgroup.append(row);
    }
  }

  // ---- What a reader does ----

  const doings = {
    first: () => showFinding(firstMark()), next: () => showFinding(finding + 1), previous: () => showFinding(finding - 1),
    in: () => zoom(2), out: () => zoom(0.5), all: () => { scale = 0; layOut(); lanes.scrollLeft = 0; redraw(); },
  };
  const firstMark = () => Math.max(data.marks.findIndex((mark) => mark.verdict === "violated"), 0);

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button"), row = event.target.closest("#pulls [role=row]");
    if (button && button.dataset.do) doings[button.dataset.do]();
    if (button && button.dataset.finding) {
      showFinding(Number(button.dataset.finding));
      document.getElementById("timeline").scrollIntoView();
    }
    if (row) choose(Number(row.dataset.number), undefined, true);
  });
  list.addEventListener("keydown", (event) => {
    const row = event.target.closest("[role=row]");
    if (row && event.key === "Enter") choose(Number(row.dataset.number), undefined, true);
  });
  lanes.addEventListener("click", (event) => {
    const box = canvas.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
    sync();
    if (y >= AXIS && y < TOP) hitStrip(x); else hit(x, y);
  });
  plot.addEventListener("click", (event) => {
    const box = plot.getBoundingClientRect();
    hitLatency(event.clientX - box.left, event.clientY - box.top);
  });
  lanes.addEventListener("wheel", (event) => {
    if (!event.ctrlKey) return;
    event.preventDefault();
    zoom(event.deltaY < 0 ? 1.25 : 0.8, event.clientX - canvas.getBoundingClientRect().left);
  }, { passive: false });
  lanes.addEventListener("scroll", redraw, { passive: true });
  list.addEventListener("scroll", () => {
    if (!listAsked) { listAsked = true; requestAnimationFrame(drawList); }
  }, { passive: true });

  function drawAll() {
    readColours();
    laid.scale = 0;
    layOut();
    draw();
    drawLatency();
    shownRows.forEach((row) => row.remove());
    shownRows.clear();
    rowgroup.style.height = bars.length * LIST_ROW + "px";
    drawList();
  }

  window.addEventListener("resize", () => requestAnimationFrame(drawAll));
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  for (const [name, prints] of [["beforeprint", true], ["afterprint", false]]) {
    window.addEventListener(name, () => {
      document.documentElement.classList.toggle("printing", prints);
      drawAll();
    });
  }
  scale = 0;
  drawAll();
  if (data.marks.length) showFinding(firstMark()); else if (bars.length) look(0, Math.min(span, 2000), 0);
})();
