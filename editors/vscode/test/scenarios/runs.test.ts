// The runs view and the report: what is stored is listed, opened, shown as a page that keeps one's place, and deleted
// only after a question.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { appendFileSync, existsSync, readFileSync } from "node:fs";
import * as path from "node:path";
import { test } from "node:test";
import type { FrameLocator, Locator } from "playwright-core";
import { CHECKOUT, editor, python } from "../harness/places";
import type { Project } from "../harness/project";
import { inVsCode } from "../harness/session";
import { until } from "../harness/wait";
import type { Workbench } from "../harness/workbench";

const MEASURED = "20260101-101500-Measured-0001";
const INTERRUPTED = "20260104-101500-Interrupted-0004";

for (const name of ["newest", "oldest"]) {
  test(`stored runs are listed and read, and their evidence opens (${name})`, async () => {
    await inVsCode({ name: "runs", editor: editor(name), files: ["model.py"] }, async (vs, project) => {
      await showRuns(vs, project);

      const tops = vs.page.locator('[role=treeitem][aria-level="1"]');
      const said = await tops.locator(".label-description").allTextContents();
      assert.deepEqual(said.map((one) => one.split(" · ")[0]), ["interrupted, 1.20x", "nothing accepted", "verified, not measured", "2.60x"]);
      await row(vs, /^Chain, 2.60x/).click();
      await row(vs, /^7 idea 6, best, 2.60x/).waitFor();
      await row(vs, /^2 idea 1, rejected.*Not accepted: check numeric/).click();
      assert.match(await text(vs, /^Chain\.cu/), /\/\/ candidate 1/);

      await menu(vs, /^2 idea 1/, "Open Build and Verification Log");
      assert.match(await text(vs, /^build\.log/), /rejected at verify: check numeric: 7 of 8 elements differ/);
      await menu(vs, /^7 idea 6/, "Open Counters");
      assert.match(await text(vs, /^counters\.txt/), /DRAM at 91 % of its peak/);
      await menu(vs, /^1 idea 0/, "Open Prompt and Answer");
      assert.match(await text(vs, /^conversation\.md/), /## Answer\s+```\s+title: idea 0/);
      await menu(vs, /^1 idea 0/, "Compare with the Original");
      await vs.page.locator(".editor-group-container.active .monaco-diff-editor").waitFor();
    });
  });
}

test("the report shows what is known, goes on while the run does, keeps its place and comes back", async () => {
  await inVsCode({ name: "report", editor: editor("newest"), files: ["model.py"] }, async (vs, project) => {
    await showRuns(vs, project);
    const wrong: string[] = [];
    vs.page.on("console", (message) => { if (/Content.Security.Policy/i.test(message.text())) wrong.push(message.text()); });

    await menu(vs, /^Chain, interrupted/, "Show the Report");
    const report = page(vs);
    await report.getByText("The search has not ended").waitFor();
    await report.getByRole("img", { name: "Search progress" }).waitFor();
    // Unfolded and scrolled to, by the keyboard.
    await report.getByText("Roofline as a table").focus();
    await vs.page.keyboard.press("Enter");
    await report.getByRole("table", { name: "Times and the roof" }).waitFor();
    await report.getByRole("heading", { name: "Candidates", exact: true }).scrollIntoViewIfNeeded();
    const top = await scrolled(report);
    assert.ok(top > 500, `scrolled to ${top}`);

    const events = path.join(store(project), INTERRUPTED, "events.jsonl");
    appendFileSync(events, `${JSON.stringify({ kind: "stopped", at_s: 9, data: { reason: "cancelled", complete: false } })}\n`);
    await vs.command("HIERA: Refresh Runs");
    await report.getByText("The search did not run to its end (cancelled)").waitFor();
    assert.equal(await scrolled(report), top);
    assert.ok(await report.getByRole("table", { name: "Times and the roof" }).isVisible(), "what was unfolded stays so");

    // VS Code throws away a page that is hidden, and makes it anew.
    await vs.tab("model.py").click();
    await vs.page.locator(".editor-group-container.active .view-line").first().waitFor();
    await vs.tab("HIERA report").click();
    await until("the place in the page", async () => Math.abs((await scrolled(page(vs))) - top) < 50);
    assert.ok(await page(vs).getByRole("table", { name: "Times and the roof" }).isVisible());

    // As a user does it: VS Code keeps its tabs before it goes, which a browser's own reload does not wait for.
    const reloaded = vs.page.waitForEvent("load", { timeout: 90_000 });
    await vs.command("Developer: Reload Window");
    await reloaded;
    // The tab in front may be another one: VS Code keeps the layout at times of its own.
    await vs.tab("HIERA report").click({ timeout: 90_000 });
    await page(vs).getByText("The search did not run to its end (cancelled)").waitFor({ timeout: 90_000 });
    assert.deepEqual(wrong, []);
  });
});

test("a run is deleted only after a yes", async () => {
  await inVsCode({ name: "delete", editor: editor("newest"), files: ["model.py"] }, async (vs, project) => {
    await showRuns(vs, project);
    const folder = path.join(store(project), MEASURED);

    await menu(vs, /^Chain, 2.60x/, "Delete the Run…");
    await dialog(vs).getByText("This cannot be undone.").waitFor();
    await dialog(vs).getByRole("button", { name: "Cancel" }).click();
    assert.ok(readFileSync(path.join(folder, "events.jsonl"), "utf8").length > 0);

    await menu(vs, /^Chain, 2.60x/, "Delete the Run…");
    await dialog(vs).getByRole("button", { name: "Delete" }).click();
    await row(vs, /^Chain, 2.60x/).waitFor({ state: "hidden" });
    assert.equal(existsSync(folder), false);
  });
});

async function showRuns(vs: Workbench, project: Project): Promise<void> {
  const script = path.join(CHECKOUT, "tests", "stored_runs.py");
  execFileSync(python(), [script, path.dirname(store(project)), project.path("model.py"), "Block"]);
  await vs.ready();
  await vs.open("model.py");
  await vs.page.locator(".activitybar").getByRole("tab", { name: "HIERA" }).click();
  await row(vs, /^Chain, 2.60x/).waitFor({ timeout: 90_000 });
}

function store(project: Project): string {
  return path.join(path.dirname(project.folder), "cache", "runs");
}

/** A row of the view, by what is read aloud. */
function row(vs: Workbench, name: RegExp): Locator {
  return vs.page.getByRole("treeitem", { name }).first();
}

async function menu(vs: Workbench, name: RegExp, entry: string): Promise<void> {
  await row(vs, name).click({ button: "right" });
  const item = vs.page.getByRole("menuitem", { name: entry, exact: true });
  await item.waitFor();
  // A menu that has only just opened takes a click for the end of the one that opened it.
  await until(`the menu's ${entry}`, async () => {
    await item.click({ timeout: 2_000 }).catch(() => undefined);
    return item.waitFor({ state: "hidden", timeout: 2_000 }).then(() => true, () => false);
  });
}

/** The text of the editor with this tab, once it is in front. */
async function text(vs: Workbench, tab: RegExp): Promise<string> {
  await vs.page.getByRole("tab", { name: tab, selected: true }).waitFor();
  await vs.page.locator(".editor-group-container.active .view-line").first().waitFor();
  return vs.bufferText();
}

function page(vs: Workbench): FrameLocator {
  return vs.page.frameLocator("iframe.webview.ready").frameLocator("iframe#active-frame");
}

function scrolled(report: FrameLocator): Promise<number> {
  return report.locator("html").evaluate(() => (globalThis as unknown as { scrollY: number }).scrollY);
}

function dialog(vs: Workbench): Locator {
  return vs.page.locator(".monaco-dialog-box");
}
