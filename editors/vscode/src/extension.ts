// Start and end of the extension: every module registers what is its own.

import * as vscode from "vscode";

export function activate(context: vscode.ExtensionContext): void {
  const log = vscode.window.createOutputChannel("HIERA", { log: true });
  context.subscriptions.push(log);
}
