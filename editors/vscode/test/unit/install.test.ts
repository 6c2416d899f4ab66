// Installing packages into the extension's own folder: pip is the interpreter's, not a file that lies about.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import type { LogOutputChannel } from "vscode";
import { offerInstall } from "../../src/python/install";
import { probe } from "../../src/python/probe";
import { folder, program } from "./folders";
import { shown } from "./vscode";

test("packages are installed whole into a folder of their own", async (t) => {
  const root = folder(t);
  const said = join(root, "said");
  const python = execFileSync("python3", ["-c", "import sys; print(sys.executable)"], { encoding: "utf8" }).trim();
  const pip = program(join(root, "python"), `echo "$@" >> '${said}'; while [ "$1" != --target ]; do shift; done; mkdir -p "$2/openai"`);
  const probed = { ...(await probe(python)), executable: pip };
  shown.answer = "Install";
  const installed = await offerInstall("llm", probed, root, join(root, "installed"), { info: () => undefined } as unknown as LogOutputChannel);

  assert.equal(installed, true);
  assert.match(readFileSync(said, "utf8"), /^-P -m pip .*install --only-binary :all: --target /);
  assert.ok(existsSync(join(root, "installed", `llm-${probed.abi}`, "openai")));
});
