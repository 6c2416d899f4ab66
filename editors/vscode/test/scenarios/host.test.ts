// Runs the extension tests of test/host in the extension process of each real VS Code.

import assert from "node:assert/strict";
import { readdirSync } from "node:fs";
import * as path from "node:path";
import { test } from "node:test";
import { editor, EXTENSION } from "../harness/places";
import { inVsCode } from "../harness/session";
import { REPORT } from "../host/report";

const LIMIT_MS = 180_000;
const LAST_LINES = 30;

for (const name of ["newest", "oldest"]) {
  test(`extension tests, ${name}`, async () => {
    const under = editor(name);
    let ended = (_code: number): void => undefined;
    const code = new Promise<number>((resolve) => (ended = resolve));
    const lines: string[] = [];
    await inVsCode({
      name: "extension tests",
      editor: under,
      files: ["model.py", "twice.cu"],
      // Loaded by the address below from where the .vsix was unpacked.
      extensions: path.join(under.extensions, "none"),
      beforeOpening: async (page) => {
        await page.exposeFunction("codeAutomationExit", (value: number) => { ended(value); });
        await page.exposeFunction("codeAutomationLog", (_type: string, words: unknown[]) => lines.push(words.join(" ")));
      },
      query: (address) => {
        const remote = (file: string): string => `vscode-remote://${address}${file}`;
        const payload = [
          ["extensionDevelopmentPath", remote(installed(under.extensions))],
          ["extensionTestsPath", remote(path.join(EXTENSION, "out", "host", "index.js"))],
          ["skipWelcome", "true"],
        ];
        return `&payload=${encodeURIComponent(JSON.stringify(payload))}`;
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

function installed(extensions: string): string {
  const found = readdirSync(extensions).find((entry) => entry.startsWith("hiera."));
  if (found === undefined) throw new Error(`the extension is not in ${extensions}: run node test/prepare.mjs`);
  return path.join(extensions, found);
}
