// When the server ends by itself it is started again, but not for ever: what ends at once is nearly always a wrong Python.

import { CloseAction, type CloseHandlerResult, ErrorAction, type ErrorHandler, type ErrorHandlerResult } from "vscode-languageclient/node";

const CRASHES = 5;
const WINDOW_MS = 3 * 60_000;

/** Restarts a server that has run, up to four times in three minutes; then calls `giveUp`. */
export class Crashes implements ErrorHandler {
  private times: number[] = [];
  private hasRun = false;

  constructor(
    private readonly giveUp: () => void,
    private readonly now: () => number = Date.now,
  ) {}

  /** A new server is started on purpose: what earlier ones did counts no more. */
  forget(): void {
    this.times = [];
    this.hasRun = false;
  }

  /** It answered: from now on an end is a crash. */
  ran(): void {
    this.hasRun = true;
  }

  error(): ErrorHandlerResult {
    return { action: ErrorAction.Continue, handled: true };
  }

  closed(): CloseHandlerResult {
    // A server that never answered will not do so the next time; whoever started it hears of it.
    if (!this.hasRun) return { action: CloseAction.DoNotRestart, handled: true };
    const now = this.now();
    this.times = [...this.times.filter((time) => now - time < WINDOW_MS), now];
    if (this.times.length < CRASHES) return { action: CloseAction.Restart, handled: true };
    this.giveUp();
    return { action: CloseAction.DoNotRestart, handled: true };
  }
}
