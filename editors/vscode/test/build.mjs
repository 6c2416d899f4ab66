// Bundles the tests that run in or against a real VS Code into out/: scenarios and pictures for Node, and one file of
// extension tests for VS Code's own process.
import { readdirSync, rmSync } from "node:fs";
import path from "node:path";
import { build } from "esbuild";

const here = import.meta.dirname;
const common = {
  bundle: true, format: "cjs", platform: "node", target: "node20", sourcemap: true, logLevel: "warning",
  external: ["vscode", "mocha", "playwright-core"], absWorkingDir: path.join(here, ".."),
};
const scenarios = readdirSync(path.join(here, "scenarios")).filter((name) => name.endsWith(".test.ts"));

rmSync(path.join(here, "..", "out", "scenarios"), { recursive: true, force: true });
await Promise.all([
  build({ ...common, entryPoints: scenarios.map((name) => `test/scenarios/${name}`), outdir: "out/scenarios" }),
  build({ ...common, entryPoints: ["test/host/index.ts"], outdir: "out/host" }),
  build({ ...common, entryPoints: ["test/pictures/pictures.ts"], outdir: "out/pictures" }),
]);
