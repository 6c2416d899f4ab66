"""`hiera llm-check` and `hiera llm-bridge`."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from pathlib import Path
from typing import Any

from contracts.errors import HieraError
from engine.cli import common
from engine.llm import bridge as files
from engine.llm.endpoint import Endpoint, resolve
from engine.llm.shapes import WrongShapeError, mapping, number, object_schema, sentence

CALL_S = 120.0
COULD_NOT = 2


def check(arguments: argparse.Namespace) -> int:
    """One structured question: 0 when the endpoint can be used, 2 when not."""
    common.check_writable(arguments.json)
    endpoint = resolve(common.model_of(arguments, Path.cwd()), os.environ)
    say = sys.stderr if arguments.json == "-" else sys.stdout
    key = f"key from {endpoint.key_variable}" if endpoint.key else "no key is sent"
    print(f"{endpoint} ({endpoint.provider.title}), {key}", file=say, flush=True)

    async def main(_cancel: asyncio.Event) -> dict[str, Any]:
        return await _try(endpoint)

    found = common.run(main, stop_at_once=True)
    common.write_json(arguments.json, {"schema": 1, **found})
    if found["problem"] is None:
        print(f"works: {found['words']}; answered in {found['seconds']:.1f} s with {found['requests']} requests, "
              f"{found['prompt_tokens']} + {found['completion_tokens']} tokens"
              f"{' (our estimate: it reports none)' if found['estimated'] else ''}", file=say)
        return 0
    print(f"hiera: {found['problem']} (to fix: {found['hint']})", file=sys.stderr)
    if found["models"]:
        print("models there: " + ", ".join(found["models"][:20]), file=sys.stderr)
    return COULD_NOT


def bridge(arguments: argparse.Namespace) -> int:
    """Serve the bridge of files until interrupted."""
    return files.run(arguments)


async def _try(endpoint: Endpoint) -> dict[str, Any]:
    from engine.llm.client import Client, Question
    from engine.llm.structured import ask_json

    # Nothing remembered: what the endpoint can do is found out anew, and then remembered.
    client = Client(endpoint, call_s=CALL_S, use_answers=False)
    schema = object_schema({"language": {"type": "string", "enum": ["CUDA C++", "Python"]},
                            "warp": {"type": "integer"}})
    asked = "In which language are NVIDIA's kernels usually written, and how many threads has a warp?"
    question = Question(messages=(("system", "You answer questions about GPU programming."), ("user", asked)),
                        answer_tokens=400, temperature=0.3, schema=schema, name="check")
    begun = time.perf_counter()
    problem = hint = None
    models: tuple[str, ...] = ()
    try:
        await ask_json(client, question, _read)
    except HieraError as error:
        problem, hint = error.problem, error.hint
        if getattr(error, "kind", "") == "model":
            models = await client.models()
    capability = await client.capability()
    usage = client.budget.usage
    await client.aclose()
    return {"model": endpoint.model, "base_url": endpoint.base_url, "provider": endpoint.provider.name,
            "key_variable": endpoint.key_variable or None, "problem": problem, "hint": hint,
            "mode": capability.mode if problem is None else None, "words": capability.words(),
            "streams": capability.streams if problem is None else None,
            "seconds": round(time.perf_counter() - begun, 2), "requests": usage.requests,
            "prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.completion_tokens,
            "estimated": usage.estimated, "models": list(models)}


def _read(value: Any) -> str:
    found = mapping(value, ("language", "warp"), "the answer")
    if isinstance(found["warp"], bool) or not isinstance(found["warp"], int):
        raise WrongShapeError("`warp` must be a whole number")
    number(found["warp"], "`warp`", 1, 1024)
    return sentence(found["language"], "`language`")
