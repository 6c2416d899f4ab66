// The review of a candidate: side by side with what there is now, then accepted, discarded, or another one looked at.

import * as vscode from "vscode";
import { NOTHING } from "../commands/texts";
import type { HieraClient } from "../server/client";
import type { Applied, Candidate, Comparison, Result, Site } from "../server/protocol";
import { kernelLine } from "./lines";
import { candidateInFront, closeTabs, showFile } from "./tabs";

/** A candidate under review. */
export interface Reviewed extends Site {
  readonly result: Result;
  readonly candidate: Candidate;
  /** Accepted candidates in the order in which the server walks through them. */
  readonly choices: readonly Candidate[];
  /** The line of the kernel, for lenses. */
  readonly line: number;
}

const WRITTEN_SHOWN_MS = 10_000;

export class Review implements vscode.Disposable {
  private readonly reviewed = new Map<string, Reviewed>();
  private readonly changes = new vscode.EventEmitter<void>();
  private readonly listening: vscode.Disposable;
  readonly onDidChange = this.changes.event;

  constructor(private readonly client: HieraClient) {
    this.listening = vscode.Disposable.from(
      vscode.window.tabGroups.onDidChangeTabs(() => { this.look(); }),
      vscode.window.tabGroups.onDidChangeTabGroups(() => { this.look(); }),
    );
  }

  dispose(): void {
    this.listening.dispose();
    this.changes.dispose();
  }

  /** The review that the user looks at. */
  get current(): Reviewed | undefined {
    const shown = candidateInFront();
    return shown === undefined ? undefined : this.reviewed.get(shown.toString());
  }

  /** What is reviewed in a document. */
  of(candidate: vscode.Uri): Reviewed | undefined {
    return this.reviewed.get(candidate.toString());
  }

  /** Shows the chosen candidate of a site beside what there is now. */
  async open(site: Site): Promise<void> {
    const { uri, symbol } = site;
    const comparison = await this.client.command<Comparison>("hiera.diff", { uri, symbol });
    const result = await this.client.command<Result | null>("hiera.result", { uri, symbol });
    const choices = choicesOf(result);
    const candidate = choices.find(({ id }) => id === result?.chosen);
    if (result === null || candidate === undefined) throw new Error(`no candidate of ${symbol} was accepted`);
    const right = vscode.Uri.parse(comparison.right);
    // A module's first kernel is new as a whole. It opens beside the module, which is what it stands for.
    const left = comparison.left === null ? NOTHING : vscode.Uri.parse(comparison.left);
    const line = kernelLine(await textOf(left), await textOf(right));
    // One review a site: an older one would show what is no longer chosen.
    const older = this.rightsOf(site);
    older.delete(right.toString());
    this.reviewed.set(right.toString(), { uri, symbol, result, candidate, choices, line });
    const title = `${symbol}: ${comparison.left === null ? "new kernel" : "current ↔ candidate"} ${place(choices, candidate)}${speed(candidate)}`;
    const selection = new vscode.Range(line, 0, line, 0);
    const viewColumn = columnOf(uri, comparison.left === null);
    await vscode.commands.executeCommand("vscode.diff", left, right, title, { preview: true, selection, viewColumn });
    await this.drop(older);
  }

  /** Shows the next or previous candidate in the place of this one. */
  async step(direction: 1 | -1): Promise<void> {
    await this.choose({ step: direction });
  }

  /** Lets the user pick a candidate. */
  async pick(): Promise<void> {
    const here = this.needed();
    const items = here.choices.map((candidate) => ({
      label: `${candidate.id === here.result.summary.best ? "$(star-full) " : ""}${candidate.id}`,
      description: [
        speed(candidate).replace(/^, /, ""), `space ${candidate.space}`,
        candidate.direction === "" ? "" : `direction ${candidate.direction}`,
      ].filter((text) => text !== "").join(", "),
      detail: candidate.title,
      id: candidate.id,
    }));
    const picked = await vscode.window.showQuickPick(items, { title: `Candidates of ${here.symbol}`, matchOnDescription: true, matchOnDetail: true });
    if (picked !== undefined) await this.choose({ candidate: picked.id });
  }

  /** Puts the candidate into the user's files. */
  async accept(site: Site = this.needed()): Promise<void> {
    await this.apply("hiera.accept", told(site));
    await this.close(site);
    await showFile(vscode.Uri.parse(site.uri));
  }

  /** Puts the kernel into the module's text, so that the module runs it. */
  async use(site: Site): Promise<void> {
    await this.apply("hiera.use", told(site));
    await this.close(site);
  }

  /** Puts the result away; its run stays in the store. */
  async discard(site: Site = this.needed()): Promise<void> {
    const { uri, symbol, run } = told(site);
    await this.client.command("hiera.discard", { uri, symbol, run });
    await this.close(site);
    this.client.resultsChanged();
  }

  private async choose(what: { step: number } | { candidate: string }): Promise<void> {
    const here = this.needed();
    const { uri, symbol, run } = told(here);
    await this.client.command("hiera.choose", { uri, symbol, run, ...what });
    await this.open(here);
    this.client.resultsChanged();
  }

  private async apply(command: string, site: Site): Promise<void> {
    const dirty = new Set(vscode.workspace.textDocuments.filter((document) => document.isDirty));
    const { applied, reason, folder } = await this.client.command<Applied>(command, site);
    if (!applied) throw new Error(`VS Code did not change the files${reason ? `: ${reason}` : ", so ask again"}`);
    await saveChanged(dirty);
    if (folder !== undefined) {
      const where = vscode.workspace.asRelativePath(folder);
      vscode.window.setStatusBarMessage(`$(check) HIERA: the kernel is in ${where}`, WRITTEN_SHOWN_MS);
    }
    this.client.resultsChanged();
  }

  private async close(site: Site): Promise<void> {
    void vscode.commands.executeCommand("setContext", "hiera.reviewed", true);
    await this.drop(this.rightsOf(site));
  }

  private async drop(rights: ReadonlySet<string>): Promise<void> {
    await closeTabs(rights);
    for (const right of rights) this.reviewed.delete(right);
    this.look();
  }

  private rightsOf({ uri, symbol }: Site): Set<string> {
    // The server and VS Code spell a path in different ways.
    const file = vscode.Uri.parse(uri).toString();
    const ours = [...this.reviewed].filter(([, at]) => vscode.Uri.parse(at.uri).toString() === file && at.symbol === symbol);
    return new Set(ours.map(([right]) => right));
  }

  private needed(): Reviewed {
    const current = this.current;
    if (current === undefined) throw new Error("open the review of a candidate first");
    return current;
  }

  private look(): void {
    void vscode.commands.executeCommand("setContext", "hiera.reviewing", this.current !== undefined);
    this.changes.fire();
  }
}

/** What a command is told of a site: of a review also what the user sees, so that nothing else is taken for it. */
function told(site: Site | Reviewed): Site & { readonly run?: string; readonly candidate?: string } {
  const { uri, symbol } = site;
  return "result" in site ? { uri, symbol, run: site.result.summary.run, candidate: site.candidate.id } : { uri, symbol };
}

function choicesOf(result: Result | null): Candidate[] {
  return result?.choices.flatMap((id) => result.summary.candidates.filter((candidate) => candidate.id === id)) ?? [];
}

/** Where to open a review: beside the module's own editor for a new kernel, if that is in front; else here. */
function columnOf(uri: string, isNew: boolean): vscode.ViewColumn {
  const inFront = vscode.window.activeTextEditor?.document.uri.toString();
  return isNew && inFront === vscode.Uri.parse(uri).toString() ? vscode.ViewColumn.Beside : vscode.ViewColumn.Active;
}

/** Saves what our edit left unsaved: VS Code saves a refactoring by itself only where it changes several files. */
async function saveChanged(dirtyBefore: ReadonlySet<vscode.TextDocument>): Promise<void> {
  if (!vscode.workspace.getConfiguration("files").get<boolean>("refactoring.autoSave", true)) return;
  const changed = vscode.workspace.textDocuments.filter(
    (document) => document.isDirty && document.uri.scheme === "file" && !dirtyBefore.has(document));
  await Promise.all(changed.map((document) => document.save()));
}

async function textOf(uri: vscode.Uri): Promise<string> {
  return (await vscode.workspace.openTextDocument(uri)).getText();
}

/** `2 of 5`. */
export function place(choices: readonly Candidate[], candidate: Candidate): string {
  return `${choices.findIndex(({ id }) => id === candidate.id) + 1} of ${choices.length}`;
}

function speed(candidate: Candidate): string {
  return candidate.speedup === null ? "" : `, ${candidate.speedup.toFixed(2)}x`;
}
