// One test in one VS Code: fresh folders, a fresh server, a page; evidence when it fails; nothing left when it ends.

import { cpSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import * as path from "node:path";
import { chromium, type Browser, type Page } from "playwright-core";
import { startCodeServer } from "./codeServer";
import { browser, FAILURES, FIXTURES, installed, python, type Editor } from "./places";
import { outlived } from "./processes";
import { Project } from "./project";
import { Workbench } from "./workbench";

export interface Wanted {
  /** Names the folder of evidence. */
  readonly name: string;
  readonly editor: Editor;
  /** Files of test/fixtures that the project holds. */
  readonly files: readonly string[];
  readonly settings?: Readonly<Record<string, unknown>>;
  readonly asksForTrust?: boolean;
  /** A bundle of extension tests, run in place of a user's session. */
  readonly extensionTests?: string;
  readonly size?: { readonly width: number; readonly height: number };
  readonly beforeOpening?: (page: Page) => Promise<void>;
}

const BROWSER_ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"];
const WAIT_MS = 30_000;

/**
 * Opens the project in a real VS Code, does `body`, and leaves nothing behind; a failure leaves a picture.
 *
 * A browser on a busy machine drops a click now and then, so what fails is played once more in a fresh editor, and the
 * first failure is told. A fault fails twice.
 */
export async function inVsCode(wanted: Wanted, body: (vs: Workbench, project: Project) => Promise<void>): Promise<void> {
  try {
    await once(wanted, body);
  } catch (error) {
    process.stderr.write(`${wanted.name} (${wanted.editor.name}) is played again: ${String(error)}\n`);
    await once({ ...wanted, name: `${wanted.name} again` }, body);
  }
}

async function once(wanted: Wanted, body: (vs: Workbench, project: Project) => Promise<void>): Promise<void> {
  const root = mkdtempSync(path.join(tmpdir(), "hiera-vscode-"));
  const project = new Project(path.join(root, "project"));
  mkdirSync(project.folder);
  for (const file of wanted.files) cpSync(path.join(FIXTURES, file), project.path(file));
  try {
    await withServer(wanted, root, project, body);
    const left = await outlived(root);
    if (left.length > 0) throw new Error(`processes outlived VS Code:\n${left.join("\n")}`);
  } finally {
    for (const line of await outlived(root)) process.kill(Number.parseInt(line, 10), "SIGKILL");
    rmSync(root, { recursive: true, force: true, maxRetries: 5 });
  }
}

async function withServer(
  wanted: Wanted, root: string, project: Project, body: (vs: Workbench, project: Project) => Promise<void>,
): Promise<void> {
  const userData = path.join(root, "user");
  const server = await startCodeServer({
    editor: wanted.editor,
    folder: project.folder,
    userData,
    // Under test, the extension is loaded by the page's address.
    extensions: wanted.extensionTests === undefined ? wanted.editor.extensions : path.join(root, "extensions"),
    cache: path.join(root, "cache"),
    settings: { "hiera.worker.interpreter": python(), "hiera.device": "none", ...wanted.settings },
    asksForTrust: wanted.asksForTrust ?? false,
    runsExtensionTests: wanted.extensionTests !== undefined,
  });
  let chromiumBrowser: Browser | undefined;
  try {
    chromiumBrowser = await chromium.launch({ executablePath: browser(), args: BROWSER_ARGUMENTS });
    const context = await chromiumBrowser.newContext({
      viewport: wanted.size ?? { width: 1280, height: 800 },
      permissions: ["clipboard-read", "clipboard-write"],
    });
    const page = await context.newPage();
    page.setDefaultTimeout(WAIT_MS);
    const consoleLines: string[] = [];
    page.on("console", (message) => consoleLines.push(`${message.type()}: ${message.text()}`));
    await wanted.beforeOpening?.(page);
    const vs = new Workbench(page, wanted.editor);
    try {
      await page.goto(address(wanted, server.url, project.folder));
      await body(vs, project);
    } catch (error) {
      const folder = path.join(FAILURES, `${wanted.name} (${wanted.editor.name})`.replaceAll(/[^\w ().-]/g, "_"));
      await keepEvidence(folder, vs, project, userData, { "server.log": server.output(), "console.log": consoleLines.join("\n") });
      throw new Error(`${String(error)}\nevidence: ${folder}`, { cause: error });
    }
  } finally {
    await chromiumBrowser?.close();
    await server.stop();
  }
}

function address(wanted: Wanted, url: string, folder: string): string {
  const opened = `${url}/?folder=${encodeURIComponent(folder)}`;
  if (wanted.extensionTests === undefined) return opened;
  const remote = (file: string): string => `vscode-remote://${new URL(url).host}${file}`;
  const payload = [
    ["extensionDevelopmentPath", remote(installed(wanted.editor))],
    ["extensionTestsPath", remote(wanted.extensionTests)],
    ["skipWelcome", "true"],
  ];
  return `${opened}&payload=${encodeURIComponent(JSON.stringify(payload))}`;
}

async function keepEvidence(
  folder: string, vs: Workbench, project: Project, userData: string, logs: Readonly<Record<string, string>>,
): Promise<void> {
  rmSync(folder, { recursive: true, force: true });
  mkdirSync(folder, { recursive: true });
  for (const [name, text] of Object.entries(logs)) writeFileSync(path.join(folder, name), text);
  cpSync(path.join(userData, "logs"), path.join(folder, "logs"), { recursive: true });
  cpSync(project.folder, path.join(folder, "project"), { recursive: true });
  try {
    await vs.picture(path.join(folder, "failure.png"));
  } catch (error) {
    writeFileSync(path.join(folder, "no-picture.txt"), String(error));
  }
}
