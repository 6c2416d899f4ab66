// What the server writes to stderr, as log entries of the level that each line names.

import type { Readable } from "node:stream";
import { createInterface } from "node:readline";
import type { LogOutputChannel } from "vscode";

const LEVEL = /\b(CRITICAL|ERROR|WARNING|INFO|DEBUG)\b/;

/** The server's last words, for when it ends. */
export class Stderr {
  last = "";

  /** Logs each line; a line without a level belongs to the one before, as in a traceback. */
  readonly read = (stream: Readable, log: LogOutputChannel): void => {
    let level = "WARNING";
    createInterface(stream).on("line", (line) => {
      if (line.trim() !== "") this.last = line.trim();
      level = LEVEL.exec(line)?.[1] ?? level;
      if (level === "DEBUG") log.debug(line);
      else if (level === "INFO") log.info(line);
      else if (level === "WARNING") log.warn(line);
      else log.error(line);
    });
  };
}
