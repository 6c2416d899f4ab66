// The user's choice of the Python that has torch, and what to say where none fits.

import * as vscode from "vscode";
import { described, probe } from "../python/probe";
import type { Pythons } from "../python/pythons";
import type { HieraClient } from "../server/client";
import { registerAll } from "./register";

const ASKED = "hiera.askedForPython";
const SETTLE_MS = 1000;

interface Entry extends vscode.QuickPickItem {
  readonly path?: string;
}

export function registerInterpreter(context: vscode.ExtensionContext, client: HieraClient, pythons: Pythons): void {
  // A user types into a setting: the server follows when that is over.
  let timer: NodeJS.Timeout | undefined;
  const changed = (): void => {
    clearTimeout(timer);
    timer = setTimeout(() => void client.reconsider(), SETTLE_MS);
  };
  context.subscriptions.push(
    new vscode.Disposable(() => { clearTimeout(timer); }),
    vscode.workspace.onDidChangeConfiguration((event) => {
      if (event.affectsConfiguration("hiera.interpreter") || event.affectsConfiguration("hiera.worker.interpreter")) changed();
    }),
    registerAll(client, { "hiera.selectInterpreter": () => select(pythons) }),
  );
}

/** Tells once a workspace that there is no server; afterwards the status items do. */
export async function tellFailure(context: vscode.ExtensionContext, client: HieraClient, reason: string): Promise<void> {
  if (context.workspaceState.get<string>(ASKED) === reason) return;
  await context.workspaceState.update(ASKED, reason);
  const server = client.python?.server;
  const which = server === undefined ? "" : ` It was started with ${server.path} (${server.why}).`;
  const answer = await vscode.window.showErrorMessage(
    `HIERA's server is not running: ${reason}.${which}`, "Select Python", "Show Logs", "Restart",
  );
  if (answer === "Select Python") await vscode.commands.executeCommand("hiera.selectInterpreter");
  else if (answer === "Show Logs") client.log.show();
  else if (answer === "Restart") await vscode.commands.executeCommand("hiera.restartServer");
}

async function select(pythons: Pythons): Promise<void> {
  const folder = vscode.workspace.workspaceFolders?.[0];
  const { looked, worker } = await pythons.choice(folder?.uri);
  const seen = looked.filter(({ path }, index, all) => all.findIndex((other) => other.path === path) === index);
  const entries: Entry[] = [
    ...seen.map(({ path, why, verdict }) => ({
      label: `${path === worker?.path ? "$(check) " : ""}${path}`, description: why, detail: verdict, path,
    })),
    { label: "$(folder-opened) Browse…" },
    { label: "$(edit) Enter a Path…" },
  ];
  const picked = await vscode.window.showQuickPick(entries, { title: "The Python that has your torch", matchOnDescription: true });
  if (picked === undefined) return;
  const path = picked.path ?? (picked.label.includes("Browse") ? await browse() : await typed());
  if (path === undefined || path === "") return;
  const probed = await probe(path).catch((error: unknown) => {
    throw new Error(`${path} cannot be used: ${error instanceof Error ? error.message : String(error)}`);
  });
  if (probed.torch === null) throw new Error(`${path} (${described(probed)}) has no torch: install it there, or select another`);
  const target = folder === undefined ? vscode.ConfigurationTarget.Global : vscode.ConfigurationTarget.Workspace;
  await vscode.workspace.getConfiguration("hiera").update("worker.interpreter", path, target);
}

async function browse(): Promise<string | undefined> {
  return (await vscode.window.showOpenDialog({ title: "The Python that has your torch", openLabel: "Select" }))?.[0]?.fsPath;
}

async function typed(): Promise<string | undefined> {
  return await vscode.window.showInputBox({ title: "The Python that has your torch", placeHolder: "/path/to/environment/bin/python" });
}
