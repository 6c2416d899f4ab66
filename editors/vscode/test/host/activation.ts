// The extension as VS Code loads it: active, and all that package.json promises is there.

import assert from "node:assert/strict";
import * as vscode from "vscode";
import { extension, openFile } from "./helpers";

interface Manifest {
  readonly contributes: {
    readonly commands: readonly { readonly command: string }[];
    readonly configuration: { readonly properties: Readonly<Record<string, { readonly default: unknown }>> };
  };
}

describe("the extension", () => {
  it("is activated by a Python file", async () => {
    await openFile("model.py");
    await extension().activate();
    assert.ok(extension().isActive);
  });

  it("registers every command that it contributes", async () => {
    const wanted = (extension().packageJSON as Manifest).contributes.commands.map((entry) => entry.command);
    const there = new Set(await vscode.commands.getCommands(true));
    assert.deepEqual(wanted.filter((command) => !there.has(command)), []);
  });
});
