// Reports as webviews: one a run, kept up to date while a job is at work, there again after a reload.

import * as vscode from "vscode";
import type { HieraClient } from "../server/client";
import { Later } from "./later";
import type { ReportPage } from "./model";
import { documentOf, stateOf, waitingFor } from "./page";

export const REPORT = "hiera.report";
const PAUSE_MS = 700;

interface Open {
  readonly panel: vscode.WebviewPanel;
  /** What was last sent; undefined before the first answer of the server. */
  page: ReportPage | undefined;
  /** The body in `panel.webview.html`, which VS Code loads again when a hidden report is shown. */
  loaded: string;
}

export class Reports implements vscode.WebviewPanelSerializer, vscode.Disposable {
  private readonly open = new Map<string, Open>();
  private readonly later = new Later(PAUSE_MS, () => { void this.refresh(); });

  /** @param media The extension's folder of pictures. */
  constructor(private readonly client: HieraClient, private readonly media: vscode.Uri) {}

  /** Shows the report of a run, beside the code where there is room. */
  async show(run: string): Promise<void> {
    const known = this.open.get(run);
    if (known !== undefined) {
      known.panel.reveal();
    } else {
      this.adopt(run, vscode.window.createWebviewPanel(REPORT, "HIERA report", vscode.ViewColumn.Active, { enableFindWidget: true }));
    }
    await this.fetch(run);
  }

  /** Closes the report of a run that is gone. */
  close(run: string): void {
    this.open.get(run)?.panel.dispose();
  }

  /** Something went on: reports of unfinished runs are fetched again, after a while. */
  soon(): void {
    this.later.soon();
  }

  /** After a reload of the window: the run is in the state that the page left. */
  async deserializeWebviewPanel(panel: vscode.WebviewPanel, state: unknown): Promise<void> {
    const run = stateOf(state);
    if (run === undefined || this.open.has(run)) {
      panel.dispose();
      return;
    }
    this.adopt(run, panel);
    if (this.client.state === "running") await this.fetch(run);
  }

  dispose(): void {
    this.later.dispose();
    for (const { panel } of [...this.open.values()]) panel.dispose();
  }

  private adopt(run: string, panel: vscode.WebviewPanel): void {
    const waiting = waitingFor(run, "Waiting for the server…");
    const open: Open = { panel, page: undefined, loaded: waiting.body };
    this.open.set(run, open);
    panel.iconPath = {
      light: vscode.Uri.joinPath(this.media, "report-light.svg"), dark: vscode.Uri.joinPath(this.media, "report-dark.svg"),
    };
    panel.webview.options = { enableScripts: true, localResourceRoots: [] };
    panel.webview.html = documentOf(waiting);
    panel.onDidDispose(() => this.open.delete(run));
    panel.onDidChangeViewState(() => {
      if (panel.visible && open.page !== undefined && open.loaded !== open.page.body) this.load(open, open.page);
    });
  }

  private async refresh(): Promise<void> {
    if (this.client.state !== "running") return;
    for (const [run, { page }] of [...this.open]) if (page?.finished !== true) await this.fetch(run);
  }

  /** Takes the report as it is now: in place where one is shown, so that nobody loses the place. */
  private async fetch(run: string): Promise<void> {
    const open = this.open.get(run);
    if (open === undefined) return;
    let page: ReportPage;
    try {
      page = await this.client.command<ReportPage>("hiera.page", { run });
    } catch (error) {
      // A run that is only beginning has nothing to read yet, and one may have been deleted.
      page = waitingFor(run, error instanceof Error ? error.message : String(error));
    }
    if (this.open.get(run) !== open || page.body === open.page?.body) return;
    const first = open.page?.style !== page.style;
    open.page = page;
    open.panel.title = page.title;
    if (first || !open.panel.visible) this.load(open, page);
    else await open.panel.webview.postMessage({ body: page.body });
  }

  private load(open: Open, page: ReportPage): void {
    open.loaded = page.body;
    open.panel.webview.html = documentOf(page);
  }
}
