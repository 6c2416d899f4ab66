// Start, restart and end of the language server, and the commands to it.

import * as vscode from "vscode";
import { DidChangeConfigurationNotification, type DynamicFeature, ExecuteCommandRequest, type LanguageClient, type LanguageClientOptions, RevealOutputChannelOn, State } from "vscode-languageclient/node";
import { JobProgress } from "../jobs/progress";
import type { Choice } from "../python/choose";
import type { Pythons } from "../python/pythons";
import type { HieraClient, Interceptor, ServerState } from "./client";
import { Crashes } from "./crashes";
import { lackOf, launchOf } from "./launch";
import { middleware, type Progress } from "./middleware";
import type { RunningJob } from "./protocol";
import { QuietClient } from "./quietClient";
import { Stderr } from "./stderr";
import { within } from "./within";

const START_MS = 60_000;
const STOP_MS = 3000;
const LAST_WORDS_MS = 500;
const SELECTOR = [
  { scheme: "file", language: "python" },
  { scheme: "file", language: "cuda-cpp" },
  { scheme: "file", pattern: "**/*.{cu,cuh}" },
];

export class Connection implements HieraClient, vscode.Disposable {
  state: ServerState = "stopped";
  reason = "";
  jobs: readonly RunningJob[] = [];
  private client: LanguageClient | undefined;
  /** Settled when whoever waits for the start has done its part. */
  private ready: Promise<void> = Promise.resolve();
  private turn: Promise<void> = Promise.resolve();
  private readonly interceptors = new Map<string, Interceptor>();
  private readonly states = new vscode.EventEmitter<ServerState>();
  private readonly jobEvents = new vscode.EventEmitter<readonly RunningJob[]>();
  private readonly resultEvents = new vscode.EventEmitter<void>();
  private readonly stderr = new Stderr();
  private readonly crashes = new Crashes(() => {
    this.fail("it ended five times within three minutes, so it is not started again");
  });
  private readonly progress = new JobProgress((jobId) => {
    this.command("hiera.cancel", { jobId }).catch((error: unknown) => { this.log.warn(String(error)); });
  });
  readonly onDidChangeState = this.states.event;
  readonly onDidChangeJobs = this.jobEvents.event;
  readonly onDidChangeResults = this.resultEvents.event;

  /**
   * @param log Where everything is logged; takes secrets out itself.
   * @param pythons Finds interpreters and their packages.
   * @param started Called after each start, before anybody is told of it.
   * @param failed Called when there is no server and will be none without the user.
   */
  constructor(
    readonly log: vscode.LogOutputChannel,
    private readonly pythons: Pythons,
    private readonly started: (client: HieraClient) => Promise<void>,
    private readonly failed: (reason: string) => void,
  ) {}

  get python(): Choice | undefined {
    return this.pythons.known;
  }

  async command<Answer>(name: string, argument?: object): Promise<Answer> {
    if (this.client?.isRunning() !== true) throw new Error(`the server is not running${this.reason === "" ? "" : `: ${this.reason}`}`);
    const params = { command: name, arguments: [argument ?? {}] };
    return (await this.client.sendRequest(ExecuteCommandRequest.type, params)) as Answer;
  }

  intercept(name: string, handler: Interceptor): vscode.Disposable {
    this.interceptors.set(name, handler);
    return new vscode.Disposable(() => this.interceptors.delete(name));
  }

  resultsChanged(): void {
    this.resultEvents.fire();
  }

  restart(): Promise<void> {
    this.crashes.forget();
    this.turn = this.turn.then(() => this.end()).then(() => this.begin());
    return this.turn;
  }

  async reconsider(): Promise<void> {
    // Trust changes settings too, while the server starts because of it.
    await this.turn;
    const isOther = await this.pythons.lookAgain();
    if (isOther || this.client?.isRunning() !== true) {
      await this.restart();
      return;
    }
    await this.client.sendNotification(DidChangeConfigurationNotification.type, { settings: null });
    this.states.fire(this.state);
  }

  stop(): Promise<void> {
    this.turn = this.turn.then(() => this.end());
    return this.turn;
  }

  dispose(): void {
    for (const emitter of [this.states, this.jobEvents, this.resultEvents]) emitter.dispose();
  }

  private async begin(): Promise<void> {
    if (!vscode.workspace.isTrusted) {
      this.change("untrusted", "the workspace is not trusted");
      return;
    }
    const lack = lackOf(process.platform);
    if (lack !== undefined) {
      this.fail(lack);
      return;
    }
    this.change("starting");
    this.stderr.last = "";
    try {
      const { server, libraries } = await this.pythons.forServer();
      const launch = launchOf(server, libraries, process.env);
      this.log.info(`server: ${launch.command} (${server.why})`);
      const options = { env: { ...process.env, ...launch.environment } };
      const executable = { command: launch.command, args: [...launch.args], options };
      // A job may be asked for before the server has pulled its settings.
      const settings = await this.pythons.section(vscode.workspace.workspaceFolders?.[0]?.uri);
      this.client = new QuietClient("hiera", "HIERA", executable, this.options(settings));
      this.client.registerFeature(abilities());
      this.client.onDidChangeState(({ newState }) => { this.follow(newState); });
      this.client.onNotification("experimental/serverStatus", () => { void this.hearJobs(); });
      // Without a limit nobody could restart a server that hangs at its start.
      await within(START_MS, this.client.start());
      await this.ready;
    } catch (error) {
      this.log.error(error instanceof Error ? error : String(error));
      await this.end();
      // The connection breaks before the last words come through.
      if (this.stderr.last === "") await new Promise((resolve) => setTimeout(resolve, LAST_WORDS_MS));
      this.fail(this.stderr.last || (error instanceof Error ? error.message : String(error)));
    }
  }

  private options(settings: object): LanguageClientOptions {
    return {
      documentSelector: SELECTOR,
      outputChannel: this.log,
      traceOutputChannel: this.log,
      stdioOptions: { stdout: this.stderr.read, stderr: this.stderr.read },
      revealOutputChannelOn: RevealOutputChannelOn.Never,
      initializationOptions: { trusted: true, settings },
      initializationFailedHandler: () => false,
      errorHandler: this.crashes,
      markdown: { isTrusted: false, supportHtml: false },
      middleware: middleware({
        run: (command, argument) => this.run(command, argument),
        section: (scope) => this.pythons.section(scope),
        progress: (token, value) => this.hear(token, value),
      }),
    };
  }

  private async end(): Promise<void> {
    const client = this.client;
    this.client = undefined;
    this.loseJobs();
    if (client?.needsStop() === true) {
      try {
        await client.dispose(STOP_MS);
      } catch (error) {
        this.log.warn(`while it was stopped: ${String(error)}`);
      }
    }
    if (this.state === "running") this.change("stopped");
  }

  private follow(now: State): void {
    if (now === State.Running) {
      this.crashes.ran();
      // Without its keys it is of use too: a job that needs one says so.
      this.ready = this.started(this)
        .catch((error: unknown) => { this.log.error(String(error)); })
        .then(() => { if (this.client?.isRunning() === true) this.change("running"); });
    } else if (now === State.Stopped && this.state === "running") {
      this.loseJobs();
      this.change("starting", "it ended by itself and is started again");
    }
  }

  private fail(reason: string): void {
    this.loseJobs();
    this.change("failed", reason);
    this.log.error(`the server is not running: ${reason}`);
    this.failed(reason);
  }

  private change(state: ServerState, reason = ""): void {
    this.state = state;
    this.reason = reason;
    this.states.fire(state);
  }

  /** A command that the user gave: what is wrong with it is shown in one sentence. */
  private async run(command: string, argument: unknown): Promise<unknown> {
    try {
      const send = (): Promise<unknown> => this.command(command, argument as object | undefined);
      const handler = this.interceptors.get(command);
      return await (handler === undefined ? send() : handler(argument as Parameters<Interceptor>[0], send));
    } catch (error) {
      void vscode.window.showWarningMessage(`HIERA: ${error instanceof Error ? error.message : String(error)}`);
      return undefined;
    }
  }

  private hear(token: number | string, value: Progress): boolean {
    if (!this.progress.take(token, value)) return false;
    if (value.kind === "report") {
      const { message, percentage } = value;
      this.tellJobs(this.jobs.map((job) =>
        job.jobId === token ? { ...job, line: message ?? job.line, percentage: percentage ?? job.percentage } : job));
    } else {
      if (value.kind === "end") {
        const job = this.jobs.find(({ jobId }) => jobId === token);
        this.log.info(`${job?.symbol ?? token}: ${value.message ?? "ended"}`);
        this.resultsChanged();
      }
      void this.hearJobs();
    }
    return true;
  }

  private async hearJobs(): Promise<void> {
    try {
      this.tellJobs(await this.command<RunningJob[]>("hiera.jobs"));
    } catch (error) {
      this.log.warn(`jobs: ${String(error)}`);
    }
  }

  /** The server is gone, and its jobs with it. */
  private loseJobs(): void {
    this.progress.closeAll();
    this.tellJobs([]);
  }

  private tellJobs(jobs: readonly RunningJob[]): void {
    if (jobs.length === 0 && this.jobs.length === 0) return;
    this.jobs = jobs;
    this.jobEvents.fire(jobs);
  }
}

/**
 * What this client shows itself, and what it leaves to the server: a workspace edit that creates files opens each of
 * them in a tab, and in VS Code an undo in the module does not take such an edit back.
 */
function abilities(): Pick<DynamicFeature<unknown>, "fillClientCapabilities" | "getState" | "clear"> & { initialize(): void } {
  return {
    fillClientCapabilities: (capabilities) => {
      capabilities.experimental = {
        serverStatusNotification: true,
        commands: { commands: ["hiera.showDiff", "hiera.showExplanation"] },
      };
      const edit = capabilities.workspace?.workspaceEdit;
      if (edit !== undefined) edit.resourceOperations = [];
    },
    initialize: () => undefined,
    getState: () => ({ kind: "static" }),
    clear: () => undefined,
  };
}
