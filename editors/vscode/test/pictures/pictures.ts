// Takes the pictures of docs/images/ in the newest VS Code, from a real search without a GPU: npm run screenshots.

import { mkdirSync } from "node:fs";
import * as path from "node:path";
import { CHECKOUT, editor } from "../harness/places";
import { inVsCode } from "../harness/session";
import { beginSearch, type Kernel, offered, review } from "../scenarios/steps";

const IMAGES = path.join(CHECKOUT, "docs", "images");
const KERNEL: Kernel = { file: "gated_norm.py", symbol: "GatedNorm", line: 6, column: 7 };
const SIZE = { width: 1200, height: 720 };

async function takePictures(): Promise<void> {
  mkdirSync(IMAGES, { recursive: true });
  await inVsCode({
    name: "pictures", editor: editor("newest"), files: [KERNEL.file], size: SIZE,
    settings: { "hiera.preset": "quick", "hiera.budget.candidates": 3, "explorer.compactFolders": true },
  }, async (vs) => {
    const picture = async (name: string): Promise<void> => {
      // Away from what would show a tooltip.
      await vs.page.mouse.move(SIZE.width / 2, SIZE.height - 4);
      await vs.page.locator(".monaco-hover:visible").first().waitFor({ state: "hidden" });
      await vs.picture(path.join(IMAGES, `vscode-${name}.png`));
    };
    await vs.ready();
    await vs.open(KERNEL.file);
    await vs.goTo(KERNEL.line, KERNEL.column);
    await vs.codeActions(`Optimize kernel: ${KERNEL.symbol}`);
    await picture("actions");
    await vs.escape();

    await beginSearch(vs, KERNEL);
    await vs.notification(/best \w+/).waitFor({ timeout: 300_000 });
    await picture("progress");

    await offered(vs, KERNEL);
    await review(vs);
    await vs.command("View: Toggle Primary Side Bar Visibility");
    await vs.lens("Discard").waitFor();
    await picture("review");
    await vs.command("View: Toggle Primary Side Bar Visibility");
    await vs.command("View: Close All Editors");

    await vs.open(KERNEL.file);
    await vs.goTo(KERNEL.line, KERNEL.column);
    await vs.page.getByRole("tab", { name: "HIERA", exact: true }).first().click();
    const runs = vs.page.getByRole("tree", { name: "Runs" });
    await runs.getByRole("treeitem").first().click();
    const round = runs.getByRole("treeitem", { name: /^Round 1/ }).first();
    await round.waitFor();
    if ((await round.getAttribute("aria-expanded")) === "false") await round.click();
    await runs.getByRole("treeitem", { level: 3 }).first().waitFor();
    await vs.command("HIERA: Show the Report");
    const report = vs.page.frameLocator("iframe.webview.ready").frameLocator("#active-frame");
    await report.locator("svg").first().waitFor();
    await report.getByRole("link", { name: "Search progress" }).click();
    await picture("report");
  });
}

void takePictures().catch((error: unknown) => {
  process.stderr.write(`${String(error)}\n`);
  process.exitCode = 1;
});
