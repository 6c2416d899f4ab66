"""Shapes that an answer must have. No client is needed to check one, so nothing here imports the SDK."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.llm.redact import plain


class WrongShapeError(ValueError):
    """An answer does not have the shape that was asked for; the message is told to the model."""


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
