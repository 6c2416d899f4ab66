// Installs missing packages into the extension's own folder, after a yes. The user's environment stays as it is.

import { spawn } from "node:child_process";
import { mkdir, rename, rm } from "node:fs/promises";
import { dirname, join } from "node:path";
import * as vscode from "vscode";
import { type Group, installedFolder } from "./libraries";
import type { Probed } from "./probe";

const LIMIT_MS = 10 * 60_000;
const PURPOSE: Readonly<Record<Group, string>> = {
  native: "HIERA reads .cu files with tree-sitter, which does not come with it for this Python",
  llm: "A language model needs the package openai",
};

/** Asks, and installs. True when the packages are there. */
export async function offerInstall(
  group: Group, probed: Probed, bundled: string, installed: string, log: vscode.LogOutputChannel,
): Promise<boolean> {
  const version = probed.version.join(".");
  const question = `${PURPOSE[group]} (${version}). Install it into a folder of HIERA's own? Your environment stays as it is.`;
  if ((await vscode.window.showWarningMessage(question, "Install")) !== "Install") return false;
  const target = installedFolder(probed, installed, group);
  const file = join(bundled, `requirements-${group}.txt`);
  try {
    await vscode.window.withProgress(
      { location: vscode.ProgressLocation.Notification, title: "HIERA: installing packages", cancellable: true },
      (_progress, token) => install(probed.executable, file, target, log, token),
    );
    return true;
  } catch (error) {
    const text = `HIERA: the packages could not be installed: ${error instanceof Error ? error.message : String(error)}`;
    if ((await vscode.window.showErrorMessage(text, "Show Logs")) === "Show Logs") log.show();
    return false;
  }
}

async function install(
  python: string, file: string, target: string, log: vscode.LogOutputChannel, token: vscode.CancellationToken,
): Promise<void> {
  await mkdir(dirname(target), { recursive: true });
  // A half-filled folder must never look whole.
  const filling = `${target}.new`;
  await rm(filling, { recursive: true, force: true });
  const common = ["install", "--only-binary", ":all:", "--target", filling, "-r", file];
  try {
    // -P: a `pip.py` in the folder that we run in is not pip.
    await run(python, ["-P", "-m", "pip", "--disable-pip-version-check", ...common], log, token);
  } catch (error) {
    // Environments made by uv have no pip.
    if (!(error instanceof Error) || !error.message.includes("No module named pip")) throw error;
    await run("uv", ["pip", ...common, "--python", python], log, token);
  }
  await rm(target, { recursive: true, force: true });
  await rename(filling, target);
}

function run(
  command: string, args: readonly string[], log: vscode.LogOutputChannel, token: vscode.CancellationToken,
): Promise<void> {
  log.info(`${command} ${args.join(" ")}`);
  return new Promise((resolve, reject) => {
    const child = spawn(command, args, { stdio: ["ignore", "pipe", "pipe"], timeout: LIMIT_MS, killSignal: "SIGKILL" });
    const cancelling = token.onCancellationRequested(() => child.kill("SIGKILL"));
    let last = "";
    const heard = (data: Buffer): void => {
      for (const line of data.toString().split("\n").filter((text) => text.trim() !== "")) {
        log.info(line);
        if (/error|No module/i.test(line)) last = line;
      }
    };
    child.stdout.on("data", heard);
    child.stderr.on("data", heard);
    child.on("error", reject);
    child.on("close", (status) => {
      cancelling.dispose();
      if (status === 0) resolve();
      else reject(new Error(token.isCancellationRequested ? "cancelled" : last || `${command} ended with ${status ?? "a signal"}`));
    });
  });
}
