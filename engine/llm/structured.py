"""Checked JSON from a model: the strongest form the endpoint takes, checked here in any case, mended once."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from engine.llm.capability import LADDER
from engine.llm.client import Client, Question, longer
from engine.llm.errors import ModelError
from engine.llm.jsontext import json_values
from engine.llm.redact import plain

T = TypeVar("T")
SHOWN = 4000


class WrongShapeError(ValueError):
    """An answer does not have the shape that was asked for; the message is told to the model."""


async def ask_json(client: Client, question: Question, read: Callable[[Any], T], *, deadline_s: float | None = None,
                   repairs: int = 1, most_tokens: int = 0,
                   heard: Callable[[Question, str, str], None] = lambda _question, _answer, _problem: None) -> T:
    """Ask for JSON and read it.

    Args:
        client: Whom.
        question: With a schema.
        read: Makes the result of the parsed JSON, or raises `WrongShapeError`.
        deadline_s: Seconds left.
        most_tokens: An answer that was cut gets at most so many; 0 for no limit.
        repairs: How often a wrong answer is sent back with what is wrong.
        heard: Told of every question, its answer, and what is wrong with that, if anything.

    Raises:
        ModelError: No answer, or none of the right shape.
    """
    question = _with_schema_in_words(question)
    empty, lengthened = 0, False
    while True:
        try:
            text = (await client.ask(question, deadline_s=deadline_s)).text
        except ModelError as error:
            limits = [most for most in ((await client.capability()).most_tokens, most_tokens) if most]
            room = min(limits, default=2 * question.answer_tokens) > question.answer_tokens
            if error.kind == "truncated" and room and not lengthened:
                # Some models think before they answer. Never the same request again: it would be cut again.
                question, lengthened = longer(question, min(limits, default=0)), True
                continue
            # Grammar and thinking clash on some servers, and all that arrives is blank: ask in a weaker form.
            capability = await client.capability()
            weaker = capability.weaker()
            if error.kind == "empty" and weaker and not capability.proven and empty < len(LADDER):
                empty += 1
                await client.remember(weaker)
                continue
            raise
        why = "it holds no JSON object"
        for value in json_values(text):
            try:
                result = read(value)
            except WrongShapeError as error:
                why = str(error)
                continue
            capability = await client.capability()
            await client.remember(replace(capability, proven=True))
            heard(question, text, "")
            return result
        heard(question, text, why)
        if repairs <= 0:
            raise ModelError("malformed", f"{client.endpoint.model} gave no usable {question.name}: {why}",
                             hint="another model may keep to the form")
        repairs -= 1
        again = (f"That answer cannot be used: {why}. Send the corrected JSON object only, without prose and "
                 "without a code fence.")
        question = replace(question, messages=(*question.messages, ("assistant", text[:SHOWN]), ("user", again)))


def _with_schema_in_words(question: Question) -> Question:
    """The schema stands in the prompt in every mode: weaker modes need it, and some providers the word JSON."""
    role, text = question.messages[-1]
    schema = json.dumps(question.schema, separators=(",", ":"))
    asked = f"{text}\n\nReply with one JSON object only, no prose and no code fence. Its JSON Schema:\n{schema}\n"
    return replace(question, messages=(*question.messages[:-1], (role, asked)))


def object_schema(properties: Mapping[str, Any]) -> dict[str, Any]:
    """A closed object all of whose properties are required, as strict modes want it."""
    return {"type": "object", "properties": dict(properties), "required": list(properties),
            "additionalProperties": False}


def mapping(value: Any, keys: tuple[str, ...], what: str) -> Mapping[str, Any]:
    """`value` as an object that has all `keys`; further ones are ignored.

    Raises:
        WrongShapeError: It has not.
    """
    if not isinstance(value, Mapping):
        raise WrongShapeError(f"{what} must be an object, not {type(value).__name__}")
    missing = [key for key in keys if key not in value]
    if missing:
        raise WrongShapeError(f"{what} lacks {', '.join(map(repr, missing))}")
    return value


def sentence(value: Any, what: str, *, longest: int = 600) -> str:
    """`value` as a non-empty text on one line.

    Raises:
        WrongShapeError: It is none.
    """
    if not isinstance(value, str) or not value.strip():
        raise WrongShapeError(f"{what} must be a text that is not empty")
    return plain(value)[:longest]


def sentences(value: Any, what: str, *, most: int = 8, least: int = 0) -> tuple[str, ...]:
    """`value` as a list of texts, at most `most` of them.

    Raises:
        WrongShapeError: It is none.
    """
    if not isinstance(value, list) or len(value) < least:
        raise WrongShapeError(f"{what} must be a list of {least or 'no'} or more texts")
    return tuple(sentence(item, f"an item of {what}") for item in value[:most])


def number(value: Any, what: str, low: float, high: float) -> float:
    """`value` as a number from `low` to `high`.

    Raises:
        WrongShapeError: It is none.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise WrongShapeError(f"{what} must be a number from {low:g} to {high:g}, not {str(value)[:40]!r}")
    return float(value)
