// What the extension tests share.

import { readdirSync, readFileSync } from "node:fs";
import * as vscode from "vscode";

export { until } from "../harness/wait";

export function extension(): vscode.Extension<unknown> {
  const found = vscode.extensions.getExtension("hiera.hiera");
  if (found === undefined) throw new Error("the extension is not there");
  return found;
}

export function fileUri(name: string): vscode.Uri {
  const [folder] = vscode.workspace.workspaceFolders ?? [];
  if (folder === undefined) throw new Error("no folder is open");
  return vscode.Uri.joinPath(folder.uri, name);
}

export async function openFile(name: string): Promise<vscode.TextDocument> {
  const document = await vscode.workspace.openTextDocument(fileUri(name));
  await vscode.window.showTextDocument(document);
  return document;
}

/** Where a word stands for the first time. */
export function placeOf(document: vscode.TextDocument, word: string): vscode.Position {
  return document.positionAt(document.getText().indexOf(word));
}

/** Titles of the code actions of a kind at a place. */
export async function actionTitles(document: vscode.TextDocument, at: vscode.Position, kind: string): Promise<string[]> {
  const found = await vscode.commands.executeCommand<vscode.CodeAction[]>(
    "vscode.executeCodeActionProvider", document.uri, new vscode.Range(at, at), kind,
  );
  return found.map((action) => action.title);
}

/** Processes that this extension process started for the server. */
export function serverProcesses(): number[] {
  return readdirSync("/proc").filter((name) => /^\d+$/.test(name)).map(Number).filter((pid) => {
    try {
      const parent = Number(/^PPid:\s*(\d+)/m.exec(readFileSync(`/proc/${pid}/status`, "utf8"))?.[1]);
      return parent === process.pid && readFileSync(`/proc/${pid}/cmdline`, "utf8").includes("hiera_lsp");
    } catch {
      return false; // It has ended.
    }
  });
}
