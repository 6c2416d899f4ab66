"""From what a request raised to one sentence for the user, and whether trying again can help."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import openai

from engine.llm.endpoint import Endpoint
from engine.llm.errors import ModelError
from engine.llm.redact import redact

_CONTEXT = re.compile(r"context[_ ](?:length|window|size)|maximum context|too many tokens|prompt is too long|"
                      r"exceed\w* (?:the )?(?:available |model'?s? )?context|input (?:is )?too long|n_ctx",
                      re.IGNORECASE)
_QUOTA = re.compile(r"insufficient[_ ]quota|insufficient[_ ]balance|billing|payment|out of credit|no credit",
                    re.IGNORECASE)
_TOO_MANY = re.compile(r"concurren|too many (?:simultaneous|parallel)", re.IGNORECASE)


class Again(Exception):
    """A failure that may pass.

    Args:
        error: What to raise when it does not.
        wait_s: What the endpoint asks to wait, or None.
        crowded: Fewer requests at a time would help.
        arrived: Text that came before the failure, for the account.
    """

    def __init__(self, error: ModelError, *, wait_s: float | None = None, crowded: bool = False,
                 arrived: str = "") -> None:
        super().__init__(str(error))
        self.error, self.wait_s, self.crowded, self.arrived = error, wait_s, crowded, arrived


def status_failure(error: openai.APIStatusError, endpoint: Endpoint) -> ModelError | Again:
    """The meaning of an HTTP status."""
    status, said = error.status_code, said_by(error, endpoint)
    where = endpoint.base_url
    if status in (401, 403):
        if not endpoint.key:
            return ModelError("key", f"{where} wants a key ({status}) and none was sent: {said}",
                              hint="export the key and name its variable with --key-variable")
        return ModelError("key", f"{where} refused the key in {endpoint.key_variable} ({status}): {said}",
                          hint=f"correct {endpoint.key_variable}, or name another variable with --key-variable")
    if status == 402 or (status == 429 and _QUOTA.search(f"{error.code} {error.type} {said}")):
        return ModelError("account", f"the account at {where} has no credit left ({status}): {said}",
                          hint="pay in, or choose another endpoint with --base-url")
    if status == 404:
        if re.search(r"model", said, re.IGNORECASE) or endpoint.model in said:
            return ModelError("model", f"{where} has no model {endpoint.model!r} (404): {said}",
                              hint="correct --model; `hiera llm-check` lists what is there")
        return ModelError("address", f"there is no chat API at {where} (404)",
                          hint="correct --base-url; it usually ends in /v1")
    if status == 429:
        return Again(ModelError("rate", f"{where} takes no more requests for now (429): {said}",
                                hint="wait, or use an account with a higher limit"),
                     wait_s=retry_after(error), crowded=bool(_TOO_MANY.search(said)))
    if status in (408, 409) or status >= 500:
        return Again(ModelError("server", f"{where} fails with status {status}: {said}",
                                hint="try later, or look at the server's log"), wait_s=retry_after(error))
    if 300 <= status < 400:
        return ModelError("address", f"{where} sends requests elsewhere ({status}), which is not followed",
                          hint="give the final address with --base-url")
    if _CONTEXT.search(said):
        return ModelError("context", f"the prompt is too long for {endpoint.model}: {said}",
                          hint="lower llm.promptTokens, or raise the server's context")
    if status == 400 and re.search(r"\bmodel\b.{0,60}(?:not exist|not found|unknown|invalid)", said, re.IGNORECASE):
        return ModelError("model", f"{where} has no model {endpoint.model!r} ({status}): {said}",
                          hint="correct --model; `hiera llm-check` lists what is there")
    return ModelError("refused", f"{where} refused the request ({status}): {said}",
                      hint="`hiera llm-check` shows what the endpoint takes")


def connection_failure(error: BaseException, endpoint: Endpoint) -> Again:
    """The meaning of a connection that failed or broke."""
    if isinstance(error, openai.APITimeoutError):
        return Again(ModelError("timeout", f"{endpoint.base_url} stopped sending",
                                hint="try later, or raise llm.seconds"))
    cause = error.__cause__ or error
    why = redact(str(cause) or type(cause).__name__, endpoint.key)[:160]
    hint = "start the server, or correct --base-url" if endpoint.is_loopback else "check the network and --base-url"
    return Again(ModelError("network", f"{endpoint.base_url} cannot be reached: {why}", hint=hint))


def broken_off(endpoint: Endpoint, why: str, arrived: str) -> Again:
    """An answer that ended before its end."""
    return Again(ModelError("network", f"the answer of {endpoint.model} broke off: {redact(why, endpoint.key)[:160]}",
                            hint="try again; a proxy between here and the endpoint may cut long answers"),
                 arrived=arrived)


def not_an_api(endpoint: Endpoint, what: str) -> ModelError:
    """A 200 that is no chat completion."""
    shown = redact(" ".join(what.split()), endpoint.key)[:80]
    return ModelError("address", f"{endpoint.base_url} answers, but not as a chat API: {shown!r}",
                      hint="correct --base-url; it usually ends in /v1")


def no_choices(endpoint: Endpoint, data: dict[str, Any]) -> Again:
    """A 200 with an error inside, as gateways send it."""
    inner = data.get("error")
    said = inner.get("message") if isinstance(inner, dict) else inner
    shown = redact(str(said or "it gave no reason"), endpoint.key)[:200]
    return Again(ModelError("server", f"{endpoint.base_url} answered without a choice: {shown}",
                            hint="try later; the model behind the gateway may be down"))


def blocked(endpoint: Endpoint, why: str) -> ModelError:
    """A refusal or a content filter."""
    shown = redact(" ".join(str(why).split()), endpoint.key)[:160]
    return ModelError("blocked", f"{endpoint.model} refused to answer: {shown}",
                      hint="nothing to mend here; another model may answer")


def truncated(endpoint: Endpoint, tokens: int) -> ModelError:
    """An answer that hit its length limit."""
    return ModelError("truncated", f"the answer of {endpoint.model} was cut at {tokens} tokens",
                      hint="raise --max-tokens")


def empty(endpoint: Endpoint) -> Again:
    """An answer without content."""
    return Again(ModelError("empty", f"{endpoint.model} answered with nothing",
                            hint="try again, or another model"))


def retry_after(error: openai.APIStatusError) -> float | None:
    """Seconds that the endpoint asks to wait, or None."""
    headers = error.response.headers
    for name, unit in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        try:
            wait_s = float(headers.get(name, "")) * unit
        except ValueError:
            continue
        if 0 <= wait_s < float("inf"):
            return wait_s
    try:
        until = parsedate_to_datetime(headers.get("retry-after", ""))
    except (TypeError, ValueError):
        return None
    until = until if until.tzinfo else until.replace(tzinfo=UTC)
    return max(0.0, (until - datetime.now(UTC)).total_seconds())


def said_by(error: openai.APIStatusError, endpoint: Endpoint) -> str:
    """The endpoint's own words, one line, without keys."""
    body = error.body
    message: object = None
    if isinstance(body, dict):
        inner = body.get("error", body)
        message = (inner.get("message") or inner.get("detail")) if isinstance(inner, dict) else inner
        if isinstance(inner, dict) and inner.get("param"):
            message = f"{message} (parameter {inner['param']})"
    text = str(message or body or error.message)
    if "<html" in text.lower() or "<!doctype" in text.lower():
        text = "a web page"
    return redact(" ".join(text.split()), endpoint.key)[:400]
