// The review: what the user accepts is what the user sees, whatever the server has chosen since.

import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";
import { Review } from "../../src/review/review";
import type { HieraClient } from "../../src/server/client";
import { shown, TabInputTextDiff } from "./vscode";

const SITE = { uri: "file:///a%40b/model.py", symbol: "Block" };
const server = { run: "r-1", chosen: "a", sent: [] as [string, object | undefined][] };

function answer(name: string): unknown {
  const { run, chosen } = server;
  const candidates = ["a", "b"].map((id) => ({ id, speedup: 1.5 }));
  switch (name) {
    case "hiera.diff": return { left: null, right: `hiera-candidate:/${run}/${chosen}/block.cu` };
    case "hiera.result": return { ...SITE, summary: { run, candidates }, chosen, choices: ["a", "b"], no_gain: "" };
    default: return { applied: true };
  }
}

const client = {
  command: (name: string, argument?: object) => {
    server.sent.push([name, argument]);
    return Promise.resolve(answer(name));
  },
  resultsChanged: () => undefined,
} as unknown as HieraClient;

function reviewed(): string[] {
  return shown.tabs.flatMap(({ input }) => (input instanceof TabInputTextDiff ? [input.modified.toString()] : []));
}

beforeEach(() => {
  Object.assign(server, { run: "r-1", chosen: "a", sent: [] });
  shown.tabs = [];
});

test("accept and discard name what the review shows", async () => {
  const review = new Review(client);
  await review.open(SITE);
  Object.assign(server, { run: "r-2", chosen: "b" });
  await review.accept();
  const accepted = server.sent.at(-1);
  await review.open(SITE);
  await review.discard();

  assert.deepEqual(accepted, ["hiera.accept", { ...SITE, run: "r-1", candidate: "a" }]);
  assert.deepEqual(server.sent.at(-1), ["hiera.discard", { ...SITE, run: "r-2" }]);
});

test("what a lens names is the server's to choose", async () => {
  await new Review(client).accept(SITE);

  assert.deepEqual(server.sent, [["hiera.accept", SITE]]);
});

test("a site has one review, however its path is spelled", async () => {
  const review = new Review(client);
  await review.open(SITE);
  server.chosen = "b";
  await review.open({ ...SITE, uri: "file:///a@b/model.py" });

  assert.deepEqual(reviewed(), ["hiera-candidate:/r-1/b/block.cu"]);
});
