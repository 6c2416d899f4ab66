// Folders of packages that the server's Python needs: from the extension, or installed into a folder of its own.

import { existsSync, readdirSync } from "node:fs";
import { join } from "node:path";
import type { Probed } from "./probe";

export type Group = "native" | "llm";

/** Packages of a group; all of them must be there. */
const PACKAGES: Readonly<Record<Group, readonly string[]>> = {
  native: ["tree_sitter", "tree_sitter_cuda"],
  llm: ["openai"],
};

export interface Libraries {
  /** First on the server's path, in this order. */
  readonly folders: readonly string[];
  /** What is still missing. */
  readonly missing: readonly Group[];
}

/**
 * Finds the packages for an interpreter.
 *
 * @param bundled Folder that came with the extension.
 * @param installed Folder that `install` fills.
 */
export function librariesFor(probed: Probed, bundled: string, installed: string): Libraries {
  const folders = [join(bundled, "python")];
  const missing: Group[] = [];
  const compiled = join(bundled, `${probed.system}-${probed.machine}`);
  for (const group of ["native", "llm"] as const) {
    const own = installedFolder(probed, installed, group);
    if (group === "native" && hasCompiled(join(compiled, "tree_sitter"), probed.abi)) folders.push(compiled);
    else if (PACKAGES[group].every((name) => existsSync(join(own, name)))) folders.push(own);
    else if (!PACKAGES[group].every((name) => probed.has.includes(name))) missing.push(group);
  }
  return { folders, missing };
}

/** Where packages of a group are installed for an interpreter: compiled files fit one version of Python. */
export function installedFolder(probed: Probed, installed: string, group: Group): string {
  return join(installed, `${group}-${probed.abi}`);
}

function hasCompiled(folder: string, abi: string): boolean {
  return abi !== "" && existsSync(folder) && readdirSync(folder).some((name) => name.endsWith(`.${abi}.so`));
}
