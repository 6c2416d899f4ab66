// Folders and little programs for tests, gone when the test is.

import { chmodSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import type { TestContext } from "node:test";

export function folder(t: TestContext): string {
  const made = mkdtempSync(join(tmpdir(), "hiera-unit-"));
  t.after(() => {
    rmSync(made, { recursive: true, force: true });
  });
  return made;
}

export function file(path: string, text = ""): string {
  mkdirSync(dirname(path), { recursive: true });
  writeFileSync(path, text);
  return path;
}

/** A program of a few lines of shell. */
export function program(path: string, text: string): string {
  file(path, `#!/bin/sh\n${text}\n`);
  chmodSync(path, 0o755);
  return path;
}
