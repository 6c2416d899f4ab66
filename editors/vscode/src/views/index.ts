// The runs tree and the report.

import * as vscode from "vscode";
import { registerAll } from "../commands/register";
import { sitesOf } from "../commands/sites";
import type { HieraClient } from "../server/client";
import type { Result, Site } from "../server/protocol";
import { registerRunCommands } from "./commands";
import type { Node, RunPage } from "./model";
import { REPORT, Reports } from "./report";
import { RunsTree } from "./tree";
import { runLabel, startedAt, verdict, when } from "./words";

/** Registers the view `hiera.runs`, the commands `hiera.runs.*` and `hiera.showReport`. */
export function registerViews(context: vscode.ExtensionContext, client: HieraClient): void {
  const tree = new RunsTree(client);
  const reports = new Reports(client, vscode.Uri.joinPath(context.extensionUri, "media"));
  const view = vscode.window.createTreeView<Node>("hiera.runs", { treeDataProvider: tree, showCollapseAll: true });
  const everything = (): void => {
    // What is not looked at is fetched when it is.
    if (view.visible) tree.soon();
    reports.soon();
  };
  context.subscriptions.push(
    tree, reports, view,
    vscode.window.registerWebviewPanelSerializer(REPORT, reports),
    registerRunCommands(client, tree, view, reports),
    registerAll(client, { "hiera.showReport": async (asked) => {
      const run = await chosenRun(client, asked);
      if (run !== undefined) await reports.show(run);
    } }),
    client.intercept("hiera.report", async (site) => {
      const run = await runOf(client, site);
      if (run === undefined) throw new Error(`${site.symbol} has no result: run Optimize kernel first`);
      await reports.show(run);
    }),
    client.onDidChangeState(everything),
    client.onDidChangeJobs(everything),
    client.onDidChangeResults(everything),
    vscode.workspace.onDidChangeWorkspaceFolders(everything),
    // Runs of the command line and of other windows: seen when one looks.
    view.onDidChangeVisibility(({ visible }) => { if (visible) tree.soon(); }),
  );
}

/** The run that a caller named, else that of the kernel in front, else the user's pick. */
async function chosenRun(client: HieraClient, asked: unknown): Promise<string | undefined> {
  if (typeof asked === "object" && asked !== null && "run" in asked && typeof asked.run === "string") return asked.run;
  if (typeof asked === "object" && asked !== null && "uri" in asked && "symbol" in asked) {
    return runOf(client, { uri: String(asked.uri), symbol: String(asked.symbol) });
  }
  return (await runInFront(client)) ?? (await pickedRun(client));
}

async function runInFront(client: HieraClient): Promise<string | undefined> {
  const editor = vscode.window.activeTextEditor;
  if (editor?.document.uri.scheme !== "file") return undefined;
  const line = editor.selection.active.line;
  const here = (await sitesOf(client, editor.document)).filter((site) => site.firstLine <= line && line <= site.lastLine);
  const innermost = here.sort((a, b) => b.firstLine - a.firstLine)[0];
  return innermost === undefined ? undefined : runOf(client, { uri: editor.document.uri.toString(), symbol: innermost.symbol });
}

/** The run at work on a site, else the run of its result. */
async function runOf(client: HieraClient, { uri, symbol }: Site): Promise<string | undefined> {
  const jobs = await client.command<(Site & { readonly run: string })[]>("hiera.jobs");
  const job = jobs.find((one) => one.symbol === symbol && vscode.Uri.parse(one.uri).toString() === vscode.Uri.parse(uri).toString());
  if (job !== undefined && job.run !== "") return job.run;
  return (await client.command<Result | null>("hiera.result", { uri, symbol }))?.summary.run;
}

async function pickedRun(client: HieraClient): Promise<string | undefined> {
  const { runs } = await client.command<RunPage>("hiera.runs");
  if (runs.length === 0) throw new Error("there is no run yet: take Optimize kernel from the light bulb of a module or a .cu file");
  const items = runs.map((line) => ({
    label: runLabel(line), description: verdict(line), detail: [when(startedAt(line.run), new Date()), line.file].filter((text) => text !== "").join(" · "),
    run: line.run,
  }));
  return (await vscode.window.showQuickPick(items, { title: "The report of which run?", matchOnDescription: true, matchOnDetail: true }))?.run;
}
