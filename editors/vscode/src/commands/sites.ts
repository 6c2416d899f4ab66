// Which class, function or kernel the user means.

import * as vscode from "vscode";
import type { HieraClient } from "../server/client";
import type { EditorSite } from "../server/protocol";

/** Everything that can be optimised in a document. */
export function sitesOf(client: HieraClient, document: vscode.TextDocument): Promise<EditorSite[]> {
  return client.command<EditorSite[]>("hiera.sites", { uri: document.uri.toString() });
}

/** The innermost site at the cursor; else the document's only one; else the user's pick of those that fit. */
export async function chosenSite(
  client: HieraClient, fits: (site: EditorSite) => boolean = () => true, none = "nothing that can be optimised",
): Promise<EditorSite | undefined> {
  const editor = vscode.window.activeTextEditor;
  if (editor === undefined) throw new Error("open a Python or CUDA file first");
  const all = await sitesOf(client, editor.document);
  const sites = all.filter(fits);
  const line = editor.selection.active.line;
  const here = sites.filter((site) => site.firstLine <= line && line <= site.lastLine);
  const innermost = here.sort((a, b) => b.firstLine - a.firstLine)[0];
  if (innermost !== undefined) return innermost;
  if (sites.length === 0) throw new Error(`this file has ${none}`);
  if (sites.length === 1) return sites[0];
  const items = sites.map((site) => ({ label: site.symbol, description: `line ${site.nameLine + 1}`, detail: site.headline, site }));
  return (await vscode.window.showQuickPick(items, { title: "Which kernel?" }))?.site;
}

/** A site with a result that is not discarded. */
export function hasResult(site: EditorSite): boolean {
  return site.standing !== null;
}
