import assert from "node:assert/strict";
import { test } from "node:test";
import type { Taken } from "../../src/python/choose";
import { lackOf, launchOf } from "../../src/server/launch";

const PYTHON: Taken = {
  path: "/env/bin/python", why: "a test",
  probed: {
    executable: "/env/bin/python3", version: [3, 12, 1], abi: "cpython-312-x86_64-linux-gnu", system: "linux",
    machine: "x86_64", torch: null, cuda: null, has: [],
  },
};
const LIBRARIES = { folders: ["/ext/python", "/ext/linux-x86_64"], missing: [] };

test("our packages come by a variable of ours, and the user's folder is not on the path", () => {
  const launch = launchOf(PYTHON, LIBRARIES, { PYTHONPATH: "/mine" });

  assert.equal(launch.command, "/env/bin/python3");
  assert.deepEqual(launch.args.slice(0, 3), ["-P", "-u", "-c"]);
  assert.equal(launch.environment["HIERA_LIBRARIES"], "/ext/python:/ext/linux-x86_64");
  assert.equal("PYTHONPATH" in launch.environment, false);
});

test("another server takes the place of the bundled one only where it is named", () => {
  assert.deepEqual(launchOf(PYTHON, LIBRARIES, { HIERA_SERVER: "/other.py" }).args, ["-P", "-u", "/other.py"]);
  assert.equal(launchOf(PYTHON, LIBRARIES, { HIERA_SERVER: "" }).args[2], "-c");
});

test("where no server can run, it is said what to do", () => {
  assert.equal(lackOf("linux"), undefined);
  for (const platform of ["darwin", "win32"] as const) assert.match(lackOf(platform) ?? "", /needs Linux.*SSH, in WSL/);
});
