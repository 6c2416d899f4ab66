// The document around a report in a webview: what it may load, and the little program that keeps one's place.

import { randomBytes } from "node:crypto";
import type { ReportPage } from "./model";

/** What a webview remembers over a reload of the window. */
export interface PageState {
  readonly run: string;
  readonly top: number;
  readonly open: readonly string[];
}

/** Runs in the webview: takes a new body in place of the old one, and keeps scrolling, what is unfolded, and the focus. */
const SCRIPT = `
const api = acquireVsCodeApi();
const run = document.documentElement.dataset.run;
const keep = () => api.setState({ run, top: window.scrollY, open: [...document.querySelectorAll("details[open][id]")].map((one) => one.id) });
const unfold = (ids) => { for (const id of ids) document.getElementById(id)?.setAttribute("open", ""); };
const known = api.getState();
// A page that only waits has nothing to unfold or to scroll, and must not forget what the report will want.
if (known?.run === run) { unfold(known.open); window.scrollTo(0, known.top); } else keep();
let timer;
const soon = () => { clearTimeout(timer); timer = setTimeout(keep, 100); };
window.addEventListener("scroll", soon, { passive: true });
document.addEventListener("visibilitychange", keep);
document.addEventListener("toggle", soon, true);
const focusables = () => [...document.querySelectorAll("a[href], summary, [tabindex]")];
window.addEventListener("message", ({ data }) => {
  const next = new DOMParser().parseFromString(data.body, "text/html").querySelector("main");
  const before = document.querySelector("main");
  if (next === null || before === null) return;
  const open = [...document.querySelectorAll("details[open][id]")].map((one) => one.id);
  const focus = focusables().indexOf(document.activeElement);
  const top = window.scrollY;
  const across = new Map([...document.querySelectorAll(".scroll")].map((one) => [one.getAttribute("aria-label"), one.scrollLeft]));
  before.replaceWith(document.adoptNode(next));
  unfold(open);
  for (const one of document.querySelectorAll(".scroll")) one.scrollLeft = across.get(one.getAttribute("aria-label")) ?? 0;
  if (focus >= 0) focusables()[focus]?.focus({ preventScroll: true });
  window.scrollTo(0, top);
});
`;

/** The whole document. The body is the server's, in which everything that is not its own is escaped. */
export function documentOf(page: ReportPage, nonce = randomBytes(16).toString("hex")): string {
  return `<!doctype html>
<html lang="en" data-run="${escaped(page.run)}"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'nonce-${nonce}'; script-src 'nonce-${nonce}'; base-uri 'none'; form-action 'none'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>${escaped(page.title)}</title><style nonce="${nonce}">${page.style}</style></head>
<body>${page.body}<script nonce="${nonce}">${SCRIPT}</script></body></html>`;
}

/** What is shown while there is no report. */
export function waitingFor(run: string, words: string): ReportPage {
  return { run, title: "HIERA report", style: "body{padding:1rem}", body: `<main><p role="status">${escaped(words)}</p></main>`, finished: false };
}

/** The state of a webview, where it is one. */
export function stateOf(value: unknown): string | undefined {
  const run = typeof value === "object" && value !== null && "run" in value ? value.run : undefined;
  return typeof run === "string" && /^[\w-]+$/.test(run) ? run : undefined;
}

function escaped(text: string): string {
  return text.replace(/[&<>"']/g, (one) => `&#${one.charCodeAt(0)};`);
}
