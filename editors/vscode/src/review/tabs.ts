// Tabs that compare a candidate with something.

import * as vscode from "vscode";
import { CANDIDATE_SCHEME } from "../server/protocol";

/** The candidate's document in a tab; undefined for other tabs. */
export function candidateIn(tab: vscode.Tab | undefined): vscode.Uri | undefined {
  const input = tab?.input;
  if (!(input instanceof vscode.TabInputTextDiff)) return undefined;
  return input.modified.scheme === CANDIDATE_SCHEME ? input.modified : undefined;
}

/** The candidate's document in the tab that the user looks at. */
export function candidateInFront(): vscode.Uri | undefined {
  return candidateIn(vscode.window.tabGroups.activeTabGroup.activeTab);
}

/** Shows a file where it is open already, else beside what the user looks at. */
export async function showFile(uri: vscode.Uri): Promise<void> {
  const group = vscode.window.tabGroups.all.find(({ tabs }) => tabs.some(
    ({ input }) => input instanceof vscode.TabInputText && input.uri.toString() === uri.toString(),
  ));
  await vscode.window.showTextDocument(uri, { preview: false, viewColumn: group?.viewColumn ?? vscode.ViewColumn.Active });
}

/** Closes all tabs that show one of `candidates`. */
export async function closeTabs(candidates: ReadonlySet<string>): Promise<void> {
  const tabs = vscode.window.tabGroups.all.flatMap((group) => group.tabs).filter((tab) => {
    const shown = candidateIn(tab);
    return shown !== undefined && candidates.has(shown.toString());
  });
  if (tabs.length > 0) await vscode.window.tabGroups.close(tabs);
}
