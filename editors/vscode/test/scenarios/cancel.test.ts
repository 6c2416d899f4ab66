// A search that is cancelled keeps the best that it found.

import assert from "node:assert/strict";
import { test } from "node:test";
import { editor } from "../harness/places";
import { inVsCode } from "../harness/session";
import { beginSearch, BLOCK, offered, progress, SEARCH_MS } from "./steps";

test("cancelled while it works, a search keeps its best candidate and can be resumed", async () => {
  await inVsCode({
    name: "cancel", editor: editor("newest"), files: ["model.py"], settings: { "hiera.preset": "deep" },
  }, async (vs, project) => {
    const before = project.snapshot();
    await beginSearch(vs, BLOCK);
    await vs.notification(/best \w+ \(verified/).waitFor({ timeout: SEARCH_MS });

    await progress(vs, BLOCK).getByRole("button", { name: "Cancel" }).click();
    await offered(vs, BLOCK);

    assert.deepEqual(project.snapshot(), before);
    await vs.codeActions(/Resume optimisation \(\d+ candidates so far\)/, true);
  });
});
