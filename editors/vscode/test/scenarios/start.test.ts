// The extension starts and says so.

import assert from "node:assert/strict";
import { test } from "node:test";
import { editor } from "../harness/places";
import { inVsCode } from "../harness/session";

test("starts", async (t) => {
  await inVsCode({ name: t.name, editor: editor("newest"), files: ["model.py", "twice.cu"] }, async (vs) => {
    await vs.ready();
    await vs.open("model.py");
    await vs.goTo(5, 8);
    await vs.command("HIERA: Show Logs");
    assert.match(await vs.bufferText(), /server/);
    await vs.picture("/tmp/vsct/a.png");
  });
});
