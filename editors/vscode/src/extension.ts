// Start and end of the extension: every module registers what is its own.

import * as vscode from "vscode";
import { registerHelp } from "./commands/help";
import { registerInterpreter, tellFailure } from "./commands/interpreter";
import { Keys } from "./commands/keys";
import { registerOptimize } from "./commands/optimize";
import { registerJobList } from "./jobs/list";
import { registerStatusBar } from "./jobs/statusBar";
import { onChoice } from "./python/extension";
import { Pythons } from "./python/pythons";
import { registerReview } from "./review";
import { Connection } from "./server/connection";
import { registerLanguageStatus } from "./server/languageStatus";
import { Secrets, redacted } from "./server/redact";
import { serverKeys } from "./server/settings";
import { registerViews } from "./views";

let connection: Connection | undefined;

export function activate(context: vscode.ExtensionContext): void {
  const channel = vscode.window.createOutputChannel("HIERA", { log: true });
  const secrets = new Secrets();
  const log = redacted(channel, secrets);
  const settingKeys = serverKeys(context.extension.packageJSON);
  const bundled = context.asAbsolutePath("bundled");
  const installed = vscode.Uri.joinPath(context.globalStorageUri, "libraries").fsPath;
  const pythons = new Pythons(bundled, installed, settingKeys, log);
  const keys = new Keys(context, secrets);
  const client = new Connection(
    log, pythons,
    (started) => keys.handOver(started),
    (reason) => void tellFailure(context, client, reason),
  );
  connection = client;
  context.subscriptions.push(channel, client);

  registerLanguageStatus(context, client);
  registerStatusBar(context, client);
  registerOptimize(context, client, pythons);
  const review = registerReview(context, client);
  registerJobList(context, client, review);
  registerInterpreter(context, client, pythons);
  registerHelp(context, client, pythons, settingKeys);
  keys.register(client);
  registerViews(context, client);

  const begin = (): void => {
    void client.restart();
    onChoice(() => void client.reconsider()).then(
      (following) => { context.subscriptions.push(following); },
      (error: unknown) => { log.warn(`the Python extension does not tell of changes: ${String(error)}`); },
    );
  };
  context.subscriptions.push(vscode.workspace.onDidGrantWorkspaceTrust(begin));
  if (vscode.workspace.isTrusted) begin();
  else void client.restart();
}

export async function deactivate(): Promise<void> {
  await connection?.stop();
}
