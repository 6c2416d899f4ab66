// The document around a report: what it may load, and that a name cannot become markup.

import assert from "node:assert/strict";
import { test } from "node:test";
import { documentOf, stateOf, waitingFor } from "../../src/views/page";

const PAGE = { run: "r-1", title: "</title><script>alert(1)</script>", style: "main{color:red}", body: "<main>body</main>", finished: true };

test("only what carries the nonce may run or dress, and nothing may be loaded", () => {
  const text = documentOf(PAGE, "abc");
  const policy = /Content-Security-Policy" content="([^"]+)"/.exec(text)?.[1];

  assert.equal(policy, "default-src 'none'; style-src 'nonce-abc'; script-src 'nonce-abc'; base-uri 'none'; form-action 'none'");
  assert.equal(text.match(/<script/g)?.length, 1);
  assert.equal(text.match(/<(?:script|style) nonce="abc">/g)?.length, 2);
  assert.doesNotMatch(text, /https?:|unsafe|\son\w+=/);
  assert.match(text, /<main>body<\/main>/);
});

test("each document has a nonce of its own", () => {
  assert.notEqual(documentOf(PAGE), documentOf(PAGE));
});

test("what a page waits for is text", () => {
  assert.match(waitingFor("r", "<b> & 'c'").body, /&#60;b&#62; &#38; &#39;c&#39;/);
});

test("the run of a restored page is taken only where it is one", () => {
  assert.equal(stateOf({ run: "20260101-Block-ab", top: 3 }), "20260101-Block-ab");
  for (const bad of [undefined, null, 3, {}, { run: 3 }, { run: "../x" }, { run: "" }]) assert.equal(stateOf(bad), undefined);
});
