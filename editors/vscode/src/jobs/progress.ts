// The server's progress of a job as a notification with Cancel; VS Code's own way would be a silent item in the status bar.

import * as vscode from "vscode";
import type { Progress } from "../server/middleware";

const TOKEN = /^hiera-job-\d+$/;

interface Shown {
  /** Undefined until VS Code shows it, which is later than it was asked to: a short job has ended by then. */
  progress: vscode.Progress<{ message?: string; increment?: number }> | undefined;
  close: () => void;
  message: string | undefined;
  percentage: number;
  /** How much of `percentage` VS Code was told. */
  told: number;
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
    const shown: Shown = { progress: undefined, close: () => undefined, message, percentage: 0, told: 0 };
    const ended = new Promise<void>((resolve) => { shown.close = resolve; });
    this.shown.set(token, shown);
    const options = { location: vscode.ProgressLocation.Notification, title, cancellable: true };
    void vscode.window.withProgress(options, (progress, cancelled) => {
      cancelled.onCancellationRequested(() => {
        this.cancel(token);
      });
      shown.progress = progress;
      tell(shown);
      return ended;
    });
  }

  private report(token: string, message: string | undefined, percentage: number | undefined): void {
    const shown = this.shown.get(token);
    if (shown === undefined) return;
    shown.message = message ?? shown.message;
    shown.percentage = Math.max(shown.percentage, percentage ?? 0);
    tell(shown);
  }

  private close(token: string): void {
    this.shown.get(token)?.close();
    this.shown.delete(token);
  }
}

function tell(shown: Shown): void {
  const { message, percentage, told } = shown;
  shown.progress?.report({ increment: percentage - told, ...(message === undefined ? {} : { message }) });
  if (shown.progress !== undefined) shown.told = percentage;
}
