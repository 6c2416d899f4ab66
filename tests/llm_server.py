"""A server over real HTTP that behaves like each provider, oddities and faults included. No model: a function answers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from engine.llm.tiny_http import Answer, Request, port_of, serve

SECRET = "sk-test-0123456789abcdef"


@dataclass(frozen=True, kw_only=True)
class Profile:
    """How a provider differs."""

    key: bool = True
    schema: str = "yes"  # yes, no (400), broken (500), open-objects (400 on additionalProperties)
    json_word: bool = False
    token_parameter: str = "both"  # both, or the only one that is taken
    most_tokens: int = 10**9
    temperature: bool = True
    stream: str = "yes"  # yes, ignored (whole JSON), refused (400)
    usage: bool = True
    stream_options: bool = True
    system: bool = True
    keep_alive: bool = False
    thoughts: str = ""  # field of reasoning, or "tag" for a block in the content
    list_errors: bool = False
    context: int = 10**9
    truncates: int = 0  # reads so many tokens of a prompt and says nothing
    wants_body: tuple[str, ...] = ()


PROFILES = {
    "openai": Profile(token_parameter="max_completion_tokens"),
    "openai-reasoning": Profile(token_parameter="max_completion_tokens", temperature=False),
    "deepseek": Profile(schema="no", json_word=True, keep_alive=True, thoughts="reasoning_content", most_tokens=8192),
    "qwen": Profile(json_word=True, thoughts="reasoning_content"),
    "gemini": Profile(schema="open-objects", list_errors=True),
    "vllm": Profile(key=False, thoughts="reasoning"),
    "llamacpp": Profile(key=False, thoughts="tag"),
    "llama-cpp-python": Profile(key=False, schema="broken", usage=False, token_parameter="max_tokens"),
    "ollama": Profile(key=False, truncates=2048),
    "gemma-template": Profile(key=False, system=False),
    "old-gateway": Profile(schema="no", stream="ignored", stream_options=False),
    "no-streams": Profile(schema="no", stream="refused"),
}


@dataclass
class Provider:
    """The server's state. `faults` are taken one a request, `None` for none."""

    profile: Profile
    answer: Callable[[dict[str, Any]], str]
    model: str = "test-model"
    faults: list[Any] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    port: int = 0
    running: int = 0
    most_running: int = 0

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def requests(self) -> int:
        return len(self.bodies)

    async def handle(self, request: Request, answer: Answer) -> None:
        self.headers.append(dict(request.headers))
        if request.path.endswith("/models"):
            await answer.whole(200, json.dumps({"object": "list", "data": [{"id": self.model, "object": "model"}]}).encode())
            return
        if request.path != "/v1/chat/completions":
            await answer.whole(404, b"404 page not found", kind="text/plain")
            return
        body = json.loads(request.body)
        self.bodies.append(body)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            fault = self.faults.pop(0) if self.faults else None
            if not await self._fails(fault, body, request, answer):
                await self._complete(fault, body, answer)
        finally:
            self.running -= 1

    async def _fails(self, fault: Any, body: dict[str, Any], request: Request, answer: Answer) -> bool:
        """Statuses and bodies that are no completion. True where the answer is written."""
        p = self.profile
        if p.key and request.headers.get("authorization") != f"Bearer {SECRET}":
            given = request.headers.get("authorization", "")
            await self._error(answer, 401, f"Incorrect API key provided: {given}", code="invalid_api_key")
        elif isinstance(fault, tuple) and fault[0] == "status":
            _, status, message, headers = fault
            await self._error(answer, status, message, headers=headers)
        elif fault == "html-error":
            await answer.whole(502, b"<html><body>Bad gateway</body></html>", kind="text/html")
        elif fault == "html":
            await answer.whole(200, b"<!doctype html><html>Log in to the hotel network</html>", kind="text/html")
        elif fault == "null":
            await answer.whole(200, json.dumps({"id": "x", "choices": None, "error": {"message": "upstream died"}}).encode())
        elif fault == "redirect":
            await answer.whole(307, b"", headers={"Location": "http://127.0.0.1:9/v1/chat/completions"})
        elif fault == "drop":
            answer.abort()
        elif fault == "hang":
            await asyncio.sleep(60)
        elif body["model"] != self.model:
            await self._error(answer, 404, f"The model `{body['model']}` does not exist.", code="model_not_found")
        else:
            said = self._refusal(body)
            if said is None:
                return False
            await self._error(answer, *said)
        return True

    def _refusal(self, body: dict[str, Any]) -> tuple[int, str] | None:
        """What this provider does not take."""
        p, text = self.profile, json.dumps(body["messages"])
        form = body.get("response_format") or {}
        if form.get("type") == "json_schema":
            if p.schema == "no":
                return 400, "This response_format type is unavailable now"
            if p.schema == "broken":
                return 500, "[{'type': 'literal_error', 'loc': ('body', 'response_format', 'type'), 'msg': \"Input should be 'text' or 'json_object'\"}]"
            if p.schema == "open-objects" and "additionalProperties" in json.dumps(form):
                return 400, "Invalid JSON payload received. Unknown name \"additionalProperties\" at 'generation_config.response_schema'"
            if problem := _not_strict(form["json_schema"]["schema"]):
                return 400, f"Invalid schema for response_format: {problem}"
        if form.get("type") == "json_object" and p.json_word and "json" not in text.lower():
            return 400, "'messages' must contain the word 'json' in some form, to use 'response_format' of type 'json_object'."
        limits = [name for name in ("max_tokens", "max_completion_tokens") if name in body]
        for name in limits:
            if p.token_parameter not in ("both", name):
                return 400, f"Unsupported parameter: '{name}' is not supported with this model. Use '{p.token_parameter}' instead."
            if body[name] > p.most_tokens:
                return 400, f"Invalid {name} value, the valid range of {name} is [1, {p.most_tokens}]"
        if not limits:
            return 400, "a limit is wanted by this test"
        if "temperature" in body and not p.temperature:
            return 400, "Unsupported value: 'temperature' does not support 0.3 with this model. Only the default (1) value is supported."
        if not p.system and any(m["role"] == "system" for m in body["messages"]):
            return 400, "System role not supported"
        if body.get("stream") and p.stream == "refused":
            return 400, "stream is not supported by this deployment"
        if "stream_options" in body and not p.stream_options:
            return 400, "Unrecognized request argument supplied: stream_options"
        if len(text) // 4 > p.context:
            return 400, f"the request exceeds the available context size ({p.context} tokens), try increasing it"
        return None

    async def _complete(self, fault: Any, body: dict[str, Any], answer: Answer) -> None:
        p = self.profile
        try:
            text, finish, refusal = self.answer(body), "stop", None
        except Exception as error:  # noqa: BLE001 - the test's own function: shown to the client, so that the test can fail.
            await self._error(answer, 400, f"the test's answer failed: {error!r}")
            return
        if fault == "length":
            text, finish = text[: len(text) // 2], "length"
        elif fault == "thought-out":
            text, finish = "", "length"
        elif fault == "refusal":
            text, refusal = "", "I cannot help with that."
        elif fault == "filter":
            text, finish = "", "content_filter"
        elif fault == "prohibited":
            await answer.whole(200, json.dumps({"choices": [{"index": 0, "message": None, "finish_reason": "PROHIBITED_CONTENT"}]}).encode())
            return
        elif fault == "blank":
            text = "   \n  "
        elif fault == "fenced":
            text = f"```json\n{text}\n```"
        elif fault == "prose":
            text = f"Sure! Here is what you asked for:\n{text}\nI hope this helps."
        elif fault == "think":
            text = f"<think>\nThe user wants {{ something }}.\n</think>\n\n{text}"
        elif fault == "wrong":
            text = json.dumps({"answer": 42})
        elif fault == "not-json":
            text = "I would choose the second one."
        if p.thoughts == "tag" and fault is None:
            text = f"<think>\n\n</think>\n\n{text}"
        prompt = len(json.dumps(body["messages"])) // 4
        usage = {"prompt_tokens": min(prompt, p.truncates or prompt), "completion_tokens": max(1, len(text) // 4)}
        if not body.get("stream") or p.stream == "ignored":
            message = {"role": "assistant", "content": text, **({"refusal": refusal} if refusal else {})}
            data = {"id": "x", "object": "chat.completion", "created": 1, "model": self.model,
                    "choices": [{"index": 0, "message": message, "finish_reason": finish}]}
            await answer.whole(200, json.dumps(data | ({"usage": usage} if p.usage else {})).encode())
            return
        await self._stream(fault, body, answer, text, finish, refusal, usage)

    async def _stream(self, fault: Any, body: dict[str, Any], answer: Answer, text: str, finish: str,
                      refusal: str | None, usage: dict[str, int]) -> None:
        p = self.profile
        await answer.start("text/event-stream")
        if p.keep_alive:
            for _ in range(3):
                await answer.chunk(b": keep-alive\n\n")
        base = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": self.model}

        async def send(delta: dict[str, Any], end: str | None = None) -> None:
            choice = {"index": 0, "delta": delta, "finish_reason": end}
            await answer.chunk(b"data: " + json.dumps(base | {"choices": [choice]}).encode() + b"\n\n")

        await send({"role": "assistant", "content": ""})
        if p.thoughts not in ("", "tag"):
            await send({p.thoughts: "Let me think about { this }."})
        if refusal:
            await send({"refusal": refusal})
        pieces = re.findall(r"(?s).{1,64}", text)
        for number, piece in enumerate(pieces):
            if number == len(pieces) // 2:
                if fault == "cut":  # The connection ends cleanly, in the middle.
                    await answer.end()
                    return
                if fault == "break":
                    answer.abort()
                    return
                if fault == "error-event":
                    await answer.chunk(b'data: {"error": {"message": "worker was preempted", "code": 503}}\n\n')
                    await answer.end()
                    return
            if fault == "slow":
                await asyncio.sleep(0.2)
            await send({"content": piece})
        await send({}, finish)
        if p.usage and (body.get("stream_options") or {}).get("include_usage"):
            await answer.chunk(b"data: " + json.dumps(base | {"choices": [], "usage": usage}).encode() + b"\n\n")
        await answer.chunk(b"data: [DONE]\n\n")
        await answer.end()

    async def _error(self, answer: Answer, status: int, message: str, *, code: str | None = None,
                     headers: dict[str, str] | None = None) -> None:
        error: Any = {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": code}}
        data = json.dumps([error] if self.profile.list_errors else error).encode()
        await answer.whole(status, data, headers=headers)


@contextlib.asynccontextmanager
async def provider(name: str, answer: Callable[[dict[str, Any]], str], *, faults: list[Any] | None = None,
                   **changes: Any) -> AsyncIterator[Provider]:
    """A running provider of a profile."""
    from dataclasses import replace

    made = Provider(profile=replace(PROFILES[name], **changes), answer=answer, faults=list(faults or []))
    server = await serve(made.handle)
    made.port = port_of(server)
    try:
        yield made
    finally:
        server.close()


def _not_strict(schema: Any) -> str:
    """What OpenAI's strict mode would refuse."""
    if isinstance(schema, list):
        return next(filter(None, map(_not_strict, schema)), "")
    if not isinstance(schema, dict):
        return ""
    if schema.get("type") == "object":
        if schema.get("additionalProperties") is not False:
            return "'additionalProperties' is required to be supplied and to be false"
        if sorted(schema.get("required", [])) != sorted(schema.get("properties", {})):
            return "'required' must include every key in properties"
    banned = {"default", "pattern", "minLength", "maxLength", "format", "minimum", "maximum"} & set(schema)
    if banned and "type" in schema:
        return f"{banned.pop()} is not permitted"
    return next(filter(None, (_not_strict(v) for v in schema.values())), "")
