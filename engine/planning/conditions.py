"""Conditions of data rows over facts: parsed once, refused when they could never be meant."""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass
from string import Formatter

Fact = float | int | str | bool | frozenset[str] | None
Facts = Mapping[str, Fact]

_COMPARE = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}
_NUMBER = re.compile(r"^(>=|<=|>|<)\s*(-?\d+(?:\.\d+)?)$")


@dataclass(frozen=True, slots=True)
class Condition:
    """One test of one fact. `kind` is `=`, a comparison, `has` or `lacks`."""

    fact: str
    kind: str
    value: float | int | str | bool

    def holds(self, facts: Facts) -> bool:
        """False where the fact is not known: nothing is guessed."""
        actual = facts.get(self.fact)
        if actual is None:
            return False
        if self.kind in _COMPARE:
            return isinstance(actual, (int, float)) and _COMPARE[self.kind](actual, self.value)
        if self.kind == "has":
            return isinstance(actual, frozenset) and self.value in actual
        if self.kind == "lacks":
            return isinstance(actual, frozenset) and self.value not in actual
        return actual == self.value


def parse(fact: str, text: object) -> Condition:
    """Read one condition as it stands in a data file.

    Raises:
        ValueError: It is neither a value, a comparison, `has x` nor `lacks x`; the message says so.
    """
    if isinstance(text, (bool, int, float)):
        return Condition(fact, "=", text)
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"the condition on {fact!r} is {text!r}, not a value, a comparison, 'has x' or 'lacks x'")
    text = text.strip()
    if match := _NUMBER.match(text):
        return Condition(fact, match[1], float(match[2]))
    if text[0] in "<>=":
        raise ValueError(f"the condition {text!r} on {fact!r} is not a comparison with a number such as '>= 0.5'")
    word, _, rest = text.partition(" ")
    if word in ("has", "lacks"):
        if not rest.strip():
            raise ValueError(f"the condition {text!r} on {fact!r} names nothing after {word!r}")
        return Condition(fact, word, rest.strip())
    return Condition(fact, "=", text)


def holds(conditions: tuple[Condition, ...], facts: Facts) -> bool:
    """True when all hold."""
    return all(condition.holds(facts) for condition in conditions)


def fields(template: str) -> tuple[str, ...]:
    """Names of the facts a sentence uses.

    Raises:
        ValueError: Its braces do not match.
    """
    return tuple(name for _, name, _, _ in Formatter().parse(template) if name)


def fill(template: str, facts: Facts) -> str:
    """The sentence with its facts put in."""
    parts: list[str] = []
    for text, name, _, _ in Formatter().parse(template):
        parts.append(text)
        if name:
            parts.append(_word(name, facts.get(name)))
    return "".join(parts)


def _word(name: str, value: Fact) -> str:
    if value is None:
        return "an unknown number of"
    if isinstance(value, float) and (name.startswith("share.") or name in ("library_share", "occupancy")):
        return f"{value:.0%}"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, frozenset):
        return ", ".join(sorted(value))
    if isinstance(value, float):
        return f"{value:.3g}"
    return str(value)
