import assert from "node:assert/strict";
import { test } from "node:test";
import { kernelLine } from "../../src/review/lines";

const CURRENT = ["#include <x>", "__global__ void one() {", "}", "", "__global__ void two() {", "  a();", "}"];

test("the eyes belong at the kernel that holds the first difference", () => {
  const changed = [...CURRENT];
  changed[5] = "  b();";
  assert.equal(kernelLine(CURRENT.join("\n"), changed.join("\n")), 4);
});

test("a difference above every kernel leads to the first kernel", () => {
  assert.equal(kernelLine(CURRENT.join("\n"), ["#include <y>", ...CURRENT.slice(1)].join("\n")), 1);
});

test("a new text leads to its last kernel, whatever its line ends; a comment is none", () => {
  assert.equal(kernelLine("", ["__global__ void help() {}", "__global__ void f();", "// __global__ is above"].join("\r\n")), 1);
});

test("a text without a kernel, and the same text, lead somewhere", () => {
  assert.equal(kernelLine("", "int main() {}"), 0);
  assert.equal(kernelLine(CURRENT.join("\n"), CURRENT.join("\n")), 1);
});
