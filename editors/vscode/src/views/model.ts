// What the server says of stored runs (hiera_lsp/run_commands.py, features/runs.py).

/** A run in the list. */
export interface RunLine {
  readonly run: string;
  readonly file: string;
  readonly symbol: string;
  readonly name: string;
  readonly agent: string;
  readonly device: string;
  readonly measured: boolean;
  readonly written: number;
  readonly judged: number;
  readonly accepted: number;
  readonly planned: number;
  readonly best: string | null;
  readonly speedup: number | null;
  readonly ci95: readonly [number, number] | null;
  readonly faster: boolean;
  readonly confirmed: boolean;
  readonly stop_reason: string;
  readonly complete: boolean;
  readonly wall_s: number;
  readonly at_work: boolean;
  readonly resumable: boolean;
  /** The user's file; null where it is gone. */
  readonly uri: string | null;
}

export interface RunPage {
  readonly runs: readonly RunLine[];
  readonly more: boolean;
}

/** A round; 0 is the user's own kernel. */
export interface RoundRow {
  readonly round: number;
  readonly space: string;
  readonly space_reason: string;
  readonly direction: string;
  readonly reason: string;
  readonly author: string;
  readonly scores: Readonly<Record<string, readonly [number, string]>>;
  readonly conversation: string | null;
}

/** A candidate. What there is to read of it are URIs of virtual documents. */
export interface CandidateRow {
  readonly id: string;
  readonly number: number;
  readonly round: number;
  readonly space: string;
  readonly direction: string;
  readonly title: string;
  readonly author: string;
  readonly state: string;
  readonly accepted: boolean;
  readonly why: string;
  readonly rejected_at: string;
  readonly best: boolean;
  readonly median_us: number | null;
  readonly speedup: number | null;
  readonly ci95: readonly [number, number] | null;
  readonly estimate_us: number | null;
  readonly source: string;
  readonly parent: string | null;
  readonly log: string | null;
  readonly counters: string | null;
  readonly conversation: string | null;
}

/** A whole run. */
export interface Run extends RunLine {
  /** It is the result that can be reviewed and accepted now. */
  readonly reviewable: boolean;
  readonly rounds: readonly RoundRow[];
  readonly candidates: readonly CandidateRow[];
}

/** A report's parts. */
export interface ReportPage {
  readonly run: string;
  readonly title: string;
  readonly style: string;
  readonly body: string;
  readonly finished: boolean;
}

/** What stands in the tree. */
export type Node =
  | { readonly kind: "run"; readonly line: RunLine }
  | { readonly kind: "round"; readonly run: Run; readonly round: RoundRow }
  | { readonly kind: "candidate"; readonly run: Run; readonly candidate: CandidateRow }
  | { readonly kind: "more" };
