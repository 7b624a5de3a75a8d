// How a unit test of a hold table asks the law: LAW names a file of rocketmq-4.9.

import assert from "node:assert/strict";
import test from "node:test";

import { Law } from "./law.mjs";

const law = new Law(process.env.LAW);

test("a message between read and insert is a lost wakeup", () => {
  const oracle = law.oracle();
  assert.deepEqual(oracle.did("next_pull", 0), []);
  assert.deepEqual(oracle.did("pull_read", 0), []);
  for (const step of ["append", "make_visible", "notify_start", "notify_end"]) assert.deepEqual(oracle.did(step), []);
  assert.deepEqual(oracle.did("hold", 0), []);
  assert.deepEqual(oracle.broken(), ["no_lost_wakeup", "woken_within"]);
});

test("a hold of what has not missed is refused", () => {
  const oracle = law.oracle();
  assert.deepEqual(oracle.did("hold", 0), ["phase_0 = PHASE_MISSED"]);
  assert.deepEqual(oracle.may(), ["append", "next_pull(0)", "next_pull(1)", "tick", "stop"]);
  assert.throws(() => oracle.did("hold", 9), /no action hold\(9\)/);
});
