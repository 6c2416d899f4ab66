// Read-only texts of ours: an untitled document would ask to be saved.

import * as vscode from "vscode";

const SCHEME = "hiera-text";

/** What a kernel that replaces nothing is compared with. */
export const NOTHING = vscode.Uri.from({ scheme: SCHEME, path: "/nothing.cu" });

const texts = new Map<string, string>();
const changes = new vscode.EventEmitter<vscode.Uri>();

export function registerTexts(): vscode.Disposable {
  return vscode.workspace.registerTextDocumentContentProvider(SCHEME, {
    onDidChange: changes.event,
    provideTextDocumentContent: (uri) => texts.get(uri.path) ?? "",
  });
}

/** Shows a text; its name's ending gives its language. */
export async function showText(name: string, content: string): Promise<void> {
  const uri = vscode.Uri.from({ scheme: SCHEME, path: `/${name}` });
  texts.set(uri.path, content);
  changes.fire(uri);
  await vscode.window.showTextDocument(await vscode.workspace.openTextDocument(uri), { preview: true });
}
