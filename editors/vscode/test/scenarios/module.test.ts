// A PyTorch module: optimised, reviewed, accepted, used, and all of it undone.

import assert from "node:assert/strict";
import { test } from "node:test";
import { editor } from "../harness/places";
import { inVsCode } from "../harness/session";
import { until } from "../harness/wait";
import { beginSearch, BLOCK, offered, review } from "./steps";

const WRITTEN = ["torch_demo.py", "cpp_source.cpp", "groundtruth.py", "params_semantics.json", "cuda_source.cu"];
const FOLDER = "hiera_kernels/block";

for (const name of ["newest", "oldest"]) {
  test(`a module is optimised, reviewed, accepted, used and put back, ${name}`, async () => {
    await inVsCode({
      name: "module", editor: editor(name), files: ["model.py"],
      settings: { "hiera.preset": "quick", "hiera.budget.candidates": 2 },
    }, async (vs, project) => {
      const files = project.snapshot();
      const before = project.text("model.py");
      await beginSearch(vs, BLOCK);
      await offered(vs, BLOCK);
      assert.deepEqual(project.snapshot(), files, "a search edits nothing");

      await review(vs);
      await vs.titleButton("Accept Candidate").click();
      await until("the contract folder", () => WRITTEN.every((file) => project.size(`${FOLDER}/${file}`) > 0));
      assert.match(project.text(`${FOLDER}/cuda_source.cu`), /__global__/);
      assert.equal(project.text("model.py"), before, "the module stays as it is");

      await vs.open("model.py");
      await vs.goTo(BLOCK.line, BLOCK.column);
      await vs.command("HIERA: Use the Kernel in This Module");
      await until("the module to use the kernel", () => project.text("model.py").includes("@accelerate_block"));
      assert.ok(project.size(`${FOLDER}/kernel.py`) > 0);
      assert.equal(await vs.bufferText(), project.text("model.py"));

      await vs.undo();
      await until("the text as it was", async () => (await vs.bufferText()) === before);
      await vs.save();
      await until("the file as it was", () => project.bytes("model.py").equals(Buffer.from(before)));
      await vs.lens("HIERA: ").waitFor();
    });
  });
}
