// Commands whose mistakes are told in one sentence.

import * as vscode from "vscode";
import type { HieraClient } from "../server/client";

/** Registers commands; what one throws is shown. */
export function registerAll(client: HieraClient, commands: Readonly<Record<string, (argument?: unknown) => unknown>>): vscode.Disposable {
  return vscode.Disposable.from(...Object.entries(commands).map(([id, run]) =>
    vscode.commands.registerCommand(id, async (argument?: unknown) => {
      try {
        return await run(argument);
      } catch (error) {
        const text = error instanceof Error ? error.message : String(error);
        client.log.warn(`${id}: ${text}`);
        void vscode.window.showWarningMessage(`HIERA: ${text}`);
        return undefined;
      }
    }),
  ));
}
