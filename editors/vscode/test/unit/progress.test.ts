// The notification of a job: VS Code shows it some time after it was asked to.

import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { JobProgress } from "../../src/jobs/progress";
import { shown } from "./vscode";

const SLOW_MS = 20;
const JOB = "hiera-job-1";

beforeEach(() => {
  shown.progresses.length = 0;
  shown.progressMs = SLOW_MS;
});

test("a job that ends before its notification is shown leaves none behind", async () => {
  const progress = new JobProgress(() => undefined);
  progress.take(JOB, { kind: "begin", title: "Optimize kernel Block" });
  progress.take(JOB, { kind: "end" });
  await sleep(3 * SLOW_MS);

  assert.deepEqual(shown.progresses.map(({ title, closed }) => [title, closed]), [["Optimize kernel Block", true]]);
});

test("what was reported before the notification is shown is in it", async () => {
  const progress = new JobProgress(() => undefined);
  progress.take(JOB, { kind: "begin", title: "Optimize kernel Block", message: "starting" });
  progress.take(JOB, { kind: "report", message: "round 1", percentage: 30 });
  await sleep(3 * SLOW_MS);
  progress.take(JOB, { kind: "report", percentage: 50 });
  progress.take(JOB, { kind: "report", message: "round 2", percentage: 40 });

  assert.deepEqual(shown.progresses[0]?.reports, [
    { message: "round 1", increment: 30 }, { message: "round 1", increment: 20 }, { message: "round 2", increment: 0 },
  ]);
});

test("progress of others is left to VS Code", () => {
  assert.equal(new JobProgress(() => undefined).take("other", { kind: "begin", title: "Index" }), false);
});
