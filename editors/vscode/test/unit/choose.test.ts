// Which interpreters are taken: the user's torch for the kernels, and one that is new enough for the server.

import assert from "node:assert/strict";
import { join } from "node:path";
import { test, type TestContext } from "node:test";
import { choose } from "../../src/python/choose";
import type { Hints } from "../../src/python/places";
import type { Probed } from "../../src/python/probe";
import { file, folder } from "./folders";

type Found = Readonly<Record<string, Partial<Probed> | string>>;

/** The path holds these Pythons; `ask` counts how often each is asked. */
function machine(t: TestContext, found: Found, more: Partial<Hints> = {}) {
  const root = folder(t);
  for (const name of Object.keys(found)) file(join(root, name));
  const hints: Hints = {
    workerSetting: "", serverSetting: "", extensionChoice: undefined, folder: undefined,
    environment: { PATH: root }, ...more,
  };
  const asked: string[] = [];
  const ask = (path: string): Promise<Probed> => {
    const name = path.split("/").at(-1) ?? "";
    asked.push(name);
    const answer = found[name];
    if (answer === undefined || typeof answer === "string") return Promise.reject(new Error(answer ?? "no such file"));
    return Promise.resolve({
      executable: path, version: [3, 12, 1], abi: "cpython-312-x86_64-linux-gnu", system: "linux", machine: "x86_64",
      torch: null, cuda: null, has: [], ...answer,
    });
  };
  return { hints, ask, asked, root };
}

test("one Python with torch and new enough is both", async (t) => {
  const { hints, ask, asked, root } = machine(t, { python3: { torch: "2.13.0" } });

  const { worker, server } = await choose(hints, ask);

  assert.equal(worker?.path, join(root, "python3"));
  assert.equal(server?.path, join(root, "python3"));
  assert.deepEqual(asked, ["python3"]);
});

test("an old Python with torch runs the kernels, a newer one the server", async (t) => {
  const { hints, ask, root } = machine(t, { python3: { version: [3, 9, 2], torch: "2.1.0" }, "python3.12": {} });

  const { worker, server } = await choose(hints, ask);

  assert.equal(worker?.path, join(root, "python3"));
  assert.equal(server?.path, join(root, "python3.12"));
});

test("without torch anywhere there is a server, and each place says what was found", async (t) => {
  const { hints, ask } = machine(t, { python3: {}, python: "broken environment" });

  const { worker, server, looked } = await choose(hints, ask);

  assert.equal(worker, undefined);
  assert.notEqual(server, undefined);
  assert.ok(looked.some((place) => place.verdict.includes("no torch")));
  assert.ok(looked.some((place) => place.verdict.includes("broken environment")));
});

test("a setting that names a Python without torch is not worked around", async (t) => {
  const { hints, ask, root } = machine(t, { python3: { torch: "2.13.0" }, mine: {} });

  const { worker } = await choose({ ...hints, workerSetting: join(root, "mine") }, ask);

  assert.equal(worker, undefined);
});

test("only Pythons that are too old: no server, and the reason", async (t) => {
  const { hints, ask } = machine(t, { python3: { version: [3, 9, 2], torch: "2.1.0" } });

  const { server, looked } = await choose(hints, ask);

  assert.equal(server, undefined);
  assert.ok(looked.some((place) => place.verdict.includes("HIERA needs 3.11 or newer")));
});
