// What the tree says in words: labels, verdicts, sentences for readers that hear it. Nothing of VS Code is needed here.

import type { CandidateRow, Node, RoundRow, Run, RunLine } from "./model";

export interface Icon {
  readonly id: string;
  readonly color?: string;
}

const PASSED = "testing.iconPassed";
const FAILED = "testing.iconFailed";
/** The state of a candidate that is right as far as it was looked at. */
const SLOWER = "slower";
const AT_WORK: Icon = { id: "sync~spin" };
const SPACES: Readonly<Record<string, string>> = {
  cuda: "own CUDA kernels", cuda_libs: "CUDA libraries", cuda_libs_torch: "CUDA libraries and PyTorch operators",
};

/** What came out of a run. */
export function verdict(run: RunLine): string {
  if (run.at_work) return run.judged === 0 ? "at work" : `at work, ${outcome(run)}`;
  const end = run.complete ? "" : run.stop_reason === "" ? "interrupted, " : `${run.stop_reason}, `;
  return `${end}${outcome(run)}`;
}

function outcome(run: RunLine): string {
  if (run.best === null) return "nothing accepted";
  if (run.speedup === null) return "verified, not measured";
  if (!run.faster) return "nothing faster";
  // What was cut short or is at work was not confirmed yet, which goes without saying.
  return `${times(run.speedup)}${run.confirmed || !run.complete ? "" : " (not confirmed)"}`;
}

export function runIcon(run: RunLine): Icon {
  if (run.at_work) return AT_WORK;
  if (!run.complete) return { id: "debug-pause" };
  if (run.best === null) return { id: "error", color: FAILED };
  if (run.faster) return { id: "rocket", color: PASSED };
  return run.speedup === null ? { id: "pass" } : { id: "circle-slash" };
}

/** The kernel's name, or the file's where the run ended before it was known. */
export function runLabel(run: RunLine): string {
  return run.name !== "" ? run.name : (run.file.split("/").pop() ?? "") || run.run;
}

export function roundLabel(round: RoundRow): string {
  return round.round === 0 ? "Your kernel" : `Round ${round.round}`;
}

/** `cuda, direction M`. */
export function roundDescription(round: RoundRow): string {
  return [round.space, round.direction === "" ? "" : `direction ${round.direction}`].filter((text) => text !== "").join(", ");
}

export function candidateLabel(candidate: CandidateRow): string {
  const title = candidate.title === "" ? candidate.id : candidate.title;
  return candidate.number === 0 ? title : `${candidate.number} ${title}`;
}

/** Speed-up or fate, then space and direction. */
export function candidateDescription(candidate: CandidateRow): string {
  const fate = candidate.speedup !== null && candidate.accepted ? times(candidate.speedup) : candidate.state;
  return [candidate.best && candidate.speedup !== null ? `best, ${fate}` : fate, candidate.space, candidate.direction]
    .filter((text) => text !== "").join(" · ");
}

export function candidateIcon(run: Run, candidate: CandidateRow): Icon {
  if (candidate.state === "not judged") return run.at_work ? AT_WORK : { id: "circle-outline" };
  if (candidate.state === SLOWER) return { id: "circle-slash" };
  if (!candidate.accepted) return { id: "error", color: FAILED };
  return { id: candidate.best && candidate.speedup !== null ? "pass-filled" : "pass", color: PASSED };
}

/** What a candidate is, in sentences. */
export function candidateSentences(candidate: CandidateRow): string[] {
  const { ci95, speedup, median_us, estimate_us } = candidate;
  const found = [`Candidate ${candidate.id} by ${candidate.author}, ${spaceWords(candidate.space)}`
    + (candidate.direction === "" ? "" : `, direction ${candidate.direction}`), `State: ${candidate.state}`];
  if (candidate.why !== "") found.push(`Not accepted: ${candidate.why}`);
  if (speedup !== null && ci95 !== null && median_us !== null) {
    found.push(`${times(speedup)} [${ci95[0].toFixed(2)}, ${ci95[1].toFixed(2)}] over eager, ${median_us.toPrecision(4)} us (measured${candidate.state === SLOWER ? " briefly" : ""})`);
  } else if (estimate_us !== null) {
    found.push(`${estimate_us.toPrecision(4)} us (estimated, not measured)`);
  } else {
    found.push("Not measured");
  }
  return found;
}

/** Why a round went where it went. */
export function roundSentences(round: RoundRow): string[] {
  const scores = Object.entries(round.scores).sort(([, a], [, b]) => b[0] - a[0])
    .map(([code, [score, reason]]) => `${code} ${score}: ${reason}`);
  const by = round.author === "" || round.author === "expert" || round.author === "none" ? [] : [`Planned by ${round.author}`];
  return [round.space_reason, round.reason, ...by, ...scores].filter((text) => text !== "");
}

export function runSentences(run: RunLine): string[] {
  const where = run.measured ? `Measured on ${run.device}` : run.device === "" ? "" : `Not measured; written for ${run.device}`;
  return [
    `${runLabel(run)}: ${verdict(run)}`,
    run.symbol === "" ? run.file : `${run.file}::${run.symbol}`,
    `${run.accepted} of ${run.judged} judged candidates accepted, ${run.written} written`,
    where, run.stop_reason === "" ? "" : `Ended: ${run.stop_reason}, after ${run.wall_s.toFixed(0)} s`, `Run ${run.run}`,
  ].filter((text) => text !== "");
}

/** What menus ask of a node: its kind, then what there is to open. */
export function contextOf(node: Node): string {
  switch (node.kind) {
    case "run":
      return ["run", node.line.resumable ? "resumable" : "", node.line.at_work ? "working" : "deletable", node.line.uri === null ? "" : "file"]
        .filter((word) => word !== "").join(" ");
    case "round":
      return node.round.conversation === null ? "round" : "round prompt";
    case "candidate": {
      const { accepted, conversation, counters, log, parent } = node.candidate;
      return ["candidate", accepted && node.run.uri !== null ? "accepted" : "", node.run.uri === null ? "" : "original",
        parent === null ? "" : "parent", conversation === null ? "" : "prompt", log === null ? "" : "log",
        counters === null ? "" : "counters"].filter((word) => word !== "").join(" ");
    }
    case "more":
      return "more";
  }
}

/** When a run began, from its id; undefined where that says nothing. */
export function startedAt(run: string): Date | undefined {
  const found = /^(\d{4})(\d\d)(\d\d)-(\d\d)(\d\d)(\d\d)-/.exec(run)?.slice(1).map(Number);
  if (found === undefined) return undefined;
  const [year = 0, month = 1, day = 1, hour, minute, second] = found;
  return new Date(year, month - 1, day, hour, minute, second);
}

/** A short word for a time: of today the hour, else the day. */
export function when(time: Date | undefined, now: Date): string {
  if (time === undefined) return "";
  if (time.toDateString() === now.toDateString()) return time.toLocaleTimeString(undefined, { hour: "2-digit", minute: "2-digit" });
  const year: Intl.DateTimeFormatOptions = time.getFullYear() === now.getFullYear() ? {} : { year: "numeric" };
  return time.toLocaleDateString(undefined, { day: "numeric", month: "short", ...year });
}

function times(speedup: number): string {
  return `${speedup.toFixed(2)}x`;
}

function spaceWords(space: string): string {
  return SPACES[space] === undefined ? space : `${space} (${SPACES[space]})`;
}
