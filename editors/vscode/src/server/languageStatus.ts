// The language status of Python and CUDA files: which Python is used, and why.

import * as vscode from "vscode";
import { described } from "../python/probe";
import type { HieraClient } from "./client";

export function registerLanguageStatus(context: vscode.ExtensionContext, client: HieraClient): void {
  const selector: vscode.DocumentSelector = [
    { scheme: "file", language: "python" }, { scheme: "file", language: "cuda-cpp" }, { scheme: "file", pattern: "**/*.{cu,cuh}" },
  ];
  const item = vscode.languages.createLanguageStatusItem("hiera.server", selector);
  item.name = "HIERA";
  const show = (): void => {
    const worker = client.python?.worker;
    item.busy = client.state === "starting";
    item.command = { title: "Select Python", command: "hiera.selectInterpreter" };
    item.severity = vscode.LanguageStatusSeverity.Information;
    if (client.state === "untrusted") {
      item.text = "HIERA: off in Restricted Mode";
      item.detail = "it would run this workspace's code";
      item.command = { title: "Manage Trust", command: "workbench.trust.manage" };
    } else if (client.state === "failed") {
      item.text = "HIERA: the server is not running";
      item.detail = client.reason;
      item.severity = vscode.LanguageStatusSeverity.Error;
    } else if (client.state === "running" && worker === undefined) {
      item.text = "HIERA: no Python with torch";
      item.detail = `looked at ${client.python?.looked.length ?? 0} places`;
      item.severity = vscode.LanguageStatusSeverity.Warning;
    } else {
      item.text = worker === undefined ? "HIERA" : `HIERA: ${described(worker.probed)}`;
      item.detail = worker === undefined ? client.state : worker.why;
    }
    void vscode.commands.executeCommand("setContext", "hiera.torchFound", worker !== undefined);
    void vscode.commands.executeCommand("setContext", "hiera.ready", client.state === "running");
  };
  context.subscriptions.push(item, client.onDidChangeState(show));
  show();
}
