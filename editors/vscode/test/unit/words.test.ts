// What the runs view says: no speed where none was measured, the fate of each candidate, what menus are offered.

import assert from "node:assert/strict";
import { test } from "node:test";
import type { CandidateRow, RoundRow, Run, RunLine } from "../../src/views/model";
import * as words from "../../src/views/words";

const LINE: RunLine = {
  run: "20260102-030405-Block-abcd", file: "/p/model.py", symbol: "Block", name: "block", agent: "expert", device: "Test GPU",
  measured: true, written: 7, judged: 7, accepted: 5, planned: 3, best: "c1", speedup: 2.6, ci95: [2.5, 2.7], faster: true,
  confirmed: true, stop_reason: "budget", complete: true, wall_s: 12, at_work: false, resumable: false, uri: "file:///p/model.py",
};
const CANDIDATE: CandidateRow = {
  id: "c1", number: 4, round: 2, space: "cuda", direction: "M", title: "wide loads", author: "expert", state: "confirmed",
  accepted: true, why: "", rejected_at: "", best: true, median_us: 38.46, speedup: 2.6, ci95: [2.5, 2.7], estimate_us: null,
  source: "hiera-candidate:/r/c1/block.cu", parent: null, log: null, counters: null, conversation: null,
};
const ROUND: RoundRow = {
  round: 2, space: "cuda", space_reason: "own kernels", direction: "M", reason: "DRAM is busy", author: "some-model",
  scores: { C: [2, "few branches"], M: [8.5, "narrow loads"] }, conversation: null,
};
const RUN: Run = { ...LINE, reviewable: false, rounds: [ROUND], candidates: [CANDIDATE] };

const UNMEASURED: Partial<RunLine> = { measured: false, speedup: null, ci95: null, faster: false, confirmed: false };

const VERDICTS: readonly (readonly [string, Partial<RunLine>, string])[] = [
  ["2.60x", {}, "rocket"],
  ["2.60x (not confirmed)", { confirmed: false }, "rocket"],
  ["nothing faster", { faster: false, speedup: 1.01 }, "circle-slash"],
  ["verified, not measured", UNMEASURED, "pass"],
  ["nothing accepted", { best: null, speedup: null, faster: false }, "error"],
  ["cancelled, 2.60x", { complete: false, stop_reason: "cancelled" }, "debug-pause"],
  ["interrupted, verified, not measured", { ...UNMEASURED, complete: false, stop_reason: "" }, "debug-pause"],
  ["at work", { at_work: true, judged: 0, best: null }, "sync~spin"],
  ["at work, 2.60x", { at_work: true, complete: false }, "sync~spin"],
];

for (const [said, change, icon] of VERDICTS) {
  test(`a run: ${said}`, () => {
    const run = { ...LINE, ...change };

    assert.equal(words.verdict(run), said);
    assert.equal(words.runIcon(run).id, icon);
  });
}

test("where nothing was measured no sentence holds a speed-up", () => {
  const run = { ...LINE, ...UNMEASURED };
  const candidate = { ...CANDIDATE, state: "verified", median_us: null, speedup: null, ci95: null, estimate_us: 40 };
  const said = [...words.runSentences(run), words.candidateDescription(candidate), ...words.candidateSentences(candidate)].join("\n");

  assert.match(said, /Not measured; written for Test GPU/);
  assert.match(said, /40.00 us \(estimated, not measured\)/);
  assert.doesNotMatch(said, /\d\.\d+x|best/);
  assert.equal(words.candidateIcon({ ...RUN, ...UNMEASURED }, candidate).id, "pass");
});

test("a candidate says its speed and place, or its fate and why", () => {
  const bad = { ...CANDIDATE, accepted: false, best: false, state: "rejected", why: "line 3: no such type" };

  assert.equal(words.candidateLabel(CANDIDATE), "4 wide loads");
  assert.equal(words.candidateDescription(CANDIDATE), "best, 2.60x · cuda · M");
  assert.ok(words.candidateSentences(CANDIDATE).includes("2.60x [2.50, 2.70] over eager, 38.46 us (measured)"));
  assert.equal(words.candidateDescription(bad), "rejected · cuda · M");
  assert.ok(words.candidateSentences(bad).includes("Not accepted: line 3: no such type"));
  assert.equal(words.candidateIcon(RUN, bad).id, "error");
  assert.equal(words.candidateLabel({ ...CANDIDATE, number: 0, title: "the file as it stands" }), "the file as it stands");
});

test("a candidate that was left as slower is no failure, and its time is a brief one", () => {
  const slower = { ...CANDIDATE, accepted: false, best: false, state: "slower", why: "2.60x where the best so far has 9.00x" };

  assert.equal(words.candidateDescription(slower), "slower · cuda · M");
  assert.equal(words.candidateIcon(RUN, slower).id, "circle-slash");
  assert.ok(words.candidateSentences(slower).includes("2.60x [2.50, 2.70] over eager, 38.46 us (measured briefly)"));
});

test("a candidate that waits turns only while its run is at work", () => {
  const waiting = { ...CANDIDATE, accepted: false, best: false, state: "not judged" };

  assert.equal(words.candidateIcon({ ...RUN, at_work: true }, waiting).id, "sync~spin");
  assert.equal(words.candidateIcon(RUN, waiting).id, "circle-outline");
});

test("a round says why, best direction first, and who planned it", () => {
  assert.equal(words.roundLabel(ROUND), "Round 2");
  assert.equal(words.roundLabel({ ...ROUND, round: 0 }), "Your kernel");
  assert.equal(words.roundDescription(ROUND), "cuda, direction M");
  assert.deepEqual(words.roundSentences(ROUND), [
    "own kernels", "DRAM is busy", "Planned by some-model", "M 8.5: narrow loads", "C 2: few branches",
  ]);
});

test("menus are offered for what there is", () => {
  const full = { ...CANDIDATE, parent: "a:", log: "a:", counters: "a:", conversation: "a:" };

  assert.equal(words.contextOf({ kind: "candidate", run: RUN, candidate: full }), "candidate accepted original parent prompt log counters");
  assert.equal(words.contextOf({ kind: "candidate", run: { ...RUN, uri: null }, candidate: CANDIDATE }), "candidate");
  assert.equal(words.contextOf({ kind: "run", line: LINE }), "run deletable file");
  assert.equal(words.contextOf({ kind: "run", line: { ...LINE, at_work: true, uri: null } }), "run working");
  assert.equal(words.contextOf({ kind: "run", line: { ...LINE, resumable: true } }), "run resumable deletable file");
  assert.equal(words.contextOf({ kind: "round", run: RUN, round: { ...ROUND, conversation: "a:" } }), "round prompt");
});

test("a run that ended before it had a name is called by its file", () => {
  assert.equal(words.runLabel({ ...LINE, name: "" }), "model.py");
  assert.equal(words.runLabel({ ...LINE, name: "", file: "" }), LINE.run);
});

test("when a run began stands in its id", () => {
  assert.deepEqual(words.startedAt(LINE.run), new Date(2026, 0, 2, 3, 4, 5));
  assert.equal(words.startedAt("run-Block"), undefined);
  assert.match(words.when(new Date(2026, 0, 2, 3, 4), new Date(2026, 0, 2, 9, 0)), /0?3.04/);
  assert.doesNotMatch(words.when(new Date(2026, 0, 2), new Date(2026, 5, 1)), /2026/);
  assert.match(words.when(new Date(2025, 0, 2), new Date(2026, 5, 1)), /2025/);
  assert.equal(words.when(undefined, new Date()), "");
});
