// What the extension tests share.

import * as vscode from "vscode";

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
