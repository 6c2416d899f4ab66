// What the server's commands take and give (hiera_lsp/commands.py, command_results.py).

/** A class, function or kernel of a document. */
export interface Site {
  readonly uri: string;
  readonly symbol: string;
}

export interface RunningJob extends Site {
  readonly jobId: string;
  readonly line: string;
  readonly percentage: number;
  readonly run: string;
  readonly what: "optimize" | "reverify" | "profile";
}

export interface Candidate {
  readonly id: string;
  readonly round: number;
  readonly author: string;
  readonly title: string;
  readonly space: string;
  readonly direction: string;
  readonly state: string;
  readonly source: string;
  readonly accepted: boolean;
  readonly rejected: string;
  readonly median_us: number | null;
  readonly speedup: number | null;
  readonly ci95: readonly [number, number] | null;
}

export interface Summary {
  readonly run: string;
  readonly folder: string;
  readonly name: string;
  readonly measured: boolean;
  readonly device: string;
  readonly stop_reason: string;
  readonly candidates: readonly Candidate[];
  readonly best: string | null;
  readonly complete: boolean;
}

/** What `hiera.sites` says of one place in a document. */
export interface EditorSite extends Site {
  readonly kind: "module" | "function" | "cuda";
  readonly firstLine: number;
  readonly nameLine: number;
  readonly lastLine: number;
  readonly standing: "offered" | "accepted" | "stale" | null;
  /** True where the kernel is in the document's text. */
  readonly used: boolean;
  readonly chosen: string | null;
  readonly headline: string;
  readonly jobId: string | null;
}

export interface Result extends Site {
  readonly summary: Summary;
  readonly chosen: string | null;
  readonly state: "offered" | "accepted" | "discarded";
  readonly standing: "offered" | "accepted" | "discarded" | "stale";
  /** Why the chosen candidate is not worth accepting; empty where it is. */
  readonly no_gain: string;
  /** Ids of the candidates that can be chosen, in the order of `hiera.choose`. */
  readonly choices: readonly string[];
}

export interface Comparison {
  readonly left: string | null;
  readonly right: string;
  readonly source: string;
  readonly title: string;
}

export interface Applied {
  readonly applied: boolean;
  readonly reason?: string | null;
  /** The folder that the server wrote. */
  readonly folder?: string;
}

/** The scheme of candidates' texts: `hiera-candidate:/RUN/CANDIDATE/NAME.cu`. */
export const CANDIDATE_SCHEME = "hiera-candidate";
