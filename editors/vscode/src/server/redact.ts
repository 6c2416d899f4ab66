// Takes keys out of everything that is logged: a trace shows whole messages, and one of them hands over the key.

import type * as vscode from "vscode";

/** Secrets of this session, and a way to take them out of a text. */
export class Secrets {
  private readonly values = new Set<string>();

  add(value: string): void {
    if (value !== "") this.values.add(value);
  }

  without(text: string): string {
    let clean = text;
    for (const value of this.values) {
      clean = clean.replaceAll(value, "(secret)").replaceAll(JSON.stringify(value).slice(1, -1), "(secret)");
    }
    return clean;
  }
}

const WRITERS = new Set<PropertyKey>(["trace", "debug", "info", "warn", "error", "append", "appendLine", "replace"]);

/** The same channel; what is written to it has no secrets. */
export function redacted(channel: vscode.LogOutputChannel, secrets: Secrets): vscode.LogOutputChannel {
  const clean = (value: unknown): unknown => {
    if (typeof value === "string") return secrets.without(value);
    if (value instanceof Error) return secrets.without(value.stack ?? value.message);
    return value === undefined ? value : secrets.without(JSON.stringify(value));
  };
  return new Proxy(channel, {
    get(target, name) {
      const member: unknown = Reflect.get(target, name, target);
      if (typeof member !== "function") return member;
      const call = member as (...args: unknown[]) => unknown;
      if (!WRITERS.has(name)) return call.bind(target);
      return (...args: unknown[]) => call.apply(target, args.map(clean));
    },
  });
}
