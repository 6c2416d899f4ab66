// VS Code's server, started for one test with folders of its own.

import type { ChildProcess } from "node:child_process";
import { mkdirSync, writeFileSync } from "node:fs";
import * as path from "node:path";
import { type Editor } from "./places";
import { end, start } from "./processes";
import { until } from "./wait";

export interface Options {
  readonly editor: Editor;
  readonly folder: string;
  readonly userData: string;
  readonly extensions: string;
  readonly cache: string;
  readonly settings: Readonly<Record<string, unknown>>;
  /** Run the extension tests that the page's address names. */
  readonly runsExtensionTests: boolean;
  /** Ask whether the folder is trusted, as a desktop does; otherwise it is. */
  readonly asksForTrust: boolean;
}

export interface CodeServer {
  readonly url: string;
  /** What it wrote so far. */
  readonly output: () => string;
  readonly stop: () => Promise<void>;
}

/** Nothing that pops up over what a test looks at, and no file saved behind its back. */
const QUIET: Readonly<Record<string, unknown>> = {
  "chat.disableAIFeatures": true,
  "editor.accessibilitySupport": "off",
  "editor.minimap.enabled": false,
  "extensions.autoCheckUpdates": false,
  "extensions.autoUpdate": false,
  "files.autoSave": "off",
  "files.hotExit": "off",
  "security.workspace.trust.banner": "never",
  "security.workspace.trust.startupPrompt": "never",
  "telemetry.telemetryLevel": "off",
  "update.mode": "none",
  "workbench.enableExperiments": false,
  "workbench.secondarySideBar.defaultVisibility": "hidden",
  "workbench.startupEditor": "none",
  "workbench.tips.enabled": false,
};

export async function startCodeServer(options: Options): Promise<CodeServer> {
  // Settings that name programs are read from the machine's file in a remote window, the others from the user's.
  for (const scope of ["User", "Machine"]) {
    mkdirSync(path.join(options.userData, scope), { recursive: true });
    const settings = JSON.stringify({ ...QUIET, ...options.settings }, null, 2);
    writeFileSync(path.join(options.userData, scope, "settings.json"), settings);
  }
  const config = path.join(options.userData, "code-server.yaml");
  writeFileSync(config, "");
  const child = start(options.editor.node, [
    options.editor.entry,
    "--bind-addr", "127.0.0.1:0", "--auth", "none", "--config", config,
    "--user-data-dir", options.userData, "--extensions-dir", options.extensions,
    "--disable-telemetry", "--disable-update-check", "--disable-getting-started-override", "--ignore-last-opened",
    // VS Code 1.139 runs extension tests in a page only with it, and then shows no notifications; 1.100 has no such option.
    ...(options.runsExtensionTests && options.editor.name === "newest" ? ["--vscode-option", "enable-smoke-test-driver"] : []),
    ...(options.asksForTrust ? [] : ["--disable-workspace-trust"]),
    options.folder,
  ], environment(options));
  const chunks: string[] = [];
  for (const stream of [child.stdout, child.stderr]) {
    stream?.setEncoding("utf8").on("data", (chunk: string) => chunks.push(chunk));
  }
  const output = (): string => chunks.join("");
  try {
    return { url: await address(child, output), output, stop: () => end(child) };
  } catch (error) {
    await end(child);
    throw error;
  }
}

async function address(child: ChildProcess, output: () => string): Promise<string> {
  const told = await until("code-server to listen", () => {
    if (child.exitCode !== null) throw new Error(`code-server ended at its start:\n${output()}`);
    return /HTTP server listening on (http:\/\/127\.0\.0\.1:\d+)/.exec(output());
  }, 60_000);
  return told[1] ?? "";
}

function environment(options: Options): NodeJS.ProcessEnv {
  const env: NodeJS.ProcessEnv = { ...process.env, HIERA_CACHE: options.cache, TMPDIR: options.userData };
  // What a developer's own shell or editor would add.
  for (const name of Object.keys(env)) {
    if (/^(VSCODE_|CODE_SERVER_|OPENAI_|HIERA_(?!CACHE$)|VIRTUAL_ENV$|CONDA_PREFIX$|NODE_TEST_CONTEXT$)/.test(name)) {
      Reflect.deleteProperty(env, name);
    }
  }
  return env;
}
