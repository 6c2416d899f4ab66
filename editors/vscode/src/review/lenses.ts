// Lenses at the kernel in the review: what the title bar has, where the eyes are.

import * as vscode from "vscode";
import { CANDIDATE_SCHEME } from "../server/protocol";
import { type Review, type Reviewed, place } from "./review";

export class ReviewLenses implements vscode.CodeLensProvider {
  readonly onDidChangeCodeLenses: vscode.Event<void>;

  constructor(private readonly review: Review) {
    this.onDidChangeCodeLenses = review.onDidChange;
  }

  provideCodeLenses(document: vscode.TextDocument): vscode.CodeLens[] {
    const reviewed = this.review.of(document.uri);
    if (reviewed === undefined) return [];
    const range = new vscode.Range(reviewed.line, 0, reviewed.line, 0);
    const { uri, symbol } = reviewed;
    return entries(reviewed).map(([title, command]) =>
      new vscode.CodeLens(range, { title, command, arguments: command === "hiera.explain" ? [{ uri, symbol }] : [] }));
  }
}

function entries({ candidate, choices, result }: Reviewed): [string, string][] {
  const gain = candidate.speedup === null ? "" : ` (${candidate.speedup.toFixed(2)}x)`;
  const accept: [string, string][] =
    result.no_gain === "" ? [[`$(check) Accept ${candidate.id}${gain}`, "hiera.acceptCandidate"]] : [];
  const others: [string, string][] = choices.length < 2 ? [] : [
    ["$(arrow-left) Previous", "hiera.previousCandidate"],
    [place(choices, candidate), "hiera.pickCandidate"],
    ["Next $(arrow-right)", "hiera.nextCandidate"],
  ];
  return [...accept, ["$(discard) Discard", "hiera.discardCandidate"], ...others, ["Why", "hiera.explain"]];
}

export function registerReviewLenses(review: Review): vscode.Disposable {
  return vscode.languages.registerCodeLensProvider({ scheme: CANDIDATE_SCHEME }, new ReviewLenses(review));
}
