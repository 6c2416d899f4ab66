// The handle on the language server that every other module takes.

import * as vscode from "vscode";
import type { RunningJob } from "./protocol";

export type ServerState = "stopped" | "starting" | "running" | "failed";

export interface HieraClient {
  /** The log channel "HIERA". */
  readonly log: vscode.LogOutputChannel;
  readonly state: ServerState;
  readonly onDidChangeState: vscode.Event<ServerState>;
  /** Jobs at work, as last heard. */
  readonly jobs: readonly RunningJob[];
  /** A job began, went on or ended. */
  readonly onDidChangeJobs: vscode.Event<readonly RunningJob[]>;
  /**
   * Runs a command of the server, such as `hiera.result`, and gives its answer.
   * Throws an error with a sentence for the user where the server refuses or is not running.
   */
  command<Answer>(name: string, argument?: object): Promise<Answer>;
}
