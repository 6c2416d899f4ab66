// The server's progress of a job as a notification with Cancel; VS Code's own way would be a silent item in the status bar.

import * as vscode from "vscode";
import type { Progress } from "../server/middleware";

const TOKEN = /^hiera-job-\d+$/;

interface Shown {
  readonly progress: vscode.Progress<{ message?: string; increment?: number }>;
  readonly close: () => void;
  percentage: number;
}

export class JobProgress {
  private readonly shown = new Map<string, Shown>();

  /** @param cancel Asks the server to end a job. */
  constructor(private readonly cancel: (jobId: string) => void) {}

  /** True for progress of a job, which is shown here. */
  take(token: number | string, value: Progress): boolean {
    if (typeof token !== "string" || !TOKEN.test(token)) return false;
    if (value.kind === "begin") this.open(token, value.title, value.message);
    else if (value.kind === "report") this.report(token, value.message, value.percentage);
    else this.close(token);
    return true;
  }

  /** Closes what is shown of every job. */
  closeAll(): void {
    for (const token of [...this.shown.keys()]) this.close(token);
  }

  private open(token: string, title: string, message: string | undefined): void {
    const options = { location: vscode.ProgressLocation.Notification, title, cancellable: true };
    void vscode.window.withProgress(options, (progress, cancelled) => {
      cancelled.onCancellationRequested(() => {
        this.cancel(token);
      });
      return new Promise<void>((resolve) => {
        this.shown.set(token, { progress, close: resolve, percentage: 0 });
        this.report(token, message, 0);
      });
    });
  }

  private report(token: string, message: string | undefined, percentage: number | undefined): void {
    const shown = this.shown.get(token);
    if (shown === undefined) return;
    const increment = Math.max(0, (percentage ?? shown.percentage) - shown.percentage);
    shown.percentage += increment;
    shown.progress.report({ increment, ...(message === undefined ? {} : { message }) });
  }

  private close(token: string): void {
    this.shown.get(token)?.close();
    this.shown.delete(token);
  }
}
