// Which folders of packages the server's Python is given, and what is said to be missing.

import assert from "node:assert/strict";
import { join } from "node:path";
import { test } from "node:test";
import { installedFolder, librariesFor } from "../../src/python/libraries";
import type { Probed } from "../../src/python/probe";
import { launchOf } from "../../src/server/launch";
import { file, folder } from "./folders";

const PYTHON: Probed = {
  executable: "/usr/bin/python3", version: [3, 11, 2], abi: "cpython-311-x86_64-linux-gnu", system: "linux",
  machine: "x86_64", torch: null, cuda: null, has: [],
};

test("compiled packages of the extension serve the Python that they are for", (t) => {
  const bundled = folder(t);
  file(join(bundled, "linux-x86_64", "tree_sitter", `_binding.${PYTHON.abi}.so`));

  const fits = librariesFor(PYTHON, bundled, join(bundled, "installed"));
  const other = librariesFor({ ...PYTHON, abi: "cpython-315-x86_64-linux-gnu" }, bundled, join(bundled, "installed"));

  assert.deepEqual(fits, { folders: [join(bundled, "python"), join(bundled, "linux-x86_64")], missing: ["llm"] });
  assert.deepEqual(other, { folders: [join(bundled, "python")], missing: ["native", "llm"] });
});

test("what was installed for this Python is taken, and what it has itself is not missed", (t) => {
  const root = folder(t);
  const own = installedFolder(PYTHON, root, "native");
  for (const name of ["tree_sitter", "tree_sitter_cuda"]) file(join(own, name, "__init__.py"));

  const found = librariesFor({ ...PYTHON, has: ["openai"] }, join(root, "bundled"), root);

  assert.deepEqual(found, { folders: [join(root, "bundled", "python"), own], missing: [] });
});

test("half of a group is not the group", (t) => {
  const root = folder(t);
  file(join(installedFolder(PYTHON, root, "native"), "tree_sitter", "__init__.py"));

  assert.deepEqual(librariesFor(PYTHON, root, root).missing, ["native", "llm"]);
});

test("the server is started with the extension's packages first and the user's folder nowhere", () => {
  const taken = { path: "/usr/bin/python3", why: "python3 on the path", probed: PYTHON };

  const launch = launchOf(taken, { folders: ["/a", "/b"], missing: [] }, {});

  assert.equal(launch.command, PYTHON.executable);
  assert.ok(launch.args.includes("-P"));
  assert.equal(launch.environment["HIERA_LIBRARIES"], "/a:/b");
});
