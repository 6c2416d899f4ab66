// Text that is edited while it is searched makes the result stale: kept, and never put over the edit.

import assert from "node:assert/strict";
import { test } from "node:test";
import { editor } from "../harness/places";
import { inVsCode } from "../harness/session";
import { until } from "../harness/wait";
import { beginSearch, BLOCK, progress, SEARCH_MS } from "./steps";

test("an edit during the search makes the result stale until it is undone", async () => {
  await inVsCode({
    name: "stale", editor: editor("newest"), files: ["model.py"],
    settings: { "hiera.preset": "quick", "hiera.budget.candidates": 1 },
  }, async (vs, project) => {
    const before = project.text("model.py");
    await beginSearch(vs, BLOCK);

    await vs.goTo(9, 35);
    await vs.page.keyboard.type(" + 1");
    await progress(vs, BLOCK).waitFor({ state: "hidden", timeout: SEARCH_MS });

    await vs.lens("source changed").waitFor();
    assert.equal(await vs.lens("Accept").count(), 0);
    const edited = await vs.bufferText();
    assert.equal(edited, before.replace("* 2.0", "* 2.0 + 1"));
    assert.equal(project.text("model.py"), before, "nothing was saved");

    await until("the text as it was", async () => {
      await vs.undo();
      return (await vs.bufferText()) === before;
    });
    await vs.lens("Accept").waitFor();
  });
});
