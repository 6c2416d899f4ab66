// Start of jobs: the file is saved first, because a job reads it from the disk.

import * as vscode from "vscode";
import { offerInstall } from "../python/install";
import type { Pythons } from "../python/pythons";
import type { CommandArgument, HieraClient } from "../server/client";
import { registerAll } from "./register";
import { chosenSite } from "./sites";

const PRESETS = [
  { label: "quick", description: "6 candidates" },
  { label: "normal", description: "18 candidates" },
  { label: "deep", description: "50 candidates" },
];

export function registerOptimize(context: vscode.ExtensionContext, client: HieraClient, pythons: Pythons): void {
  const start = async (argument: CommandArgument, send: () => Promise<unknown>): Promise<unknown> => {
    const uri = vscode.Uri.parse(argument.uri);
    const document = vscode.workspace.textDocuments.find((open) => open.uri.toString() === uri.toString());
    if (document?.isDirty === true && !(await document.save())) throw new Error("the file could not be saved: a job reads it from the disk");
    if (!(await hasTorch(client, pythons, uri)) || !(await hasPackages(client, pythons, uri))) return undefined;
    return await send();
  };
  const run = async (command: string, more: object = {}): Promise<unknown> => {
    const site = await chosenSite(client);
    if (site === undefined) return undefined;
    const argument = { uri: site.uri, symbol: site.symbol, ...more };
    return await start(argument, () => client.command(command, argument));
  };
  context.subscriptions.push(
    ...["hiera.optimize", "hiera.profile", "hiera.reverify"].map((name) => client.intercept(name, start)),
    registerAll(client, {
      "hiera.optimizeKernel": () => run("hiera.optimize"),
      "hiera.optimizeKernelWith": async () => {
        const preset = await vscode.window.showQuickPick(PRESETS, { title: "How large a search?" });
        return preset === undefined ? undefined : await run("hiera.optimize", { preset: preset.label });
      },
      "hiera.profileKernel": () => run("hiera.profile"),
    }),
  );
}

/** Asks for an interpreter where none has torch; the project's own files may name one that we do not know. */
async function hasTorch(client: HieraClient, pythons: Pythons, uri: vscode.Uri): Promise<boolean> {
  const { worker, looked } = await pythons.choice(uri);
  if (worker !== undefined) return true;
  const places = looked.map(({ path }) => path).filter((path, index, all) => all.indexOf(path) === index);
  const text = `HIERA found no Python with torch${places.length === 0 ? "" : ` (looked at ${places.join(", ")})`}.`;
  const answer = await vscode.window.showWarningMessage(text, "Select Python", "Try Anyway");
  if (answer === "Select Python") await vscode.commands.executeCommand("hiera.selectInterpreter");
  client.log.warn(text);
  return answer === "Try Anyway";
}

/** Offers to install what the job imports and neither we nor the interpreter bring. */
async function hasPackages(client: HieraClient, pythons: Pythons, uri: vscode.Uri): Promise<boolean> {
  const server = client.python?.server;
  const wantsModel = vscode.workspace.getConfiguration("hiera", uri).get("agent") === "llm";
  const needed = pythons.missing().filter((group) => group === "native" || wantsModel);
  for (const group of server === undefined ? [] : needed) {
    if (server === undefined || !(await offerInstall(group, server.probed, pythons.bundled, pythons.installed, client.log))) return false;
  }
  if (needed.length > 0) await client.restart();
  return true;
}
