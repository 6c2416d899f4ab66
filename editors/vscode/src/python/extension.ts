// The choice of the Python extensions, where one is installed. Neither is a dependency.

import * as vscode from "vscode";

interface PythonApi {
  readonly environments?: {
    getActiveEnvironmentPath(scope?: vscode.Uri): { path: string };
    resolveEnvironment(environment: { path: string }): Promise<{ executable?: { uri?: vscode.Uri } } | undefined>;
    readonly onDidChangeActiveEnvironmentPath: vscode.Event<unknown>;
  };
}

interface EnvironmentsApi {
  getEnvironment(scope: vscode.Uri | undefined): Promise<{ execInfo?: { run?: { executable?: string } } } | undefined>;
  readonly onDidChangeEnvironment: vscode.Event<unknown>;
}

// The Python extension asks the environments extension itself where that is in use.
const PYTHON = "ms-python.python";
const ENVIRONMENTS = "ms-python.vscode-python-envs";

/** The interpreter that the user chose in a Python extension for `scope`; undefined where there is none. */
export async function chosenInterpreter(scope: vscode.Uri | undefined): Promise<string | undefined> {
  const environments = (await exportsOf<PythonApi>(PYTHON))?.environments;
  if (environments !== undefined) {
    const found = await environments.resolveEnvironment(environments.getActiveEnvironmentPath(scope));
    return found?.executable?.uri?.fsPath;
  }
  const found = await (await exportsOf<EnvironmentsApi>(ENVIRONMENTS))?.getEnvironment(scope);
  return found?.execInfo?.run?.executable;
}

/** Calls `changed` whenever the user chooses another interpreter. */
export async function onChoice(changed: () => void): Promise<vscode.Disposable> {
  const environments = (await exportsOf<PythonApi>(PYTHON))?.environments;
  if (environments !== undefined) return environments.onDidChangeActiveEnvironmentPath(changed);
  const other = await exportsOf<EnvironmentsApi>(ENVIRONMENTS);
  return other?.onDidChangeEnvironment(changed) ?? new vscode.Disposable(() => undefined);
}

async function exportsOf<Api>(id: string): Promise<Api | undefined> {
  const extension = vscode.extensions.getExtension<Api | undefined>(id);
  if (extension === undefined) return undefined;
  return extension.isActive ? extension.exports : await extension.activate();
}
