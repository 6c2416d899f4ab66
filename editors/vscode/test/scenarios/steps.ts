// What several scenarios do.

import type { Locator } from "playwright-core";
import type { Workbench } from "../harness/workbench";

/** A search on the CPU takes seconds, and minutes where everything else runs at the same time. */
export const SEARCH_MS = 300_000;

/** A kernel of a fixture: its file, its name and where the name stands. */
export interface Kernel {
  readonly file: string;
  readonly symbol: string;
  readonly line: number;
  readonly column: number;
}

export const BLOCK: Kernel = { file: "model.py", symbol: "Block", line: 5, column: 7 };
export const TWICE: Kernel = { file: "twice.cu", symbol: "twice", line: 5, column: 17 };

export function progress(vs: Workbench, kernel: Kernel): Locator {
  return vs.notification(`Optimize kernel ${kernel.symbol}`);
}

/** From the open folder to a search at work. */
export async function beginSearch(vs: Workbench, kernel: Kernel): Promise<void> {
  await vs.ready();
  await vs.open(kernel.file);
  await vs.goTo(kernel.line, kernel.column);
  await vs.takeAction(`Optimize kernel: ${kernel.symbol}`);
  await progress(vs, kernel).waitFor();
}

/** Waits for the end of the search, and for its result in the editor. */
export async function ended(vs: Workbench, kernel: Kernel): Promise<void> {
  await progress(vs, kernel).waitFor({ state: "hidden", timeout: SEARCH_MS });
  await vs.lens("HIERA: ").waitFor();
}

/** The same, with a candidate to accept. */
export async function offered(vs: Workbench, kernel: Kernel): Promise<void> {
  await ended(vs, kernel);
  await vs.lens("Accept").waitFor();
}

/** Opens the review from the offer's lens: the candidate beside what there is now. */
export async function review(vs: Workbench): Promise<void> {
  await vs.lens("Diff").click();
  await vs.page.locator(".editor-group-container.active .monaco-diff-editor").waitFor();
  await vs.titleButton("Accept Candidate").waitFor();
}
