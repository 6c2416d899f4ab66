// Puts the Python side into bundled/: our packages as their wheel places them, what they import, and samples.
//
//   bundled/python          pure Python, for every interpreter
//   bundled/linux-MACHINE   compiled packages for several versions of Python, side by side in one folder
//   bundled/samples         from the repository's examples
import { execFileSync } from "node:child_process";
import { copyFileSync, existsSync, mkdirSync, mkdtempSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

const MACHINES = ["x86_64", "aarch64"];
const VERSIONS = ["3.11", "3.12", "3.13", "3.14"];
const SAMPLES = ["geglu_feed_forward.py", "row_argmax.cu"];

const root = join(import.meta.dirname, "..");
const repository = join(root, "..", "..");
const bundled = join(root, "bundled");
const own = join(repository, ".venv", "bin", "python");
const python = process.env.PYTHON ?? (existsSync(own) ? own : "python3");

const pip = (...args) =>
  execFileSync(python, ["-m", "pip", "--disable-pip-version-check", "-q", ...args], { stdio: "inherit" });

rmSync(bundled, { recursive: true, force: true });
mkdirSync(bundled);

const target = join(bundled, "python");
pip("install", "--no-deps", "--no-compile", "--target", target, repository);
pip("install", "--no-deps", "--no-compile", "--only-binary", ":all:", "--require-hashes", "--target", target,
  "-r", join(root, "python", "requirements.txt"));
rmSync(join(target, "bin"), { recursive: true, force: true });
// Where it was built is nobody's business, and would make two builds differ.
for (const name of readdirSync(target, { recursive: true })) {
  if (/\.dist-info.(direct_url\.json|INSTALLER|REQUESTED)$/.test(name)) rmSync(join(target, name));
}
const compiled = readdirSync(target, { recursive: true }).filter((name) => /\.(so|pyd|dylib)$/.test(name));
if (compiled.length > 0) throw new Error(`not pure Python: ${compiled.join(", ")}`);

const wheels = mkdtempSync(join(tmpdir(), "hiera-wheels-"));
try {
  for (const machine of MACHINES) {
    const folder = join(wheels, machine);
    for (const version of VERSIONS) {
      pip("download", "--no-deps", "--only-binary", ":all:", "--require-hashes", "--python-version", version,
        "--platform", `manylinux_2_17_${machine}`, "--platform", `manylinux2014_${machine}`,
        "-d", folder, "-r", join(root, "python", "requirements-native.txt"));
    }
    // Their compiled files have the version in their names, so that one folder serves all.
    for (const wheel of readdirSync(folder)) {
      execFileSync(python, ["-m", "zipfile", "-e", join(folder, wheel), join(bundled, `linux-${machine}`)]);
    }
  }
} finally {
  rmSync(wheels, { recursive: true, force: true });
}

mkdirSync(join(bundled, "samples"));
for (const name of SAMPLES) copyFileSync(join(repository, "examples", name), join(bundled, "samples", name));
copyFileSync(join(root, "python", "requirements-native.txt"), join(bundled, "requirements-native.txt"));
copyFileSync(join(root, "python", "requirements-llm.txt"), join(bundled, "requirements-llm.txt"));
