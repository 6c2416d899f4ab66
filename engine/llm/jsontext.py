"""JSON out of what models write: think blocks, fences around it, prose before it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

_THINK = re.compile(r"\A\s*<(think|thinking|reasoning)>.*?</\1>\s*", re.DOTALL)
_FENCE = re.compile(r"\s*```[\w+-]*[ \t]*\n(.*?)\n?[ \t]*```\s*", re.DOTALL)


def without_thoughts(text: str) -> str:
    """The text after a think block at its beginning; a block that never ends leaves nothing."""
    rest = _THINK.sub("", text, count=1)
    if rest == text:
        head = text.lstrip()
        if head.startswith(("<think>", "<thinking>", "<reasoning>")):
            return ""
        # Some servers swallow the opening tag with the prompt's template.
        opening, tag, after = text.partition("</think>")
        if tag and "{" not in opening and "```" not in opening:
            return after.lstrip()
    return rest


def json_values(text: str) -> Iterator[Any]:
    """What could be meant, best guess first: all of it, without thoughts, inside one fence, the first object."""
    seen: set[str] = set()
    plain = without_thoughts(text)
    guesses = [text, plain]
    if match := _FENCE.fullmatch(plain):
        guesses.append(match[1])
    for guess in guesses:
        if guess not in seen:
            seen.add(guess)
            try:
                yield json.loads(guess)
            except (ValueError, RecursionError):
                continue
    decoder = json.JSONDecoder()
    for match in re.finditer(r"\{", plain):
        try:
            yield decoder.raw_decode(plain, match.start())[0]
        except (ValueError, RecursionError):
            continue
        return
