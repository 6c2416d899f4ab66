// When the server ends by itself it is started again, but not for ever: what ends at once is nearly always a wrong Python.

import { CloseAction, type CloseHandlerResult, ErrorAction, type ErrorHandler, type ErrorHandlerResult } from "vscode-languageclient/node";

const CRASHES = 5;
const WINDOW_MS = 3 * 60_000;

/** Restarts the server up to four times in three minutes, then calls `giveUp`. */
export class Crashes implements ErrorHandler {
  private times: number[] = [];

  constructor(
    private readonly giveUp: () => void,
    private readonly now: () => number = Date.now,
  ) {}

  /** The server was started by the user: earlier crashes count no more. */
  forget(): void {
    this.times = [];
  }

  error(): ErrorHandlerResult {
    return { action: ErrorAction.Continue, handled: true };
  }

  closed(): CloseHandlerResult {
    const now = this.now();
    this.times = [...this.times.filter((time) => now - time < WINDOW_MS), now];
    if (this.times.length < CRASHES) return { action: CloseAction.Restart, handled: true };
    this.giveUp();
    return { action: CloseAction.DoNotRestart, handled: true };
  }
}
