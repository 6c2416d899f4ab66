// What real and broken interpreters answer when they are asked what they are.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { join } from "node:path";
import { test } from "node:test";
import { described, probe } from "../../src/python/probe";
import { file, folder, program } from "./folders";

const python = execFileSync("python3", ["-c", "import sys; print(sys.executable)"], { encoding: "utf8" }).trim();

test("a Python says its version and the names of its compiled packages", async () => {
  const probed = await probe(python);

  const version = execFileSync(python, ["-c", "import platform; print(platform.python_version())"], { encoding: "utf8" });
  assert.equal(probed.version.join("."), version.trim());
  assert.match(probed.abi, /^cpython-3/);
  assert.equal(probed.system, "linux");
});

test("torch is found with its version, and not imported", async (t) => {
  const root = folder(t);
  file(join(root, "torch", "__init__.py"), "raise SystemExit('imported')");
  file(join(root, "torch", "version.py"), "__version__ = '2.9.1+cu128'\ncuda = '12.8'\n");
  const wrapped = program(join(root, "python"), `PYTHONPATH='${root}' exec '${python}' "$@"`);

  const probed = await probe(wrapped);

  assert.match(described(probed), /^Python 3\.\d+\.\d+, torch 2\.9\.1\+cu128 \(CUDA 12\.8\)$/);
});

test("what an interpreter prints at its start does not matter", async (t) => {
  const noisy = program(join(folder(t), "python"), `echo welcome; exec '${python}' "$@"`);

  assert.ok((await probe(noisy)).version[0] >= 3);
});

test("a module where temporary files lie is none of the interpreter's", async (t) => {
  const root = folder(t);
  const before = process.env["TMPDIR"];
  t.after(() => {
    if (before === undefined) delete process.env["TMPDIR"];
    else process.env["TMPDIR"] = before;
  });
  file(join(root, "json.py"), "raise SystemExit('the wrong json')");
  process.env["TMPDIR"] = root;

  assert.ok((await probe(python)).version[0] >= 3);
});

test("what cannot be an interpreter is told in words", async (t) => {
  const root = folder(t);

  await assert.rejects(probe(join(root, "none")), /no such file/);
  await assert.rejects(probe(program(join(root, "fails"), "echo broken environment >&2; exit 1")), /broken environment/);
  await assert.rejects(probe(program(join(root, "silent"), "exit 3")), /^Error: \S/);
  await assert.rejects(probe(file(join(root, "text"), "not a program")), /^Error: \S/);
  await assert.rejects(probe(program(join(root, "other"), "echo hello")), /does not answer as Python does/);
});
