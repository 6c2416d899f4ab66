// The item in the status bar, as it is read aloud.

import assert from "node:assert/strict";
import { test } from "node:test";
import type { ExtensionContext } from "vscode";
import { registerStatusBar } from "../../src/jobs/statusBar";
import type { HieraClient } from "../../src/server/client";
import { EventEmitter, shown } from "./vscode";

test("what an icon tells the eye is told the ear", () => {
  const state = { state: "failed", reason: "no Python was found", jobs: [] };
  const never = new EventEmitter<void>().event;
  const client = { ...state, onDidChangeState: never, onDidChangeJobs: never, onDidChangeResults: never };
  registerStatusBar({ subscriptions: [] } as unknown as ExtensionContext, client as unknown as HieraClient);

  assert.equal(shown.statusBar.accessibilityInformation?.label, "HIERA: The server is not running: no Python was found");
});
