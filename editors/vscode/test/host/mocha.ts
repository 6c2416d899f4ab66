// Mocha, with its globals in place before any file of tests is read.

import Mocha from "mocha";

export const mocha = new Mocha({ ui: "bdd", timeout: 120_000, reporter: "min" });
mocha.suite.emit("pre-require", globalThis, "", mocha);
