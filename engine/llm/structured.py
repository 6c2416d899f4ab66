"""Checked JSON from a model: the strongest form the endpoint takes, checked here in any case, mended once."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from engine.llm.capability import LADDER
from engine.llm.client import Client, Question, longer
from engine.llm.errors import ModelError
from engine.llm.jsontext import json_values
from engine.llm.shapes import WrongShapeError

T = TypeVar("T")
SHOWN = 4000


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
