// Keys never reach the log.

import assert from "node:assert/strict";
import { test } from "node:test";
import type * as vscode from "vscode";
import { redacted, Secrets } from "../../src/server/redact";

const KEY = 'sk-"quoted\\and-long';

function channel(): { log: vscode.LogOutputChannel; lines: unknown[]; secrets: Secrets } {
  const lines: unknown[] = [];
  const keep = (...words: unknown[]): void => { lines.push(...words); };
  const plain = { trace: keep, info: keep, error: keep, append: keep, appendLine: keep, replace: keep, show: keep };
  const secrets = new Secrets();
  return { log: redacted(plain as unknown as vscode.LogOutputChannel, secrets), lines, secrets };
}

test("a key is taken out of texts, messages as JSON, objects and errors", () => {
  const { log, lines, secrets } = channel();
  secrets.add(KEY);

  log.info(`the key is ${KEY}.`);
  log.trace(JSON.stringify({ params: { key: KEY } }));
  log.appendLine(KEY);
  log.error(new Error(`refused: ${KEY}`));
  log.info("with arguments", { key: KEY });

  const told = lines.join("\n");
  assert.ok(!told.includes(KEY) && !told.includes(JSON.stringify(KEY).slice(1, -1)), told);
  assert.ok(told.includes("the key is (secret)."));
  assert.ok(told.includes("refused: (secret)"));
});

test("without a key, and with an empty one, texts stay as they are", () => {
  const { log, lines, secrets } = channel();
  secrets.add("");

  log.info("as it is", 3);
  log.show(true);

  assert.deepEqual(lines, ["as it is", "3", true]);
});
