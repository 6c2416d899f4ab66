// The end of a search as a message, for those who want one. Lens, diagnostic and status bar tell it in any case.

import * as vscode from "vscode";
import type { HieraClient } from "../server/client";

export function registerEndMessages(context: vscode.ExtensionContext, client: HieraClient): void {
  context.subscriptions.push(client.onDidEndJob(({ job, message }) => {
    const uri = vscode.Uri.parse(job.uri);
    if (vscode.workspace.getConfiguration("hiera", uri).get("showNotifications") !== "always") return;
    void vscode.window.showInformationMessage(`HIERA, ${job.symbol}: ${message}`, "Review").then(async (answer) => {
      if (answer === "Review") await vscode.commands.executeCommand("hiera.review", { uri: job.uri, symbol: job.symbol });
    });
  }));
}
