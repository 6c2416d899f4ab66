"""An OpenAI-compatible endpoint of files: a person, a script or any other model plays the language model.

Every question becomes a file in QUEUE/requests; whoever answers writes a file into QUEUE/answers. See
docs/llm.md. Answers stay, so the same question is answered again without anyone.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import json
import re
import secrets
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from contracts.errors import ConfigError, HieraError
from engine.llm.jsontext import json_values
from engine.llm.tiny_http import Answer, Request, port_of, serve

# Not part of a question's identity.
VOLATILE = frozenset({"stream", "stream_options", "user", "timeout"})
FOLDERS = ("requests", "answers", "rejected")
POLL_S = 0.2
PIECE = 200


class Bridge:
    """The queue of one folder.

    Args:
        root: The folder; made if it is not there.
        heartbeat_s: Waiting connections are kept warm this often.
        longest_s: A question without an answer for so long fails with status 504.

    Raises:
        ConfigError: The folder cannot be written.
    """

    def __init__(self, root: Path, *, heartbeat_s: float = 5.0, longest_s: float = 86400.0) -> None:
        self._root, self._heartbeat_s, self._longest_s = root, heartbeat_s, longest_s
        self._waiting: dict[str, asyncio.Task[dict[str, Any]]] = {}
        try:
            for name in FOLDERS:
                (root / name).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"the queue cannot be made: {error.strerror}", hint="choose another folder",
                              file=root) from None

    async def handle(self, request: Request, answer: Answer) -> None:
        """Serve one HTTP request. Headers are looked at only to keep browsers out; no key is read."""
        if "origin" in request.headers:
            await _error(answer, 403, "web pages are not served")
        elif request.method == "GET" and request.path.endswith("/models"):
            row = {"id": "bridge", "object": "model", "created": 0, "owned_by": "bridge"}
            await answer.whole(200, json.dumps({"object": "list", "data": [row]}).encode())
        elif request.method == "POST" and request.path.endswith("/chat/completions"):
            try:
                body = json.loads(request.body)
            except ValueError:
                body = None
            if not isinstance(body, dict) or not isinstance(body.get("messages"), list):
                await _error(answer, 400, "the body must be an object with a list of messages")
            elif (body.get("n") or 1) != 1:
                await _error(answer, 400, "n must be 1")
            else:
                await self._chat(body, answer)
        else:
            await _error(answer, 404, f"there is no {request.method} {request.path} here")

    async def _chat(self, body: dict[str, Any], answer: Answer) -> None:
        key, stream = question_key(body), bool(body.get("stream"))
        task = self._task(key, body)
        while not (await asyncio.wait({task}, timeout=self._heartbeat_s))[0]:
            if not answer.started:  # From here on the status is 200.
                await answer.start("text/event-stream" if stream else "application/json")
            # A comment of the stream, or white space before the JSON.
            await answer.chunk(b": waiting for an answer file\n\n" if stream else b"\n")
        given = task.result()
        if error := given.get("error"):
            await self._fail(key, error, stream, answer)
        elif stream:
            if not answer.started:
                await answer.start("text/event-stream")
            for event in _events(key, body, given):
                await answer.chunk(event)
            await answer.end()
        else:
            data = json.dumps(_completion(key, body, given)).encode()
            if answer.started:
                await answer.chunk(data)
                await answer.end()
            else:
                await answer.whole(200, data)

    async def _fail(self, key: str, error: Mapping[str, Any], stream: bool, answer: Answer) -> None:
        """An error is delivered once; the question can be asked again."""
        (self._root / "answers" / f"{key}.json").unlink(missing_ok=True)
        message, status = str(error.get("message", "an error")), int(error.get("status", 500))
        if not answer.started:
            await _error(answer, status, message, error.get("retry_after"))
        elif stream:
            await answer.chunk(_event({"error": {"message": message, "type": "bridge", "code": status}}))
            await answer.end()
        else:
            answer.abort()

    def _task(self, key: str, body: dict[str, Any]) -> asyncio.Task[dict[str, Any]]:
        """One wait a question: retries join it, so a late answer reaches them."""
        task = self._waiting.get(key)
        if task is None:
            task = self._waiting[key] = asyncio.ensure_future(self._wait(key, body))
            task.add_done_callback(lambda _: self._waiting.pop(key, None))
        return task

    async def _wait(self, key: str, body: dict[str, Any]) -> dict[str, Any]:
        file = self._root / "requests" / f"{key}.json"
        readable = file.with_suffix(".md")
        given = self._given(key, body)
        if given is None:
            _write(file, json.dumps({"key": key, "received": time.time(), "body": body}, indent=1, ensure_ascii=False))
            _write(readable, _page(key, body))
        until = time.monotonic() + self._longest_s
        try:
            while given is None and time.monotonic() < until:
                await asyncio.sleep(POLL_S)
                given = self._given(key, body)
        finally:
            if given is not None:  # What nobody answered stays open, to be answered before the next run.
                file.unlink(missing_ok=True)
                readable.unlink(missing_ok=True)
        return given or {"error": {"status": 504, "message": "nobody wrote an answer file in time"}}

    def _given(self, key: str, body: Mapping[str, Any]) -> dict[str, Any] | None:
        """The answer file's content; one that does not fit is moved away with the reason."""
        for name in (f"{key}.json", f"{key}.txt"):
            path = self._root / "answers" / name
            if not path.exists():
                continue
            try:
                text = path.read_text(encoding="utf-8")
                given = json.loads(text) if name.endswith(".json") else {"content": text}
                _check(given, body)
                return given
            except (OSError, ValueError) as error:
                number = len(list((self._root / "rejected").glob(f"{key}-*")))
                with contextlib.suppress(OSError):
                    _write(self._root / "rejected" / f"{key}-{number}.why", f"{error}\n")
                    path.replace(self._root / "rejected" / f"{key}-{number}{path.suffix}")
        return None


def question_key(body: Mapping[str, Any]) -> str:
    """Name of a question's files: from everything that makes it another question."""
    canonical = json.dumps({k: v for k, v in body.items() if k not in VOLATILE}, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(canonical.encode("utf-8", "replace")).hexdigest()[:24]


def main(arguments: list[str] | None = None) -> int:
    """`python -m engine.llm.bridge` and `hiera llm-bridge`."""
    parser = argparse.ArgumentParser(prog="hiera llm-bridge", description="An OpenAI-compatible endpoint whose "
                                                                          "questions and answers are files.")
    add_arguments(parser)
    try:
        return run(parser.parse_args(arguments))
    except HieraError as error:
        sys.stderr.write(f"hiera llm-bridge: {error}\n")
        return 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The bridge's flags."""
    parser.add_argument("--queue", required=True, metavar="DIR", help="folder of questions and answers")
    parser.add_argument("--port", type=int, default=8100, help="port on this machine (default 8100, 0 for a free one)")
    parser.add_argument("--heartbeat", type=float, default=5.0, metavar="S", help="keep connections warm this often")
    parser.add_argument("--longest", type=float, default=86400.0, metavar="S", help="give up on a question after this")


def run(options: argparse.Namespace) -> int:
    """Serve until interrupted."""

    async def forever() -> None:
        bridge = Bridge(Path(options.queue), heartbeat_s=options.heartbeat, longest_s=options.longest)
        try:
            server = await serve(bridge.handle, options.port)
        except OSError as error:
            raise ConfigError(f"port {options.port} cannot be used: {error.strerror}",
                              hint="give another with --port, or 0 for a free one") from None
        sys.stdout.write(f"listening on http://127.0.0.1:{port_of(server)}/v1, questions in {options.queue}/requests\n")
        sys.stdout.flush()
        async with server:
            await server.serve_forever()

    with contextlib.suppress(KeyboardInterrupt, asyncio.CancelledError):
        asyncio.run(forever())
    return 0


def _check(given: Any, body: Mapping[str, Any]) -> None:
    """Refuse what could not be an answer, as far as that can be told here."""
    if not isinstance(given, dict):
        raise ValueError("an answer file in JSON holds one object")
    if "error" in given:
        if not isinstance(given["error"], dict):
            raise ValueError("`error` must be an object with `status` and `message`")
        return
    if given.get("refusal") or given.get("finish_reason") in ("length", "content_filter"):
        return
    content = given.get("content")
    if not isinstance(content, str) or not content.strip():
        raise ValueError("an answer needs a `content` that is not empty, a `refusal`, or an `error`")
    form = body.get("response_format") or {}
    if form.get("type") in ("json_object", "json_schema"):
        value = next(json_values(content), None)
        if not isinstance(value, dict):
            raise ValueError("this question wants one JSON object")
        required = ((form.get("json_schema") or {}).get("schema") or {}).get("required") or ()
        if missing := [name for name in required if name not in value]:
            raise ValueError(f"the JSON object lacks {', '.join(missing)}")


def _completion(key: str, body: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    message = {"role": "assistant", "content": given.get("content")}
    if given.get("refusal"):
        message["refusal"] = given["refusal"]
    choice = {"index": 0, "message": message, "finish_reason": given.get("finish_reason") or "stop"}
    return {**_base(key, body, "chat.completion"), "choices": [choice], "usage": _usage(body, given)}


def _events(key: str, body: Mapping[str, Any], given: Mapping[str, Any]) -> Iterator[bytes]:
    base = _base(key, body, "chat.completion.chunk")
    first = {"role": "assistant", **({"refusal": given["refusal"]} if given.get("refusal") else {})}
    pieces = re.findall(rf"(?s).{{1,{PIECE}}}", given.get("content") or "")
    for delta in (first, *({"content": piece} for piece in pieces)):
        yield _event({**base, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
    end = {"index": 0, "delta": {}, "finish_reason": given.get("finish_reason") or "stop"}
    yield _event({**base, "choices": [end]})
    if (body.get("stream_options") or {}).get("include_usage"):
        yield _event({**base, "choices": [], "usage": _usage(body, given)})
    yield b"data: [DONE]\n\n"


def _base(key: str, body: Mapping[str, Any], kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{key}", "object": kind, "created": int(time.time()), "model": body.get("model", "bridge")}


def _usage(body: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, int]:
    """The answerer's own count, else one from the lengths."""
    if isinstance(given.get("usage"), dict):
        return dict(given["usage"])
    prompt, answer = len(json.dumps(body["messages"])) // 4, len(given.get("content") or "") // 4
    return {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer}


def _page(key: str, body: Mapping[str, Any]) -> str:
    """The question as a person reads it."""
    form = (body.get("response_format") or {}).get("type", "text")
    head = f"Answer in ../answers/{key}.txt (form: {form}). Write elsewhere first, then move it there.\n"
    parts = [f"\n===== {m.get('role')} =====\n{m.get('content')}\n" for m in body["messages"] if isinstance(m, dict)]
    return head + "".join(parts)


def _event(data: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(data).encode() + b"\n\n"


async def _error(answer: Answer, status: int, message: str, retry_after: object = None) -> None:
    headers = {"Retry-After": str(retry_after)} if retry_after is not None else {}
    body = {"error": {"message": message, "type": "bridge", "param": None, "code": None}}
    await answer.whole(status, json.dumps(body).encode(), headers=headers)


def _write(path: Path, text: str) -> None:
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


if __name__ == "__main__":
    sys.exit(main())
