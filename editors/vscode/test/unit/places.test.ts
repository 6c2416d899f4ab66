// Where a Python is looked for, and in which order.

import assert from "node:assert/strict";
import { homedir } from "node:os";
import { join } from "node:path";
import { test, type TestContext } from "node:test";
import { type Hints, type Place, serverPlaces, workerPlaces } from "../../src/python/places";
import { file, folder } from "./folders";

const NOTHING: Hints = {
  workerSetting: "", serverSetting: "", extensionChoice: undefined, folder: undefined, environment: {},
};

function everything(t: TestContext): { hints: Hints; at: (name: string) => string } {
  const root = folder(t);
  const at = (name: string): string => join(root, name);
  for (const name of ["chosen", "project/.venv/bin/python", "virtual/bin/python", "conda/bin/python", "bin/python3"]) {
    file(at(name));
  }
  return {
    at,
    hints: {
      ...NOTHING,
      extensionChoice: at("chosen"),
      folder: at("project"),
      environment: { VIRTUAL_ENV: at("virtual"), CONDA_PREFIX: at("conda"), PATH: `${at("none")}:${at("bin")}` },
    },
  };
}

const paths = (places: readonly Place[]): string[] => places.map((place) => place.path);

test("the Python extension's choice comes first, then the folder's own, the shell's, the path's", (t) => {
  const { hints, at } = everything(t);

  const places = workerPlaces(hints);

  const order = ["chosen", "project/.venv/bin/python", "virtual/bin/python", "conda/bin/python", "bin/python3"];
  assert.deepEqual(paths(places), order.map(at));
  assert.ok(places.every((place) => place.why !== ""));
});

test("a setting is meant: nothing else is looked at", (t) => {
  const { hints, at } = everything(t);

  const places = workerPlaces({ ...hints, workerSetting: at("mine") });

  assert.deepEqual(paths(places), [at("mine")]);
});

test("settings take ~, the folder, relative paths and names of commands", (t) => {
  const { hints, at } = everything(t);
  const path = (workerSetting: string): string[] => paths(workerPlaces({ ...hints, workerSetting }));

  assert.deepEqual(path("~/env/bin/python"), [join(homedir(), "env/bin/python")]);
  assert.deepEqual(path("${workspaceFolder}/env/bin/python"), [at("project/env/bin/python")]);
  assert.deepEqual(path("env/bin/python"), [at("project/env/bin/python")]);
  assert.deepEqual(path("python3"), [at("bin/python3")]);
  assert.deepEqual(path("no-such-python"), ["no-such-python"]);
});

test("the server runs where torch is, if it can", (t) => {
  const { hints, at } = everything(t);
  const worker = { path: at("virtual/bin/python"), why: "it has torch" };

  const places = serverPlaces(hints, worker);

  assert.equal(places[0], worker);
  assert.equal(new Set(paths(places)).size, places.length);
  assert.deepEqual(paths(serverPlaces({ ...hints, serverSetting: at("own") }, worker)), [at("own")]);
});

test("where there is nothing, there is no place", () => {
  assert.deepEqual(workerPlaces(NOTHING), []);
  assert.deepEqual(serverPlaces(NOTHING, undefined), []);
});
