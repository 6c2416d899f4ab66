// Where everything is: the checkout, the editors that install.mjs put there, and what a failed test leaves behind.

import { existsSync, readdirSync, readFileSync } from "node:fs";
import * as path from "node:path";

// The tests are bundled two folders below the extension.
export const EXTENSION = path.join(__dirname, "..", "..");
export const CHECKOUT = path.join(EXTENSION, "..", "..");
export const EDITORS = path.join(EXTENSION, ".vscode-test");
/** Git-ignored; CI prints and may keep it. */
export const FAILURES = path.join(EDITORS, "failures");
export const FIXTURES = path.join(EXTENSION, "test", "fixtures");

/** A VS Code under test. */
export interface Editor {
  readonly name: string;
  readonly vscode: string;
  readonly node: string;
  readonly entry: string;
  /** Holds the extension, installed from its .vsix as a user does. */
  readonly extensions: string;
}

export function editor(name: string): Editor {
  const folder = path.join(EDITORS, name);
  const { entry, vscode } = json(path.join(folder, "installed.json")) as { entry: string; vscode: string };
  return { name, vscode, entry, node: path.join(folder, "node"), extensions: path.join(folder, "extensions") };
}

/** Where the extension was unpacked from its .vsix. */
export function installed({ extensions }: Editor): string {
  const found = existsSync(extensions) ? readdirSync(extensions).find((entry) => entry.startsWith("hiera.")) : undefined;
  if (found === undefined) throw new Error(`the extension is not in ${extensions}: run node test/prepare.mjs`);
  return path.join(extensions, found);
}

export function browser(): string {
  return (json(path.join(EDITORS, "browser.json")) as { executable: string }).executable;
}

/** The Python with torch that users would choose: the checkout's own environment. */
export function python(): string {
  const file = path.join(CHECKOUT, ".venv", "bin", "python");
  if (!existsSync(file)) throw new Error(`${file} is missing: run make setup`);
  return file;
}

function json(file: string): unknown {
  if (!existsSync(file)) throw new Error(`${file} is missing: run node test/install.mjs`);
  return JSON.parse(readFileSync(file, "utf8"));
}
