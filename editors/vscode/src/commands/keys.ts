// Keys of language models: kept in VS Code's secret store, handed to the server by a request, and nowhere else.

import * as vscode from "vscode";
import type { HieraClient } from "../server/client";
import type { Secrets } from "../server/redact";
import { textSetting } from "../server/settings";
import { registerAll } from "./register";

/** Names of the stored keys; the secret store cannot list them. */
const NAMES = "hiera.keyNames";
const PREFIX = "hiera.key.";

export class Keys {
  constructor(
    private readonly context: vscode.ExtensionContext,
    private readonly secrets: Secrets,
  ) {}

  /** Hands every stored key to a server that has just started. */
  async handOver(client: HieraClient): Promise<void> {
    for (const name of this.names) await this.send(client, name, (await this.context.secrets.get(PREFIX + name)) ?? "");
  }

  register(client: HieraClient): void {
    this.context.subscriptions.push(registerAll(client, {
      "hiera.setModelKey": async () => {
        const name = textSetting("llm.keyVariable", undefined) || "OPENAI_API_KEY";
        const value = await vscode.window.showInputBox({
          title: `Key of the language model (${name})`, password: true, ignoreFocusOut: true,
          prompt: "It is kept in VS Code's secret store and goes to the model's endpoint only.",
        });
        if (value === undefined || value.trim() === "") return;
        await this.context.secrets.store(PREFIX + name, value.trim());
        await this.context.globalState.update(NAMES, [...new Set([...this.names, name])]);
        if (client.state === "running") await this.send(client, name, value.trim());
      },
      "hiera.deleteModelKey": async () => {
        for (const name of this.names) {
          await this.context.secrets.delete(PREFIX + name);
          if (client.state === "running") await this.send(client, name, "");
        }
        await this.context.globalState.update(NAMES, []);
      },
    }));
  }

  private get names(): string[] {
    return this.context.globalState.get<string[]>(NAMES, []);
  }

  private async send(client: HieraClient, name: string, value: string): Promise<void> {
    this.secrets.add(value);
    await client.command("hiera.secret", { name, value });
  }
}
