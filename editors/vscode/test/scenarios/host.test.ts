// Runs the extension tests of test/host in the extension process of each real VS Code.

import assert from "node:assert/strict";
import * as path from "node:path";
import { test } from "node:test";
import { editor, EXTENSION } from "../harness/places";
import { inVsCode } from "../harness/session";
import { REPORT } from "../host/report";

const LIMIT_MS = 600_000;
const LAST_LINES = 30;

for (const name of ["newest", "oldest"]) {
  test(`extension tests, ${name}`, async () => {
    let ended = (_code: number): void => undefined;
    const code = new Promise<number>((resolve) => (ended = resolve));
    const lines: string[] = [];
    await inVsCode({
      name: "extension tests",
      editor: editor(name),
      files: ["model.py", "twice.cu"],
      extensionTests: path.join(EXTENSION, "out", "host", "index.js"),
      beforeOpening: async (page) => {
        await page.exposeFunction("codeAutomationExit", (value: number) => { ended(value); });
        await page.exposeFunction("codeAutomationLog", (_type: string, words: unknown[]) => lines.push(words.join(" ")));
      },
    }, async (_vs, project) => {
      const late = new Promise<string>((resolve) => setTimeout(resolve, LIMIT_MS, "no answer in time").unref());
      const result = await Promise.race([code, late]);
      const told = project.exists(REPORT) ? project.text(REPORT) : lines.slice(-LAST_LINES).join("\n");
      process.stdout.write(`${told}\n`);
      assert.equal(result, 0, told);
    });
  });
}
