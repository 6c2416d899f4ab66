// The `hiera` section as the user set it. VS Code's defaults are left out, because the project's own files come before them.

import * as vscode from "vscode";

/** Settings that are for the extension alone. */
const OWN = new Set(["interpreter", "trace.server"]);

interface Manifest {
  readonly contributes: { readonly configuration: { readonly properties: Readonly<Record<string, unknown>> } };
}

/** Names of the settings that the server reads, without `hiera.`. */
export function serverKeys(manifest: unknown): string[] {
  const { properties } = (manifest as Manifest).contributes.configuration;
  return Object.keys(properties).map((key) => key.replace(/^hiera\./, "")).filter((key) => !OWN.has(key));
}

/** What the user set for `scope`, by dotted names. */
export function settingsFor(keys: readonly string[], scope: vscode.Uri | undefined): Record<string, unknown> {
  const section = vscode.workspace.getConfiguration("hiera", scope ?? null);
  const set: Record<string, unknown> = {};
  for (const key of keys) {
    const found = section.inspect(key);
    const isSet = [
      found?.globalValue, found?.workspaceValue, found?.workspaceFolderValue,
      found?.globalLanguageValue, found?.workspaceLanguageValue, found?.workspaceFolderLanguageValue,
    ].some((value) => value !== undefined);
    if (isSet) set[key] = section.get(key);
  }
  return set;
}

/** One setting of the extension's own, or of the server's, as text. */
export function textSetting(key: string, scope: vscode.Uri | undefined): string {
  return vscode.workspace.getConfiguration("hiera", scope ?? null).get<string>(key, "").trim();
}
