"""What an endpoint can do: found out by asking, remembered per endpoint and model, never assumed."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

from engine.llm.endpoint import Endpoint

Mode = Literal["json_schema", "json_object", "text"]
LADDER: tuple[Mode, ...] = ("json_schema", "json_object", "text")
DROPPABLE = ("temperature", "stream_options")
_FORMAT = re.compile(r"response_?format|json_schema|json_object|structured|schema|additionalproperties|mime type|"
                     r"grammar", re.IGNORECASE)
_SYSTEM = re.compile(r"system (?:role|message|prompt)|role.{0,20}system|developer instruction", re.IGNORECASE)
_STREAM = re.compile(r"\bstream(?:ing)?\b(?!_options)", re.IGNORECASE)
_LONGEST = re.compile(r"(?:at most|maximum|less than or equal to|<=|\[1, ?)\D{0,40}?(\d{3,7})", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Capability:
    """What was learnt.

    Attributes:
        mode: Strongest form in which JSON can be asked for.
        proven: True once a structured answer in this mode was valid.
        streams: Answers can be streamed.
        token_parameter: Name of the limit of the answer's length.
        most_tokens: Largest limit that is taken; 0 where none is known.
        dropped: Parameters that are refused.
        extra_body: The provider's further fields are taken.
        system: The role `system` is taken.
    """

    mode: Mode = "json_schema"
    proven: bool = False
    streams: bool = True
    token_parameter: str = "max_tokens"
    most_tokens: int = 0
    dropped: tuple[str, ...] = ()
    extra_body: bool = True
    system: bool = True

    @classmethod
    def first_guess(cls, endpoint: Endpoint) -> Capability:
        """Where the search begins: the strongest form."""
        return cls(token_parameter=endpoint.provider.token_parameter)

    def weaker(self) -> Capability | None:
        """The next form of asking for JSON, or None."""
        place = LADDER.index(self.mode) + 1
        return replace(self, mode=LADDER[place], proven=False) if place < len(LADDER) else None

    def to_text(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> Capability | None:
        """From JSON; None where it was written by another version."""
        try:
            data = json.loads(text)
            known = {field.name for field in fields(cls)}
            if not isinstance(data, dict) or set(data) != known or data["mode"] not in LADDER:
                return None
            return cls(**{**data, "dropped": tuple(data["dropped"])})
        except (ValueError, TypeError, KeyError):
            return None

    def words(self) -> str:
        """For people."""
        form = {"json_schema": "JSON by schema", "json_object": "JSON objects", "text": "plain text only"}[self.mode]
        parts = [form, "streams" if self.streams else "does not stream", f"limit called {self.token_parameter}"]
        parts += [f"takes no {name}" for name in self.dropped]
        if not self.system:
            parts.append("takes no system role")
        return ", ".join(parts)


def learn(known: Capability, status: int, message: str, sent: Mapping[str, Any]) -> Capability | None:
    """What a refusal teaches, or None where it teaches nothing about parameters.

    Args:
        known: What was believed.
        status: HTTP status.
        message: The provider's own words, with the parameter it names.
        sent: The parameters of the refused request.
    """
    if status not in (400, 404, 415, 422, 500, 501):
        return None
    if status in (404, 500, 501) and not _FORMAT.search(message):
        return None  # Only servers that answer so to a form they do not know are meant here.
    limit = known.token_parameter
    if limit in sent and re.search(rf"\b{limit}\b", message):
        most = _LONGEST.search(message)
        if most and 0 < int(most[1]) < int(sent[limit]):
            # A whole context has to hold the prompt too.
            return replace(known, most_tokens=int(most[1]) // (3 if "context" in message else 1))
        if re.search(r"unsupported|unrecognized|unknown|not supported|unexpected|not permitted|extra", message, re.I):
            other = "max_tokens" if limit == "max_completion_tokens" else "max_completion_tokens"
            return replace(known, token_parameter=other)
    for name in DROPPABLE:
        if name in sent and name in message:
            return replace(known, dropped=(*known.dropped, name))
    extra = sent.get("extra_body")
    if extra and any(name in message for name in extra):
        return replace(known, extra_body=False)
    if "response_format" in sent and _FORMAT.search(message):
        return known.weaker()
    if known.system and _SYSTEM.search(message):
        return replace(known, system=False)
    if sent.get("stream") and _STREAM.search(message):
        return replace(known, streams=False)
    return None
