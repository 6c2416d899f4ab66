// Processes that tests start: each in a group of its own that is ended whole, and a search for what outlived it.

import { type ChildProcess, spawn } from "node:child_process";
import { readdirSync, readFileSync, readlinkSync } from "node:fs";
import { until } from "./wait";

const GRACE_MS = 5_000;
const running = new Set<ChildProcess>();

// A run that is interrupted must not leave editors behind.
process.on("exit", () => {
  for (const child of running) signal(child, "SIGKILL");
});
for (const name of ["SIGINT", "SIGTERM", "SIGHUP"] as const) {
  process.once(name, () => process.exit(1));
}

export function start(command: string, args: readonly string[], env: NodeJS.ProcessEnv): ChildProcess {
  const child = spawn(command, args, { detached: true, stdio: ["ignore", "pipe", "pipe"], env });
  running.add(child);
  child.once("exit", () => {
    // The group may outlive its first process.
    signal(child, "SIGKILL");
    running.delete(child);
  });
  return child;
}

/** Asks the group to end and makes it. */
export async function end(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return;
  const ended = new Promise((resolve) => child.once("exit", resolve));
  const late = setTimeout(() => {
    signal(child, "SIGKILL");
  }, GRACE_MS);
  signal(child, "SIGTERM");
  await ended;
  clearTimeout(late);
}

/** Command lines of processes, of whatever group, that still work for `folder`; waits for those on their way out. */
export async function outlived(folder: string): Promise<string[]> {
  let found: string[] = [];
  await until("processes to end", () => (found = workingFor(folder)).length === 0, 20_000).catch(() => undefined);
  return found;
}

function workingFor(folder: string): string[] {
  return readdirSync("/proc").filter((name) => /^\d+$/.test(name) && Number(name) !== process.pid).flatMap((pid) => {
    try {
      const commandLine = readFileSync(`/proc/${pid}/cmdline`, "utf8").replaceAll("\0", " ").trim();
      const signs = [commandLine, readlinkSync(`/proc/${pid}/cwd`), readFileSync(`/proc/${pid}/environ`, "utf8")];
      return signs.some((sign) => sign.includes(folder)) ? [`${pid} ${commandLine}`] : [];
    } catch {
      return []; // It has ended, or is another user's.
    }
  });
}

function signal(child: ChildProcess, name: NodeJS.Signals): void {
  if (child.pid === undefined) return;
  try {
    process.kill(-child.pid, name);
  } catch {
    // Already gone.
  }
}
