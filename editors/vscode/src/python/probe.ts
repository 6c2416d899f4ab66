// What an interpreter is and has, asked once by a short program. torch is looked for, never imported: that takes seconds.

import { execFile } from "node:child_process";
import { tmpdir } from "node:os";

export interface Probed {
  readonly executable: string;
  readonly version: readonly [number, number, number];
  /** Of compiled packages, such as `cpython-311-x86_64-linux-gnu`. */
  readonly abi: string;
  readonly system: string;
  readonly machine: string;
  readonly torch: string | null;
  /** CUDA version that torch was built for; null for a CPU build. */
  readonly cuda: string | null;
  /** Packages of ours that this interpreter has by itself. */
  readonly has: readonly string[];
}

const LIMIT_MS = 20_000;
// The folder that it runs in is no place for modules, whoever may write there.
const PROGRAM = `
import sys
sys.path[:] = [entry for entry in sys.path if entry]
import json, platform, sysconfig
from importlib import util
def find(name):
    try:
        return util.find_spec(name)
    except Exception:
        return None
torch = cuda = None
spec = find("torch")
if spec is not None and spec.submodule_search_locations:
    torch = "unknown version"
    try:
        names = {}
        with open(list(spec.submodule_search_locations)[0] + "/version.py", encoding="utf-8") as file:
            exec(file.read(), names)
        torch, cuda = str(names["__version__"]), names.get("cuda")
    except Exception:
        pass
print(json.dumps({
    "executable": sys.executable, "version": list(sys.version_info[:3]), "abi": sysconfig.get_config_var("SOABI") or "",
    "system": sys.platform, "machine": platform.machine(), "torch": torch, "cuda": cuda,
    "has": [name for name in ("tree_sitter", "tree_sitter_cuda", "openai") if find(name)],
}))
`;

/** Asks an interpreter; throws an error that says in words what is wrong with it. */
export async function probe(path: string): Promise<Probed> {
  const output = await new Promise<string>((resolve, reject) => {
    // Away from the user's folder, whose files choose the version where Python is a shim.
    const options = { timeout: LIMIT_MS, killSignal: "SIGKILL" as const, cwd: tmpdir() };
    execFile(path, ["-c", PROGRAM], options, (error, stdout, stderr) => {
      if (error === null) resolve(stdout);
      else if (error.killed === true) reject(new Error(`it did not answer within ${LIMIT_MS / 1000} seconds`));
      else if (error.code === "ENOENT") reject(new Error("there is no such file"));
      else reject(new Error(reasonIn(stderr) || error.message));
    }).stdin?.end();
  });
  try {
    return JSON.parse(output.trim().split("\n").at(-1) ?? "") as Probed;
  } catch {
    throw new Error("it does not answer as Python does");
  }
}

/** The line of an output that says what went wrong: a traceback ends with it, a shim's message begins with it. */
function reasonIn(output: string): string {
  const lines = output.trim().split("\n");
  return [...lines].reverse().find((line) => /Error\b/.test(line)) ?? lines[0] ?? "";
}

/** `Python 3.11.2, torch 2.13.0 (CUDA 12.8)`. */
export function described(probed: Probed): string {
  const torch = probed.torch === null ? "no torch" : `torch ${probed.torch}`;
  const cuda = probed.torch === null || probed.cuda === null ? "" : ` (CUDA ${probed.cuda})`;
  return `Python ${probed.version.join(".")}, ${torch}${cuda}`;
}
