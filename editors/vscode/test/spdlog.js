// Stands in for @vscode/spdlog in the VS Codes under test: the same functions without a compiled part, so that logs are
// on the disk and in the Output view. install.mjs puts it there.
"use strict";

const fs = require("node:fs");
const path = require("node:path");

const LEVELS = ["trace", "debug", "info", "warning", "error", "critical", "off"];

class Logger {
  constructor(_type, _name, file) {
    this.file = file;
    this.level = LEVELS.indexOf("info");
    this.raw = false;
    fs.appendFileSync(file, "");
  }

  write(level, text) {
    if (LEVELS.indexOf(level) < this.level) return;
    const time = new Date().toISOString().replace("T", " ").replace("Z", "");
    fs.appendFileSync(this.file, this.raw ? text : `${time} [${level}] ${text}\n`);
  }

  trace(text) { this.write("trace", text); }
  debug(text) { this.write("debug", text); }
  info(text) { this.write("info", text); }
  warn(text) { this.write("warning", text); }
  error(text) { this.write("error", text); }
  critical(text) { this.write("critical", text); }
  getLevel() { return this.level; }
  setLevel(level) { this.level = level; }
  setPattern() { this.raw = false; }
  clearFormatters() { this.raw = true; }
  flush() {}
  drop() {}
}

async function createLogger(name, file) {
  await fs.promises.mkdir(path.dirname(file), { recursive: true });
  return new Logger("", name, file);
}

// One by one, so that they can be imported by name.
exports.version = 0;
exports.Logger = Logger;
exports.setLevel = () => {};
exports.setFlushOn = () => {};
exports.createRotatingLogger = createLogger;
exports.createAsyncRotatingLogger = createLogger;
