// The interpreters of a window: none is started before the workspace is trusted.

import assert from "node:assert/strict";
import { existsSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import type { LogOutputChannel } from "vscode";
import { Pythons } from "../../src/python/pythons";
import { folder, program } from "./folders";
import { workspace } from "./vscode";

test("the Python of a folder is asked what it is only where the folder is trusted", async (t) => {
  const root = folder(t);
  const started = join(root, "started");
  program(join(root, ".venv", "bin", "python"), `touch '${started}'`);
  workspace.workspaceFolders = [{ uri: { fsPath: root } }];
  const log = { info: () => undefined, warn: () => undefined } as unknown as LogOutputChannel;
  const pythons = new Pythons(root, root, [], log);

  workspace.isTrusted = false;
  await pythons.lookAgain();
  assert.equal(existsSync(started), false);

  workspace.isTrusted = true;
  await pythons.lookAgain();
  assert.equal(existsSync(started), true);
});
