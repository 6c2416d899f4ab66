"""One reply out of a response body or a stream, whatever odd form it comes in."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import httpx2
import openai

from engine.llm import failures
from engine.llm.endpoint import Endpoint

# A server that ignores the limit of length is cut off at this many characters a token.
CHARACTERS_PER_TOKEN = 12
BLOCKING = ("content_filter", "PROHIBITED_CONTENT", "SAFETY", "safety", "blocked")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What came back.

    Attributes:
        text: The answer's text; may be blank.
        finish: Why it ended: `stop`, `length`, or the provider's own word.
        refusal: The model's refusal or the filter's name, or empty.
        used: (prompt, answer) tokens by the endpoint's count, or None.
        cached: It was answered before.
    """

    text: str
    finish: str
    refusal: str = ""
    used: tuple[int, int] | None = None
    cached: bool = False


def from_body(body: Any, endpoint: Endpoint) -> Reply:
    """The reply in a whole body: a model of the SDK, a dictionary, or whatever else arrived.

    Raises:
        Again: It holds no choice.
        ModelError: It is no chat completion.
    """
    data = body.model_dump() if hasattr(body, "model_dump") else body
    if not isinstance(data, dict):
        raise failures.not_an_api(endpoint, str(data))
    choices = data.get("choices")
    if data.get("error") or not isinstance(choices, list) or not choices:
        if "choices" not in data and "error" not in data:
            raise failures.not_an_api(endpoint, json.dumps(data, default=str))
        raise failures.no_choices(endpoint, data)
    choice = choices[0] if isinstance(choices[0], dict) else {}
    message = choice.get("message")
    finish = str(choice.get("finish_reason") or "")
    if not isinstance(message, dict):
        refusal = finish if finish in BLOCKING else ""
        if not refusal:
            raise failures.no_choices(endpoint, {"error": "its message is empty"})
        return Reply(text="", finish=finish, refusal=refusal, used=usage_of(data.get("usage")))
    refusal = str(message.get("refusal") or "") or (finish if finish in BLOCKING else "")
    return Reply(text=_text(message.get("content")), finish=finish or "stop", refusal=refusal,
                 used=usage_of(data.get("usage")))


async def from_stream(stream: Any, endpoint: Endpoint, allowed: int) -> Reply:
    """Collect a stream.

    Raises:
        Again: It ended before its end.
        ModelError: It is no chat API at all.
        openai.APIError: The stream holds an error event.
    """
    response = getattr(stream, "response", None)
    kind = response.headers.get("content-type", "") if response is not None else ""
    if response is None or ("event-stream" not in kind and ("json" in kind or "html" in kind)):
        return await _unstreamed(stream, response, endpoint)
    parts: list[str] = []
    finish, refusal, used, size = "", "", None, 0
    try:
        async for chunk in stream:
            data = chunk.model_dump() if hasattr(chunk, "model_dump") else {}
            used = usage_of(data.get("usage")) or used
            for choice in (data.get("choices") or [])[:1]:
                delta = choice.get("delta") or {}
                parts.append(_text(delta.get("content")))
                size += len(parts[-1])
                refusal += str(delta.get("refusal") or "")
                finish = str(choice.get("finish_reason") or "") or finish
            if size > allowed * CHARACTERS_PER_TOKEN:
                finish = "length"
                break
    except (openai.APIConnectionError, httpx2.HTTPError, OSError, json.JSONDecodeError) as error:
        raise failures.broken_off(endpoint, str(error) or type(error).__name__, "".join(parts)) from None
    finally:
        await stream.close()
    if finish in BLOCKING:
        refusal = refusal or finish
    if not finish and not any(parts) and not refusal:
        raise failures.broken_off(endpoint, "nothing arrived", "")
    if not finish:
        raise failures.broken_off(endpoint, "it has no end", "".join(parts))
    return Reply(text="".join(parts), finish=finish, refusal=refusal, used=used)


def usage_of(usage: Any) -> tuple[int, int] | None:
    """(prompt, answer) tokens, where an endpoint reports them."""
    if not isinstance(usage, dict):
        return None
    counts = [usage.get(name) for name in ("prompt_tokens", "completion_tokens")]
    if not all(isinstance(count, int) and count >= 0 for count in counts):
        return None
    return counts[0], counts[1]  # type: ignore[return-value]


async def _unstreamed(stream: Any, response: httpx2.Response | None, endpoint: Endpoint) -> Reply:
    """A server that was asked to stream and did not."""
    if response is None:
        raise failures.not_an_api(endpoint, str(stream))
    text = (await response.aread()).decode("utf-8", "replace")
    await stream.close()
    try:
        data = json.loads(text)
    except ValueError:
        raise failures.not_an_api(endpoint, text) from None
    return from_body(data, endpoint)


def _text(content: Any) -> str:
    """Text of a message's content, which some providers send in parts."""
    if isinstance(content, list):
        return "".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""

