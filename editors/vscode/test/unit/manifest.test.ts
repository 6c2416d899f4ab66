// What package.json promises, held against the files and the documents beside it.

import assert from "node:assert/strict";
import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";

const ROOT = join(__dirname, "..", "..");

interface Setting {
  readonly type?: string;
  readonly scope?: string;
  readonly order?: number;
  readonly description?: string;
  readonly markdownDescription?: string;
  readonly enum?: readonly string[];
  readonly enumDescriptions?: readonly string[];
}

interface Manifest {
  readonly icon: string;
  readonly capabilities: { readonly untrustedWorkspaces: { readonly restrictedConfigurations: readonly string[] } };
  readonly contributes: {
    readonly commands: readonly { readonly command: string; readonly title: string; readonly category?: string }[];
    readonly menus: Readonly<Record<string, readonly { readonly command?: string; readonly submenu?: string }[]>>;
    readonly configuration: { readonly properties: Readonly<Record<string, Setting>> };
    readonly viewsWelcome: readonly { readonly contents: string }[];
    readonly walkthroughs: readonly {
      readonly description: string;
      readonly steps: readonly { readonly description: string; readonly media: { readonly markdown: string } }[];
    }[];
  };
}

const manifest = JSON.parse(readFileSync(join(ROOT, "package.json"), "utf8")) as Manifest;
const { commands, configuration, menus, viewsWelcome, walkthroughs } = manifest.contributes;
const settings = Object.entries(configuration.properties);
const ids = new Set(commands.map(({ command }) => command));

test("commands have a title and the category HIERA", () => {
  const wrong = commands.filter(({ title, category }) => title === "" || category !== "HIERA");

  assert.deepEqual(wrong, []);
});

test("menus, welcome texts and the walkthrough name commands that there are", () => {
  const named = [
    ...Object.values(menus).flat().map((entry) => entry.command).filter((command) => command !== undefined),
    ...[...viewsWelcome.map(({ contents }) => contents), ...walkthroughs.flatMap(({ steps }) => steps.map((step) => step.description))]
      .flatMap((text) => [...text.matchAll(/\(command:([\w.]+)/g)].map((found) => found[1] ?? "")),
  ];

  assert.deepEqual(named.filter((command) => command.startsWith("hiera.") && !ids.has(command)), []);
});

test("files that the manifest names are there", () => {
  const files = [manifest.icon, ...walkthroughs.flatMap(({ steps }) => steps.map(({ media }) => media.markdown))];

  assert.deepEqual(files.filter((file) => !existsSync(join(ROOT, file))), []);
});

test("settings have a type, a scope, a description and a place of their own", () => {
  const wrong = settings.filter(([, { type, scope, description, markdownDescription, order }]) =>
    type === undefined || scope === undefined || order === undefined || (description ?? markdownDescription ?? "") === "");
  // The values of trace.server are the same in every extension with a server.
  const unexplained = settings.filter(([name, setting]) =>
    setting.enum?.length !== setting.enumDescriptions?.length && name !== "hiera.trace.server");
  const places = settings.map(([, { order }]) => order);

  assert.deepEqual(wrong, []);
  assert.deepEqual(unexplained, []);
  assert.equal(new Set(places).size, places.length);
});

test("a folder that is not trusted sets no program and no place that code goes to", () => {
  const { restrictedConfigurations } = manifest.capabilities.untrustedWorkspaces;
  const sensitive = settings.filter(([name, { scope }]) => /interpreter|llm\.(baseUrl|keyVariable)/.test(name) || scope === "machine-overridable");

  assert.ok(sensitive.length >= 4);
  assert.deepEqual(sensitive.map(([name]) => name).filter((name) => !restrictedConfigurations.includes(name)), []);
});

test("no setting holds a key", () => {
  assert.deepEqual(settings.map(([name]) => name).filter((name) => /key|secret|token/i.test(name)), [
    "hiera.budget.tokens", "hiera.llm.keyVariable",
  ]);
});

test("the settings that the server reads stand in docs/editors.md", () => {
  const documented = readFileSync(join(ROOT, "..", "..", "docs", "editors.md"), "utf8");
  const own = new Set(["hiera.interpreter", "hiera.trace.server"]);

  const missing = settings.map(([name]) => name).filter((name) => !own.has(name) && !documented.includes(`\`${name.slice("hiera.".length)}\``));

  assert.deepEqual(missing, []);
});
