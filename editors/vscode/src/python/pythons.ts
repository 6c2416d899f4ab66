// The interpreters of this window: looked for once a folder, with their packages, until something changes.

import * as vscode from "vscode";
import { settingsFor, textSetting } from "../server/settings";
import { type Choice, OLDEST, type Taken, choose } from "./choose";
import { chosenInterpreter } from "./extension";
import { type Group, type Libraries, librariesFor } from "./libraries";
import type { Hints } from "./places";

export class Pythons {
  /** What was found for the first folder. */
  known: Choice | undefined;
  private readonly choices = new Map<string, Promise<Choice>>();

  /**
   * @param bundled Folder of packages that came with the extension.
   * @param installed Folder of packages that were installed later.
   * @param keys The server's settings.
   */
  constructor(
    readonly bundled: string,
    readonly installed: string,
    private readonly keys: readonly string[],
    private readonly log: vscode.LogOutputChannel,
  ) {}

  /** Looks again when asked. */
  forget(): void {
    this.choices.clear();
  }

  /** Looks again now; true where the server must run under another interpreter. */
  async lookAgain(): Promise<boolean> {
    const before = this.known?.server?.probed.executable;
    this.forget();
    this.known = await this.choice(firstFolder());
    return this.known.server?.probed.executable !== before;
  }

  /** The server's interpreter with its packages; throws in words where there is none. */
  async forServer(): Promise<{ server: Taken; libraries: Libraries }> {
    this.known = await this.choice(firstFolder());
    const { server } = this.known;
    if (server === undefined) throw new Error(`no Python ${OLDEST.join(".")} or newer was found to run it`);
    return { server, libraries: librariesFor(server.probed, this.bundled, this.installed) };
  }

  /** What of the server's packages is missing. */
  missing(): readonly Group[] {
    const server = this.known?.server;
    return server === undefined ? [] : librariesFor(server.probed, this.bundled, this.installed).missing;
  }

  /** The server's settings for a folder: what the user set, and the Python that we found. */
  async section(scope: vscode.Uri | undefined): Promise<Record<string, unknown>> {
    const { worker } = await this.choice(scope ?? firstFolder());
    const set = settingsFor(this.keys, scope);
    // Never empty: the server would take an empty answer for one of a client that knows nothing of the section.
    if (worker === undefined) return { "worker.suggested": "", ...set };
    // A setting may be written with ~ or ${workspaceFolder}, which the server does not know.
    const named = "worker.interpreter" in set && set["worker.interpreter"] !== "";
    return { ...set, [named ? "worker.interpreter" : "worker.suggested"]: worker.path };
  }

  /** The interpreters for a folder. */
  choice(scope: vscode.Uri | undefined): Promise<Choice> {
    // A Python in a folder that is not trusted may be anything: it is not even asked what it is.
    if (!vscode.workspace.isTrusted) return Promise.resolve({ server: undefined, worker: undefined, looked: [] });
    const folder = scope === undefined ? undefined : vscode.workspace.getWorkspaceFolder(scope)?.uri;
    const key = folder?.toString() ?? "";
    const known = this.choices.get(key) ?? this.look(folder);
    this.choices.set(key, known);
    return known;
  }

  private async look(folder: vscode.Uri | undefined): Promise<Choice> {
    const hints: Hints = {
      workerSetting: textSetting("worker.interpreter", folder),
      serverSetting: textSetting("interpreter", folder),
      extensionChoice: await this.askExtension(folder),
      folder: folder?.fsPath,
      environment: process.env,
    };
    const choice = await choose(hints);
    for (const looked of choice.looked) this.log.info(`${looked.path} (${looked.why}): ${looked.verdict}`);
    return choice;
  }

  private async askExtension(folder: vscode.Uri | undefined): Promise<string | undefined> {
    try {
      return await chosenInterpreter(folder);
    } catch (error) {
      this.log.warn(`the Python extension does not tell its interpreter: ${String(error)}`);
      return undefined;
    }
  }
}

function firstFolder(): vscode.Uri | undefined {
  return vscode.workspace.workspaceFolders?.[0]?.uri;
}
