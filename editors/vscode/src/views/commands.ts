// What can be done with a run, a round or a candidate of the tree.

import * as vscode from "vscode";
import { registerAll } from "../commands/register";
import type { HieraClient } from "../server/client";
import type { Node, Run, RunLine } from "./model";
import type { Reports } from "./report";
import type { RunsTree } from "./tree";
import { candidateLabel, runLabel } from "./words";

const ALL = "hiera.runs.all";

export function registerRunCommands(client: HieraClient, tree: RunsTree, view: vscode.TreeView<Node>, reports: Reports): vscode.Disposable {
  function show(all: boolean): void {
    tree.all = all;
    view.description = all ? "all workspaces" : "";
    void vscode.commands.executeCommand("setContext", ALL, all);
  }
  return registerAll(client, {
    "hiera.runs.refresh": () => {
      tree.refresh();
      reports.soon();
    },
    "hiera.runs.more": () => { tree.more(); },
    "hiera.runs.showAll": () => { show(true); },
    "hiera.runs.showWorkspace": () => { show(false); },
    "hiera.runs.openFile": (node) => openFile(lineOf(node)),
    "hiera.runs.openReport": (node) => reports.show(lineOf(node).run),
    "hiera.runs.resume": (node) => resume(client, lineOf(node)),
    "hiera.runs.delete": (node) => remove(client, tree, reports, lineOf(node)),
    "hiera.runs.openSource": (node) => open(candidateOf(node).candidate.source),
    "hiera.runs.openDiff": (node) => {
      const { run, candidate } = candidateOf(node);
      return compare(run.uri, candidate.source, `${runLabel(run)}: original ↔ ${candidateLabel(candidate)}`);
    },
    "hiera.runs.openParentDiff": (node) => {
      const { run, candidate } = candidateOf(node);
      return compare(candidate.parent, candidate.source, `${runLabel(run)}: parent ↔ ${candidateLabel(candidate)}`);
    },
    "hiera.runs.openPrompt": (node) => open(isNode(node) && node.kind === "round" ? node.round.conversation : candidateOf(node).candidate.conversation),
    "hiera.runs.openBuildLog": (node) => open(candidateOf(node).candidate.log),
    "hiera.runs.openCounters": (node) => open(candidateOf(node).candidate.counters),
    "hiera.runs.review": (node) => review(client, candidateOf(node)),
  });
}

async function open(uri: string | null): Promise<void> {
  if (uri === null) throw new Error("there is nothing to show");
  await vscode.commands.executeCommand("vscode.open", vscode.Uri.parse(uri), { preview: true });
}

async function openFile(line: RunLine): Promise<void> {
  if (line.uri === null) throw new Error(`${line.file} is gone`);
  await open(line.uri);
}

async function compare(left: string | null, right: string, title: string): Promise<void> {
  if (left === null) throw new Error("there is nothing left to compare it with");
  await vscode.commands.executeCommand("vscode.diff", vscode.Uri.parse(left), vscode.Uri.parse(right), title, { preview: true });
}

/** Reviews a candidate of the result that stands; an older one is judged against the source as it is now first. */
async function review(client: HieraClient, { run, candidate }: CandidateNode): Promise<void> {
  if (run.uri === null) throw new Error(`${run.file} is gone`);
  const site = siteOf(run, run.uri);
  const document = await vscode.workspace.openTextDocument(vscode.Uri.parse(run.uri));
  const { reviewable } = await client.command<Run>("hiera.run", { run: run.run });
  if (reviewable) {
    await client.command("hiera.choose", { ...site, run: run.run, candidate: candidate.id });
    client.resultsChanged();
    await vscode.commands.executeCommand("hiera.review", site);
    return;
  }
  const verify = "Verify and Review";
  const asked = await vscode.window.showInformationMessage(
    `Judge this kernel against ${run.symbol === "" ? run.file : run.symbol} as it is now?`,
    { modal: true, detail: "It comes from an earlier run. If it is accepted, it takes the place of the result that you have." }, verify);
  if (asked !== verify) return;
  await vscode.window.showTextDocument(document, { preview: false });
  await client.command("hiera.reverify", { ...site, run: run.run, candidate: candidate.id });
}

async function resume(client: HieraClient, line: RunLine): Promise<void> {
  if (line.uri === null) throw new Error(`${line.file} is gone`);
  await vscode.window.showTextDocument(vscode.Uri.parse(line.uri), { preview: false });
  await client.command("hiera.optimize", { ...siteOf(line, line.uri), resume: line.run });
}

async function remove(client: HieraClient, tree: RunsTree, reports: Reports, line: RunLine): Promise<void> {
  const button = "Delete";
  const asked = await vscode.window.showWarningMessage(
    `Delete the run of ${runLabel(line)}?`,
    { modal: true, detail: `Its candidates and all of their evidence are deleted from this machine. This cannot be undone.\n\n${line.run}` }, button);
  if (asked !== button) return;
  await client.command("hiera.deleteRun", { run: line.run });
  reports.close(line.run);
  tree.refresh();
}

/** What a run is about; where it names no symbol, the file's only one. */
function siteOf({ symbol }: RunLine, uri: string): { readonly uri: string; readonly symbol?: string } {
  return symbol === "" ? { uri } : { uri, symbol };
}

type CandidateNode = Extract<Node, { kind: "candidate" }>;

function lineOf(node: unknown): RunLine {
  if (isNode(node)) {
    if (node.kind === "run") return node.line;
    if (node.kind !== "more") return node.run;
  }
  throw new Error("choose a run in the view Runs");
}

function candidateOf(node: unknown): CandidateNode {
  if (isNode(node) && node.kind === "candidate") return node;
  throw new Error("choose a candidate in the view Runs");
}

function isNode(node: unknown): node is Node {
  return typeof node === "object" && node !== null && "kind" in node;
}
