// The bundled server under the user's own Python, through VS Code's features.

import assert from "node:assert/strict";
import * as vscode from "vscode";
import { actionTitles, extension, openFile, placeOf, serverProcesses, until } from "./helpers";

/** On the CPU, and maybe beside much else. */
const SEARCH_MS = 300_000;
const OPTIMIZE = "refactor.rewrite.hiera.optimize";

async function optimizeOffered(document: vscode.TextDocument, symbol: string): Promise<string[]> {
  const at = placeOf(document, `${symbol}(`);
  return until(`actions for ${symbol}`, async () => {
    const titles = await actionTitles(document, at, OPTIMIZE);
    return titles.length > 0 && titles;
  });
}

describe("the server", () => {
  before(async () => {
    await openFile("model.py");
    await extension().activate();
  });

  for (const [file, symbol] of [["model.py", "Block"], ["twice.cu", "twice"]] as const) {
    it(`offers to optimise ${symbol} in ${file}`, async () => {
      const titles = await optimizeOffered(await openFile(file), symbol);
      assert.equal(titles[0], `Optimize kernel: ${symbol}`);
    });
  }

  it("offers nothing where no kernel is", async () => {
    const document = await openFile("model.py");
    await optimizeOffered(document, "Block");
    assert.deepEqual(await actionTitles(document, new vscode.Position(0, 0), OPTIMIZE), []);
  });

  it("is one process, and is started again when it dies", async () => {
    const document = await openFile("model.py");
    await optimizeOffered(document, "Block");
    const [first, ...others] = serverProcesses();
    assert.ok(first !== undefined);
    assert.deepEqual(others, []);

    process.kill(first, "SIGKILL");

    await until("another server", () => serverProcesses().some((pid) => pid !== first));
    await optimizeOffered(document, "Block");
  });

  it("shows a profiled kernel as a diagnostic, a hover and a lens", async function () {
    this.timeout(2 * SEARCH_MS);
    const document = await openFile("twice.cu");
    const at = placeOf(document, "twice(");
    await optimizeOffered(document, "twice");
    await vscode.window.showTextDocument(document, { selection: new vscode.Range(at, at) });

    await vscode.commands.executeCommand("hiera.profileKernel");

    const ours = await until("a diagnostic", () =>
      vscode.languages.getDiagnostics(document.uri).find(({ source, message }) => source === "hiera" && message.includes("verified")),
    SEARCH_MS);
    assert.equal(ours.severity, vscode.DiagnosticSeverity.Information);
    assert.match(typeof ours.code === "object" ? String(ours.code.value) : String(ours.code), /^hiera\.\w+-bound$/);
    const hovers = await vscode.commands.executeCommand<vscode.Hover[]>("vscode.executeHoverProvider", document.uri, at);
    const words = hovers.flatMap((hover) => hover.contents).map((part) => (part instanceof vscode.MarkdownString ? part.value : ""));
    assert.match(words.join("\n"), /no speed-up is claimed/);
    const lenses = await until("lenses", async () => {
      const found = await vscode.commands.executeCommand<vscode.CodeLens[]>("vscode.executeCodeLensProvider", document.uri);
      return found.length > 0 && found;
    });
    assert.match(lenses[0]?.command?.title ?? "", /^HIERA: /);
  });
});
