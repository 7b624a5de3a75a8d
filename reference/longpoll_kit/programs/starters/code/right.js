// A hold table: pulls wait here until a message comes or their time is up. Speaks the protocol of `longpoll dojo`.
"use strict";
const readline = require("node:readline");
const fs = require("node:fs");

class Table {
  now_ms = 0;
  logs = new Map(); // queue -> its messages
  held = []; // the pulls that wait
  closed = new Set(); // connections
  paused = new Map(); // id -> a handler that waits at a step point

  *pull(pull) {
    pull.deadline_ms = this.now_ms + pull.wait_ms;
    if (this.look(pull)) return;
    yield "between_check_and_hold";
    if (this.closed.has(pull.connection)) return;
    this.held.push(pull);
    yield "between_hold_and_recheck";
    this.wake(pull.queue); // a message that came before the hold woke no pull
  }

  *arrive(message) {
    this.log(message.queue).push(message.message);
    yield "between_append_and_wake";
    this.wake(message.queue);
  }

  *tick() {
    this.held = this.held.filter((pull) => !this.look(pull));
  }

  *close(message) {
    this.closed.add(message.connection);
    this.held = this.held.filter((pull) => pull.connection !== message.connection);
  }

  wake(queue) {
    this.held = this.held.filter((pull) => pull.queue !== queue || !this.look(pull));
  }

  // Answer a pull, if there is something for it or its time is up.
  look(pull) {
    const messages = this.log(pull.queue).slice(pull.offset);
    if (messages.length === 0 && this.now_ms < pull.deadline_ms) return false;
    say({ answer: pull.id, messages, offset_next: pull.offset + messages.length });
    return true;
  }

  log(queue) {
    if (!this.logs.has(queue)) this.logs.set(queue, []);
    return this.logs.get(queue);
  }
}

const say = (line) => fs.writeSync(1, JSON.stringify(line) + "\n");

let table = new Table();
readline.createInterface({ input: process.stdin }).on("line", (line) => {
  const message = JSON.parse(line);
  const { type, id } = message;
  if (type === "reset") table = new Table();
  table.now_ms = message.now_ms;
  if (type !== "go" && type !== "reset") table.paused.set(id, table[type](message));
  const step = table.paused.get(id)?.next() ?? { done: true };
  if (step.done) table.paused.delete(id);
  say(step.done ? { done: id } : { at: step.value, id });
});
