// The runs tree and the report.

import type * as vscode from "vscode";
import type { HieraClient } from "../server/client";

/** Registers the view `hiera.runs`, the commands `hiera.runs.*` and `hiera.showReport`. */
export function registerViews(_context: vscode.ExtensionContext, _client: HieraClient): void {
  // Filled in by the views.
}
