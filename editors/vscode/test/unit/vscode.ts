// Stands in for VS Code's API: as much of it as the modules under test use. `scripts/build.mjs` puts it in its place.

type Listener<T> = (value: T) => unknown;

export class Disposable {
  constructor(private readonly end: () => unknown) {}

  static from(...all: readonly { dispose(): unknown }[]): Disposable {
    return new Disposable(() => { for (const one of all) one.dispose(); });
  }

  dispose(): void {
    this.end();
  }
}

export class EventEmitter<T> {
  private readonly listeners = new Set<Listener<T>>();

  readonly event = (listener: Listener<T>): Disposable => {
    this.listeners.add(listener);
    return new Disposable(() => this.listeners.delete(listener));
  };

  fire(value: T): void {
    for (const listener of this.listeners) listener(value);
  }

  dispose(): void {
    this.listeners.clear();
  }
}

export class Uri {
  private constructor(readonly scheme: string, readonly path: string) {}

  static parse(text: string): Uri {
    const [scheme = "", path = ""] = text.split(/:(.*)/s);
    return new Uri(scheme, decodeURIComponent(path));
  }

  static from({ scheme, path }: { readonly scheme: string; readonly path: string }): Uri {
    return new Uri(scheme, path);
  }

  toString(): string {
    return `${this.scheme}:${this.path}`;
  }
}

export class Range {
  constructor(readonly line: number, readonly column: number, readonly lastLine: number, readonly lastColumn: number) {}
}

export class ThemeColor {
  constructor(readonly id: string) {}
}

export class TabInputText {
  constructor(readonly uri: Uri) {}
}

export class TabInputTextDiff {
  constructor(readonly original: Uri, readonly modified: Uri) {}
}

export interface Tab {
  readonly input: TabInputText | TabInputTextDiff;
}

export const ViewColumn = { Active: -1, Beside: -2 };
export const ProgressLocation = { Notification: 15 };
export const StatusBarAlignment = { Right: 2 };

/** The window: tests look at it and change it. The last tab is in front. */
export const shown = {
  tabs: [] as Tab[],
  /** How long VS Code takes to show a progress. */
  progressMs: 0,
  progresses: [] as { readonly title: string; readonly reports: unknown[]; closed: boolean }[],
  statusBar: {} as { text?: string; tooltip?: string; accessibilityInformation?: { label: string } },
  answer: undefined as string | undefined,
};

const NEVER = (): Disposable => new Disposable(() => undefined);

export const window = {
  activeTextEditor: undefined,
  onDidChangeVisibleTextEditors: NEVER,
  tabGroups: {
    onDidChangeTabs: NEVER,
    onDidChangeTabGroups: NEVER,
    get all() { return [{ viewColumn: 1, tabs: shown.tabs }]; },
    get activeTabGroup() { return { activeTab: shown.tabs.at(-1) }; },
    close(tabs: readonly Tab[]): Promise<boolean> {
      shown.tabs = shown.tabs.filter((tab) => !tabs.includes(tab));
      return Promise.resolve(true);
    },
  },
  createStatusBarItem: () => Object.assign(shown.statusBar, { show: () => undefined, dispose: () => undefined }),
  setStatusBarMessage: NEVER,
  showTextDocument(uri: Uri): Promise<void> {
    shown.tabs.push({ input: new TabInputText(uri) });
    return Promise.resolve();
  },
  showErrorMessage: () => Promise.resolve(shown.answer),
  showWarningMessage: () => Promise.resolve(shown.answer),
  async withProgress<R>(
    { title }: { readonly title: string },
    task: (progress: { report(value: unknown): void }, token: { onCancellationRequested(): Disposable }) => Promise<R>,
  ): Promise<R> {
    await new Promise((resolve) => setTimeout(resolve, shown.progressMs));
    const one = { title, reports: [] as unknown[], closed: false };
    shown.progresses.push(one);
    const result = await task({ report: (value) => one.reports.push(value) }, { onCancellationRequested: NEVER });
    one.closed = true;
    return result;
  },
};

export const commands = {
  executeCommand(name: string, ...given: readonly unknown[]): Promise<void> {
    if (name === "vscode.diff") shown.tabs.push({ input: new TabInputTextDiff(given[0] as Uri, given[1] as Uri) });
    return Promise.resolve();
  },
};

export const languages = { onDidChangeDiagnostics: NEVER, getDiagnostics: () => [] };

export const extensions = { getExtension: () => undefined };

interface Folder {
  readonly uri: { readonly fsPath: string };
}

export const workspace = {
  isTrusted: true,
  workspaceFolders: [] as Folder[],
  getWorkspaceFolder(): Folder | undefined { return this.workspaceFolders[0]; },
  textDocuments: [],
  getConfiguration: () => ({ get: <T>(_key: string, fallback: T): T => fallback }),
  openTextDocument: () => Promise.resolve({ getText: () => "" }),
  asRelativePath: (path: string) => path,
};
