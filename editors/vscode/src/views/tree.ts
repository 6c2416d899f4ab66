// The tree of runs: runs, their rounds, their candidates. Each level is fetched when it is opened.

import * as vscode from "vscode";
import type { HieraClient } from "../server/client";
import { Later } from "./later";
import type { Node, Run, RunLine, RunPage } from "./model";
import * as words from "./words";

const PAGE = 50;
const PAUSE_MS = 500;

export class RunsTree implements vscode.TreeDataProvider<Node>, vscode.Disposable {
  private readonly changes = new vscode.EventEmitter<Node | undefined>();
  private readonly later = new Later(PAUSE_MS, () => { this.refresh(); });
  /** Runs that were opened, and the lines that they were fetched for. */
  private readonly opened = new Map<string, { readonly line: string; readonly run: Promise<Run> }>();
  private shown = PAGE;
  private everywhere = false;
  readonly onDidChangeTreeData = this.changes.event;

  constructor(private readonly client: HieraClient) {}

  /** Runs of all workspaces, or of this one. */
  get all(): boolean {
    return this.everywhere;
  }

  set all(everywhere: boolean) {
    this.everywhere = everywhere;
    this.shown = PAGE;
    this.refresh();
  }

  refresh(): void {
    this.changes.fire(undefined);
  }

  /** Something went on: what is at work is fetched again, after a while. */
  soon(): void {
    this.later.soon();
  }

  /** Shows the next runs too. */
  more(): void {
    this.shown += PAGE;
    this.refresh();
  }

  async getChildren(node?: Node): Promise<Node[]> {
    if (this.client.state !== "running") return [];
    if (node === undefined) return this.runs();
    if (node.kind === "run") {
      const run = await this.whole(node.line);
      return run.rounds.map((round) => ({ kind: "round", run, round }));
    }
    if (node.kind === "round") {
      const { run, round } = node;
      return run.candidates.filter((candidate) => candidate.round === round.round).map((candidate) => ({ kind: "candidate", run, candidate }));
    }
    return [];
  }

  getTreeItem(node: Node): vscode.TreeItem {
    const item = itemOf(node);
    item.contextValue = words.contextOf(node);
    return item;
  }

  dispose(): void {
    this.later.dispose();
    this.changes.dispose();
  }

  private async runs(): Promise<Node[]> {
    const { runs, more } = await this.client.command<RunPage>("hiera.runs", { all: this.everywhere, limit: this.shown });
    const listed = new Set(runs.map(({ run }) => run));
    for (const run of this.opened.keys()) if (!listed.has(run)) this.opened.delete(run);
    const nodes: Node[] = runs.map((line) => ({ kind: "run", line }));
    return more ? [...nodes, { kind: "more" }] : nodes;
  }

  /** A run's rounds and candidates; fetched again when its line says something new, or while it is at work. */
  private whole(line: RunLine): Promise<Run> {
    const text = JSON.stringify(line);
    const known = this.opened.get(line.run);
    if (known?.line === text && !line.at_work) return known.run;
    const run = this.client.command<Run>("hiera.run", { run: line.run });
    this.opened.set(line.run, { line: text, run });
    run.catch(() => this.opened.delete(line.run));
    return run;
  }
}

function itemOf(node: Node): vscode.TreeItem {
  const { Collapsed, Expanded, None } = vscode.TreeItemCollapsibleState;
  switch (node.kind) {
    case "run": {
      const { line } = node;
      const item = new vscode.TreeItem(words.runLabel(line), Collapsed);
      const began = words.startedAt(line.run);
      item.description = [words.verdict(line), words.when(began, new Date())].filter((text) => text !== "").join(" · ");
      return dressed(item, line.run, words.runIcon(line), [...words.runSentences(line), began === undefined ? "" : `Began ${began.toLocaleString()}`]);
    }
    case "round": {
      const { round, run } = node;
      const item = new vscode.TreeItem(words.roundLabel(round), Expanded);
      item.description = words.roundDescription(round);
      return dressed(item, `${run.run}/${round.round}`, { id: round.round === 0 ? "account" : "milestone" }, words.roundSentences(round));
    }
    case "candidate": {
      const { candidate, run } = node;
      const item = new vscode.TreeItem(words.candidateLabel(candidate), None);
      item.description = words.candidateDescription(candidate);
      item.command = { command: "hiera.runs.openSource", title: "Open Source", arguments: [node] };
      return dressed(item, `${run.run}/${candidate.round}/${candidate.id}`, words.candidateIcon(run, candidate), words.candidateSentences(candidate));
    }
    case "more": {
      const item = new vscode.TreeItem("Show older runs", None);
      item.command = { command: "hiera.runs.more", title: "Show older runs" };
      return dressed(item, "more", { id: "ellipsis" }, []);
    }
  }
}

/** Id, icon, tooltip and what is read aloud. Sentences may hold anything, so they are text and no Markdown. */
function dressed(item: vscode.TreeItem, id: string, icon: words.Icon, sentences: readonly string[]): vscode.TreeItem {
  item.id = id;
  item.iconPath = new vscode.ThemeIcon(icon.id, icon.color === undefined ? undefined : new vscode.ThemeColor(icon.color));
  const said = sentences.filter((text) => text !== "");
  if (said.length > 0) item.tooltip = said.join("\n");
  const label = typeof item.label === "string" ? item.label : "";
  const description = typeof item.description === "string" ? item.description : "";
  item.accessibilityInformation = { label: [label, description, ...said.slice(1)].filter((text) => text !== "").join(", ") };
  return item;
}
