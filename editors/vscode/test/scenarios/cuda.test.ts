// A `.cu` file: optimised, reviewed, accepted in place, and undone.

import assert from "node:assert/strict";
import { test } from "node:test";
import { editor } from "../harness/places";
import { inVsCode } from "../harness/session";
import { until } from "../harness/wait";
import { beginSearch, ended, review, TWICE } from "./steps";

for (const name of ["newest", "oldest"]) {
  test(`a .cu file is optimised, reviewed, accepted and put back, ${name}`, async () => {
    await inVsCode({
      name: "cuda", editor: editor(name), files: ["twice.cu"],
      settings: { "hiera.preset": "quick", "hiera.budget.candidates": 1 },
    }, async (vs, project) => {
      const before = project.bytes(TWICE.file);
      await beginSearch(vs, TWICE);
      await ended(vs, TWICE);
      assert.deepEqual(project.bytes(TWICE.file), before, "a search edits nothing");

      await review(vs);
      // Without a clock nothing is faster than the user's own text, which is a candidate too.
      await vs.titleButton("Next Candidate").click();
      await vs.lens("Accept").waitFor();
      await vs.titleButton("Accept Candidate").click();
      await until("the kernel in the file", () => !project.bytes(TWICE.file).equals(before));
      const after = project.text(TWICE.file);
      assert.match(after, /^\/\/ Doubles every element\.\n/);
      assert.equal(await vs.bufferText(), after);

      await vs.undo();
      await until("the text as it was", async () => (await vs.bufferText()) === before.toString());
      await vs.save();
      await until("the file as it was", () => project.bytes(TWICE.file).equals(before));
    });
  });
}
