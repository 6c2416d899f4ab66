// Runs in VS Code's extension process: all tests of this folder, under mocha. VS Code calls `run`.

import { writeFileSync } from "node:fs";
import { mocha } from "./mocha";
import "./activation";
import "./server";
import { fileUri } from "./helpers";
import { REPORT } from "./report";

export async function run(): Promise<void> {
  const lines: string[] = [];
  const failures = await new Promise<number>((resolve) => {
    mocha.run(resolve)
      .on("pass", (test) => lines.push(`  ok ${test.fullTitle()} (${test.duration ?? 0} ms)`))
      .on("fail", (test, error) => lines.push(`  not ok ${test.fullTitle()}\n${String((error as Error).stack)}`));
  });
  writeFileSync(fileUri(REPORT).fsPath, lines.join("\n"));
  if (failures > 0) throw new Error(`${failures} extension tests failed`);
}
