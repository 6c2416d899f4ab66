// Where to look for a Python, in the order of how plainly the user said so. Knows nothing of VS Code.

import { existsSync } from "node:fs";
import { homedir } from "node:os";
import { delimiter, isAbsolute, join } from "node:path";

/** An interpreter to look at, and why. */
export interface Place {
  readonly path: string;
  readonly why: string;
}

/** What may name an interpreter. */
export interface Hints {
  readonly workerSetting: string;
  readonly serverSetting: string;
  readonly extensionChoice: string | undefined;
  readonly folder: string | undefined;
  readonly environment: Readonly<Record<string, string | undefined>>;
}

/** Interpreters to look at for the user's torch, each once. */
export function workerPlaces(hints: Hints): Place[] {
  if (hints.workerSetting !== "") {
    return [{ path: expanded(hints.workerSetting, hints), why: "the setting hiera.worker.interpreter" }];
  }
  return unique([...named(hints), ...found(hints)]);
}

/** Interpreters to look at for the server: the one with torch first, because one Python is easier to understand. */
export function serverPlaces(hints: Hints, worker: Place | undefined): Place[] {
  if (hints.serverSetting !== "") return named(hints);
  return unique([...(worker === undefined ? [] : [worker]), ...found(hints)]);
}

function named(hints: Hints): Place[] {
  if (hints.serverSetting === "") return [];
  return [{ path: expanded(hints.serverSetting, hints), why: "the setting hiera.interpreter" }];
}

function found(hints: Hints): Place[] {
  const places: Place[] = [];
  if (hints.extensionChoice !== undefined) {
    places.push({ path: hints.extensionChoice, why: "chosen in the Python extension" });
  }
  for (const name of hints.folder === undefined ? [] : [".venv", "venv"]) {
    places.push({ path: join(hints.folder ?? "", name, "bin", "python"), why: `the folder's ${name}` });
  }
  for (const variable of ["VIRTUAL_ENV", "CONDA_PREFIX"]) {
    const prefix = hints.environment[variable];
    if (prefix !== undefined && prefix !== "") places.push({ path: join(prefix, "bin", "python"), why: `$${variable}` });
  }
  for (const name of ["python3", "python", "python3.14", "python3.13", "python3.12", "python3.11"]) {
    const path = onPath(name, hints.environment["PATH"] ?? "");
    if (path !== undefined) places.push({ path, why: `${name} on the path` });
  }
  return places.filter((place) => existsSync(place.path));
}

/** `~`, `${workspaceFolder}` and plain command names, as other extensions' settings take them. */
function expanded(path: string, hints: Hints): string {
  const full = path.replace(/^~(?=\/|$)/, homedir()).replaceAll("${workspaceFolder}", hints.folder ?? "");
  if (isAbsolute(full)) return full;
  if (full.includes("/")) return join(hints.folder ?? "", full);
  return onPath(full, hints.environment["PATH"] ?? "") ?? full;
}

function onPath(name: string, path: string): string | undefined {
  return path.split(delimiter).filter((folder) => folder !== "").map((folder) => join(folder, name)).find(existsSync);
}

function unique(places: readonly Place[]): Place[] {
  return places.filter((place, index) => places.findIndex((other) => other.path === place.path) === index);
}
