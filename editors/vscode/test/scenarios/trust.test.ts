// A folder that is not trusted: nothing of it runs until it is.

import assert from "node:assert/strict";
import { test } from "node:test";
import { editor } from "../harness/places";
import { inVsCode } from "../harness/session";
import { BLOCK } from "./steps";

test("in restricted mode nothing is started; trusted, the server starts without a reload", async () => {
  await inVsCode({ name: "trust", editor: editor("newest"), files: ["model.py"], asksForTrust: true }, async (vs) => {
    await vs.ready();
    await vs.open(BLOCK.file);
    await vs.status("Restricted Mode").waitFor();
    await vs.goTo(BLOCK.line, BLOCK.column);
    assert.equal(await vs.offers("HIERA: Optimize Kernel"), false);

    await vs.command("Workspaces: Manage Workspace Trust");
    await vs.page.locator(".workspace-trust-editor").getByRole("button", { name: "Trust", exact: true }).click();

    await vs.status("Restricted Mode").waitFor({ state: "hidden" });
    // The newest VS Code shows the page of trust over the editors.
    const page = vs.page.locator(".monaco-modal-editor-block");
    if (await page.isVisible()) await page.locator(".codicon-close").first().click();
    await page.waitFor({ state: "hidden" });
    await vs.open(BLOCK.file);
    await vs.goTo(BLOCK.line, BLOCK.column);
    await vs.codeActions(`Optimize kernel: ${BLOCK.symbol}`);
  });
});
