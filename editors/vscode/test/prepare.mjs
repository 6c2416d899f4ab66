// Installs hiera.vsix into the VS Codes of .vscode-test/, as a user does. After `npm run package`.
import { execFileSync } from "node:child_process";
import { existsSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";

const here = import.meta.dirname;
const vsix = process.argv[2] ?? path.join(here, "..", "hiera.vsix");
if (!existsSync(vsix)) throw new Error(`${vsix} is missing: run npm run package`);

for (const name of ["newest", "oldest"]) {
  const folder = path.join(here, "..", ".vscode-test", name);
  const { entry } = JSON.parse(readFileSync(path.join(folder, "installed.json"), "utf8"));
  const extensions = path.join(folder, "extensions");
  rmSync(extensions, { recursive: true, force: true });
  const userData = mkdtempSync(path.join(tmpdir(), "hiera-vscode-"));
  try {
    const command = [entry, "--user-data-dir", userData, "--extensions-dir", extensions, "--install-extension", vsix];
    // What it writes to stderr is of modules that are not built, which nothing here needs; a failure shows it.
    execFileSync(path.join(folder, "node"), command, { stdio: "pipe", timeout: 60_000 });
  } finally {
    rmSync(userData, { recursive: true, force: true });
  }
}
