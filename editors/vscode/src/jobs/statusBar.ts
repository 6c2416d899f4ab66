// One item in the status bar: jobs at work, a result that waits for its review, or a server that does not run.

import * as vscode from "vscode";
import { sitesOf } from "../commands/sites";
import type { HieraClient } from "../server/client";
import type { EditorSite } from "../server/protocol";

export function registerStatusBar(context: vscode.ExtensionContext, client: HieraClient): void {
  const item = vscode.window.createStatusBarItem("hiera.status", vscode.StatusBarAlignment.Right, 90);
  item.name = "HIERA";
  item.command = "hiera.showJobs";
  let offered: readonly EditorSite[] = [];

  const show = (): void => {
    item.backgroundColor = undefined;
    if (client.state === "untrusted") {
      [item.text, item.tooltip, item.command] = ["$(shield) HIERA", "HIERA starts when the workspace is trusted: it runs the workspace's code", "workbench.trust.manage"];
    } else if (client.state === "failed") {
      [item.text, item.tooltip, item.command] = ["$(warning) HIERA", `The server is not running: ${client.reason}`, "hiera.selectInterpreter"];
      item.backgroundColor = new vscode.ThemeColor("statusBarItem.warningBackground");
    } else if (client.state !== "running") {
      [item.text, item.tooltip, item.command] = ["$(sync~spin) HIERA", client.reason || "The server is starting", "hiera.showLogs"];
    } else if (client.jobs.length > 0) {
      const percentage = Math.min(...client.jobs.map((job) => job.percentage));
      const what = client.jobs.length === 1 ? client.jobs[0]?.symbol ?? "" : `${client.jobs.length} jobs`;
      item.text = `$(sync~spin) HIERA: ${what} ${percentage} %`;
      item.tooltip = client.jobs.map((job) => `${job.symbol}: ${job.line}`).join("\n");
      item.command = "hiera.showJobs";
    } else {
      const [first] = offered;
      item.text = first === undefined ? "$(zap) HIERA" : `$(diff) HIERA: review ${offered.length === 1 ? first.symbol : `${offered.length} kernels`}`;
      item.tooltip = first === undefined ? "Jobs and results of HIERA" : offered.map((site) => `${site.symbol}: ${site.headline}`).join("\n");
      item.command = "hiera.showJobs";
    }
    // Icons say the state to the eye alone.
    item.accessibilityInformation = { label: `${item.text.replace(/\$\([^)]*\)\s*/g, "")}: ${item.tooltip}` };
    item.show();
  };

  const look = async (): Promise<void> => {
    const results = client.state === "running" ? await offeredIn(client) : [];
    offered = results;
    await vscode.commands.executeCommand("setContext", "hiera.hasResult", offered.length > 0);
    show();
  };
  const lookSoon = (): void => {
    look().catch((error: unknown) => { client.log.warn(`results: ${String(error)}`); });
  };

  context.subscriptions.push(
    item,
    client.onDidChangeState(() => { show(); lookSoon(); }),
    client.onDidChangeJobs((jobs) => {
      void vscode.commands.executeCommand("setContext", "hiera.jobsRunning", jobs.length > 0);
      show();
    }),
    client.onDidChangeResults(lookSoon),
    vscode.window.onDidChangeVisibleTextEditors(lookSoon),
    onOurDiagnostics(lookSoon),
  );
  show();
}

/** Calls `changed` when diagnostics of ours come or go: an undo puts an offer back, and so does it. */
function onOurDiagnostics(changed: () => void): vscode.Disposable {
  const shown = new Set<string>();
  return vscode.languages.onDidChangeDiagnostics(({ uris }) => {
    for (const uri of uris) {
      const name = uri.toString();
      const has = vscode.languages.getDiagnostics(uri).some(({ source }) => source === "hiera");
      if (has === shown.has(name)) continue;
      if (has) shown.add(name);
      else shown.delete(name);
      changed();
    }
  });
}

/** Results in the open documents that wait for the user. */
export async function offeredIn(client: HieraClient): Promise<EditorSite[]> {
  const documents = vscode.workspace.textDocuments.filter(
    ({ uri, languageId }) => uri.scheme === "file" && (["python", "cuda-cpp", "cuda"].includes(languageId) || /\.cuh?$/.test(uri.path)),
  );
  const sites = await Promise.all(documents.map((document) => sitesOf(client, document)));
  return sites.flat().filter((site) => site.standing === "offered" && site.chosen !== null);
}
