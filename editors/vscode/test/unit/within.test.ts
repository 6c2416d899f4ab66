// A limit on a wait.

import assert from "node:assert/strict";
import { test } from "node:test";
import { within } from "../../src/server/within";

test("what comes in time is given, also where it fails", async () => {
  assert.equal(await within(1000, Promise.resolve(3)), 3);
  await assert.rejects(within(1000, Promise.reject(new Error("it broke"))), /it broke/);
});

test("what never comes is told in words", async () => {
  await assert.rejects(within(50, new Promise(() => undefined)), /it did not answer within 0.05 seconds/);
});
