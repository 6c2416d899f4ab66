// What helps a user to help themselves: logs, the machine's check, debug information, samples, the walkthrough.

import * as vscode from "vscode";
import type { Taken } from "../python/choose";
import { described } from "../python/probe";
import type { Pythons } from "../python/pythons";
import type { CommandArgument, HieraClient } from "../server/client";
import { settingsFor } from "../server/settings";
import { registerAll } from "./register";
import { chosenSite, hasResult } from "./sites";
import { registerTexts, showText } from "./texts";

interface Explanation {
  readonly markdown: string;
  readonly file: string | null;
}

export function registerHelp(
  context: vscode.ExtensionContext, client: HieraClient, pythons: Pythons, keys: readonly string[],
): void {
  const checkMachine = async (): Promise<void> => {
    const argument = vscode.window.activeTextEditor?.document.uri;
    const options = { location: vscode.ProgressLocation.Notification, title: "HIERA: looking at this machine" };
    const found = await vscode.window.withProgress(options, () =>
      client.command<{ text: string }>("hiera.doctor", argument?.scheme === "file" ? { uri: argument.toString() } : undefined));
    await showText("This machine.txt", found.text);
  };
  context.subscriptions.push(
    registerTexts(),
    client.intercept("hiera.explain", (argument) => explain(client, argument)),
    client.intercept("hiera.doctor", checkMachine),
    registerAll(client, {
      "hiera.explainResult": async () => {
        const site = await chosenSite(client, hasResult, "no result to explain");
        if (site !== undefined) await explain(client, { uri: site.uri, symbol: site.symbol });
      },
      "hiera.checkMachine": checkMachine,
      "hiera.showLogs": () => { client.log.show(); },
      "hiera.restartServer": () => {
        pythons.forget();
        return client.restart();
      },
      "hiera.debugInformation": () => showText("Debug information.md", debugInformation(context, client, keys)),
      "hiera.openSample": () => openSample(context),
      "hiera.openWalkthrough": () =>
        vscode.commands.executeCommand("workbench.action.openWalkthrough", `${context.extension.id}#start`, false),
    }),
  );
}

async function explain(client: HieraClient, { uri, symbol }: CommandArgument): Promise<void> {
  const { file, markdown } = await client.command<Explanation>("hiera.explain", { uri, symbol });
  if (file === null) await showText(`${symbol}.md`, markdown);
  else await vscode.commands.executeCommand("markdown.showPreviewToSide", vscode.Uri.parse(file));
}

/** Everything that a report of a mistake needs; no key is in any of it. */
function debugInformation(context: vscode.ExtensionContext, client: HieraClient, keys: readonly string[]): string {
  const { python } = client;
  const version = (context.extension.packageJSON as { version: string }).version;
  const role = (name: string, taken: Taken | undefined): string =>
    taken === undefined ? `- ${name}: none` : `- ${name}: \`${taken.path}\`, ${described(taken.probed)}, because: ${taken.why}`;
  return [
    "# HIERA: debug information", "",
    `- extension ${version}, VS Code ${vscode.version}, ${process.platform}-${process.arch}, remote: ${vscode.env.remoteName ?? "no"}`,
    `- server: ${client.state}${client.reason === "" ? "" : `, ${client.reason}`}`,
    role("Python of the server", python?.server), role("Python with torch", python?.worker), "",
    "## Where HIERA looked", "",
    ...(python?.looked ?? []).map(({ path, why, verdict }) => `- \`${path}\` (${why}): ${verdict}`), "",
    "## Settings", "", "```json", JSON.stringify(settingsFor(keys, vscode.workspace.workspaceFolders?.[0]?.uri), null, 2), "```", "",
  ].join("\n");
}

/** Copies a sample to where it may be changed, and opens it at what can be optimised. */
async function openSample(context: vscode.ExtensionContext): Promise<void> {
  const source = vscode.Uri.joinPath(context.extensionUri, "bundled", "samples");
  const files = (await vscode.workspace.fs.readDirectory(source)).map(([name]) => name);
  const items = files.map((label) => ({ label, description: label.endsWith(".cu") ? "CUDA kernel" : "PyTorch module" }));
  const picked = await vscode.window.showQuickPick(items, { title: "Which sample?" });
  if (picked === undefined) return;
  const target = vscode.Uri.joinPath(context.globalStorageUri, "samples", picked.label);
  try {
    await vscode.workspace.fs.copy(vscode.Uri.joinPath(source, picked.label), target, { overwrite: false });
  } catch (error) {
    // The user's copy of an earlier day stays.
    if (!(error instanceof vscode.FileSystemError) || error.code !== "FileExists") throw error;
  }
  const editor = await vscode.window.showTextDocument(target, { preview: false });
  const line = editor.document.getText().split("\n").findIndex((text) => /^class |__global__/.test(text));
  const place = new vscode.Position(Math.max(0, line), 6);
  editor.selection = new vscode.Selection(place, place);
  editor.revealRange(new vscode.Range(place, place), vscode.TextEditorRevealType.InCenterIfOutsideViewport);
}
