// Commands of the review, and the lenses and code actions that lead to them.

import * as vscode from "vscode";
import { registerAll } from "../commands/register";
import { chosenSite, hasResult } from "../commands/sites";
import type { HieraClient } from "../server/client";
import type { Site } from "../server/protocol";
import { registerReviewLenses } from "./lenses";
import { Review } from "./review";

export function registerReview(context: vscode.ExtensionContext, client: HieraClient): Review {
  const review = new Review(client);
  context.subscriptions.push(
    review,
    registerReviewLenses(review),
    client.intercept("hiera.diff", (site) => review.open(site)),
    client.intercept("hiera.accept", (site) => review.accept(site)),
    client.intercept("hiera.use", (site) => review.use(site)),
    client.intercept("hiera.discard", (site) => review.discard(site)),
    registerAll(client, {
      "hiera.review": async (asked) => {
        const site = isSite(asked) ? asked : await chosenSite(client, (one) => hasResult(one) && one.chosen !== null, "no candidate to review");
        if (site !== undefined) await review.open(site);
      },
      "hiera.acceptCandidate": () => review.accept(),
      "hiera.discardCandidate": () => review.discard(),
      "hiera.nextCandidate": () => review.step(1),
      "hiera.previousCandidate": () => review.step(-1),
      "hiera.pickCandidate": () => review.pick(),
      "hiera.useKernel": async () => {
        const site = await chosenSite(client, (one) => hasResult(one) && one.kind !== "cuda" && !one.used, "no kernel to use");
        if (site !== undefined) await review.use(site);
      },
    }),
  );
  return review;
}

/** What views pass: a site that was chosen already. */
function isSite(asked: unknown): asked is Site {
  return typeof asked === "object" && asked !== null && "uri" in asked && "symbol" in asked;
}
