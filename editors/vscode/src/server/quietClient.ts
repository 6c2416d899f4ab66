// A language client without toasts of its own: what went wrong is logged here, and told once by whoever started it.

import { LanguageClient } from "vscode-languageclient/node";

export class QuietClient extends LanguageClient {
  override error(message: string, data?: unknown): void {
    super.error(message, data, false);
  }

  override warn(message: string, data?: unknown): void {
    super.warn(message, data, false);
  }
}
