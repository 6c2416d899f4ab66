// The files of the project that a test opens, as they are on the disk.

import { existsSync, readdirSync, readFileSync, statSync } from "node:fs";
import * as path from "node:path";

export class Project {
  constructor(readonly folder: string) {}

  path(file: string): string {
    return path.join(this.folder, file);
  }

  bytes(file: string): Buffer {
    return readFileSync(this.path(file));
  }

  text(file: string): string {
    return readFileSync(this.path(file), "utf8");
  }

  exists(file: string): boolean {
    return existsSync(this.path(file));
  }

  /** In bytes; 0 for a file that is not there. */
  size(file: string): number {
    return this.exists(file) ? this.bytes(file).length : 0;
  }

  /** Every file with its bytes, so that two states of a project can be compared whole. */
  snapshot(): Record<string, string> {
    const names = readdirSync(this.folder, { recursive: true, encoding: "utf8" });
    const files = names.filter((name) => statSync(this.path(name)).isFile() && !name.includes("__pycache__"));
    return Object.fromEntries(files.sort().map((name) => [name, this.bytes(name).toString("latin1")]));
  }
}
