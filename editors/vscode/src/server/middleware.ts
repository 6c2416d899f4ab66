// Between VS Code and the server: settings as the user set them, commands with a face, edits that are saved.

import * as vscode from "vscode";
import type { ConfigurationParams, Middleware, ProgressToken, WorkDoneProgressBegin, WorkDoneProgressEnd, WorkDoneProgressReport } from "vscode-languageclient/node";

export type Progress = WorkDoneProgressBegin | WorkDoneProgressReport | WorkDoneProgressEnd;

export interface Hooks {
  /** Runs a command of the server that the user gave. */
  run(command: string, argument: unknown): Promise<unknown>;
  /** The `hiera` section for a folder. */
  section(scope: vscode.Uri | undefined): Promise<Record<string, unknown>>;
  /** True where the progress is shown by us. */
  progress(token: ProgressToken, value: Progress): boolean;
}

/** Data that the server puts into actions whose edit is made when they are chosen. */
interface Deferred {
  readonly do: string;
  readonly uri: string;
  readonly symbol: string;
}

export function middleware(hooks: Hooks): Middleware {
  return {
    executeCommand: (command, args: unknown[]) => hooks.run(command, args[0]),
    handleWorkDoneProgress: (token, value, next) => {
      if (!hooks.progress(token, value)) next(token, value);
    },
    provideCodeActions: async (document, range, context, token, next) => {
      const actions = await next(document, range, context, token);
      for (const action of actions ?? []) if (action instanceof vscode.CodeAction) withCommand(action);
      return actions;
    },
    resolveCodeAction: (action, token, next) => (isCommanded(action) ? action : next(action, token)),
    workspace: {
      configuration: async (params: ConfigurationParams) =>
        await Promise.all(
          params.items.map(async ({ section, scopeUri }) =>
            section === "hiera" ? await hooks.section(scopeUri === undefined ? undefined : vscode.Uri.parse(scopeUri)) : null,
          ),
        ),
    },
  };
}

/**
 * Lets the server apply the edit of an action itself: what a code action creates stays unsaved in VS Code,
 * what a refactoring of the server changes is written to disk.
 */
function withCommand(action: vscode.CodeAction): void {
  const data = deferred(action);
  if (data === undefined || !isCommanded(action) || action.disabled !== undefined) return;
  action.command = { title: action.title, command: `hiera.${data.do}`, arguments: [{ uri: data.uri, symbol: data.symbol }] };
}

function isCommanded(action: vscode.CodeAction): boolean {
  return ["accept", "use"].includes(deferred(action)?.do ?? "");
}

function deferred(action: vscode.CodeAction): Deferred | undefined {
  return (action as vscode.CodeAction & { readonly data?: Deferred }).data;
}
