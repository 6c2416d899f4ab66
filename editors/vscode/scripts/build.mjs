// Bundles the extension into dist/extension.js; with --tests also each test/unit/*.test.ts into out/unit/.
import { existsSync, readdirSync, rmSync } from "node:fs";
import { basename } from "node:path";
import { build } from "esbuild";

const common = {
  bundle: true, format: "cjs", platform: "node", target: "node20", external: ["vscode"], sourcemap: true,
  logLevel: "info",
};

await build({ ...common, entryPoints: ["src/extension.ts"], outfile: "dist/extension.js", minify: true });

if (process.argv.includes("--tests")) {
  const folder = "test/unit";
  const tests = existsSync(folder) ? readdirSync(folder).filter((name) => name.endsWith(".test.ts")) : [];
  rmSync("out/unit", { recursive: true, force: true }); // A test that is gone would be run from there for ever.
  if (tests.length === 0) throw new Error(`there are no tests in ${folder}`);
  for (const name of tests) {
    await build({
      ...common, entryPoints: [`${folder}/${name}`], outfile: `out/unit/${basename(name, ".ts")}.js`,
      external: [], alias: { vscode: "./test/unit/vscode.ts" },
    });
  }
}
