// The command line of the server. Knows nothing of VS Code.

import { delimiter } from "node:path";
import type { Libraries } from "../python/libraries";
import type { Taken } from "../python/choose";

export interface Launch {
  readonly command: string;
  readonly args: readonly string[];
  readonly environment: Readonly<Record<string, string>>;
}

const PROGRAM =
  "import os, sys; sys.path[:0] = os.environ['HIERA_LIBRARIES'].split(os.pathsep); " +
  "from hiera_lsp.start import server; server()";

/** Why no server can run on a system; undefined where one can. */
export function lackOf(platform: NodeJS.Platform): string | undefined {
  return platform === "linux" ? undefined : "it needs Linux, so open the folder over SSH, in WSL or in a container";
}

/**
 * How to start the server under `python`.
 *
 * @param environment The editor's environment; `HIERA_SERVER` in it names another program, for work on HIERA itself.
 */
export function launchOf(
  python: Taken, libraries: Libraries, environment: Readonly<Record<string, string | undefined>>,
): Launch {
  const other = environment["HIERA_SERVER"];
  return {
    command: python.probed.executable,
    // -P: a module of the user's project must not stand in the place of one of Python's own.
    args: ["-P", "-u", ...(other === undefined || other === "" ? ["-c", PROGRAM] : [other])],
    environment: { HIERA_LIBRARIES: libraries.folders.join(delimiter), PYTHONIOENCODING: "utf-8" },
  };
}
