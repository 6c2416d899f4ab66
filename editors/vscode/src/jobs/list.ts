// Jobs at work and results that wait, as a list to choose from.

import * as vscode from "vscode";
import { registerAll } from "../commands/register";
import type { Review } from "../review/review";
import type { HieraClient } from "../server/client";
import { offeredIn } from "./statusBar";

interface Entry extends vscode.QuickPickItem {
  readonly run?: () => unknown;
}

export function registerJobList(context: vscode.ExtensionContext, client: HieraClient, review: Review): void {
  const cancel = (jobId: string) => client.command("hiera.cancel", { jobId });
  context.subscriptions.push(registerAll(client, {
    "hiera.showJobs": async () => {
      const waiting = client.state === "running" ? await offeredIn(client) : [];
      const entries: Entry[] = [
        ...client.jobs.map((job) => ({
          label: `$(stop-circle) Cancel ${job.symbol}`, description: `${job.percentage} %`,
          detail: `${job.line} (what is best so far is kept)`, run: () => cancel(job.jobId),
        })),
        ...waiting.map((site) => ({
          label: `$(diff) Review ${site.symbol}`, detail: site.headline, run: () => review.open(site),
        })),
        { label: "", kind: vscode.QuickPickItemKind.Separator },
        { label: "$(output) Show Logs", run: () => { client.log.show(); } },
        { label: "$(info) Show Debug Information", run: () => vscode.commands.executeCommand("hiera.debugInformation") },
        { label: "$(debug-restart) Restart the Server", run: () => client.restart() },
      ];
      const picked = await vscode.window.showQuickPick(entries, { title: "HIERA: jobs and results" });
      await picked?.run?.();
    },
    "hiera.cancelJob": async () => {
      const [only, ...others] = client.jobs;
      if (only === undefined) throw new Error("no job is at work");
      if (others.length === 0) return cancel(only.jobId);
      const items = client.jobs.map((job) => ({ label: job.symbol, description: `${job.percentage} %`, detail: job.line, jobId: job.jobId }));
      const picked = await vscode.window.showQuickPick(items, { title: "Cancel which job?", canPickMany: true });
      return await Promise.all((picked ?? []).map((job) => cancel(job.jobId)));
    },
  }));
}
