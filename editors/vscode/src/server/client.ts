// The handle on the language server that every other module takes.

import type * as vscode from "vscode";
import type { Choice } from "../python/choose";
import type { RunningJob, Site } from "./protocol";

export type ServerState = "untrusted" | "stopped" | "starting" | "running" | "failed";

export type Interceptor = (argument: CommandArgument, send: () => Promise<unknown>) => Promise<unknown>;

/** What lenses and code actions pass to commands. */
export type CommandArgument = Site & Readonly<Record<string, unknown>>;

export interface HieraClient {
  /** The log channel "HIERA". */
  readonly log: vscode.LogOutputChannel;
  readonly state: ServerState;
  readonly onDidChangeState: vscode.Event<ServerState>;
  /** Why it is in this state, in words; empty where the state says it all. */
  readonly reason: string;
  /** The interpreters, once they were looked for. */
  readonly python: Choice | undefined;
  /** Jobs at work, as last heard. */
  readonly jobs: readonly RunningJob[];
  /** A job began, went on or ended. */
  readonly onDidChangeJobs: vscode.Event<readonly RunningJob[]>;
  /** A job ended, or a result was accepted, discarded or chosen anew. */
  readonly onDidChangeResults: vscode.Event<void>;
  /**
   * Runs a command of the server, such as `hiera.result`, and gives its answer.
   * Throws an error with a sentence for the user where the server refuses or is not running.
   */
  command<Answer>(name: string, argument?: object): Promise<Answer>;
  /**
   * Stands between a command that the user gives by a lens, a code action or a menu, and the server.
   * `send` passes it on; what is thrown is shown to the user.
   */
  intercept(name: string, handler: Interceptor): vscode.Disposable;
  /** Tells everybody that results may have changed. */
  resultsChanged(): void;
  /** Starts the server, or starts it anew. Never throws: what went wrong is in `reason`. */
  restart(): Promise<void>;
  /** Looks for interpreters again; the server is started anew only where its own is another now, because jobs end with it. */
  reconsider(): Promise<void>;
  /** Ends the server. */
  stop(): Promise<void>;
}
