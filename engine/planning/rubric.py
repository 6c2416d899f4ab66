"""Scores by the fixed rubric: points of the rows that apply, and the sentence of the strongest."""

from __future__ import annotations

from collections.abc import Iterable

from engine.planning import conditions
from engine.planning.catalog import RubricRow
from engine.planning.conditions import Facts
from engine.records import Score

LOWEST, HIGHEST = 0.0, 10.0
SENTENCES = 2


def score(name: str, rows: Iterable[RubricRow], facts: Facts, *, nothing: str) -> Score:
    """Score one space or direction.

    Args:
        name: The row name; rows named `*` count too.
        rows: The rubric.
        facts: What is known.
        nothing: The reason when no row applies.
    """
    applying = [row for row in rows if row.name in (name, "*") and conditions.holds(row.when, facts)]
    total = sum(row.points for row in applying)
    # Stable: among equals the earlier row speaks.
    strongest = sorted(applying, key=lambda row: -abs(row.points))[:SENTENCES]
    said = dict.fromkeys(conditions.fill(row.reason, facts) for row in strongest)
    # What another one says more of (`..., and 86% of it ...`) is not said again.
    whole = [text for text in said if not any(other != text and other.startswith(f"{text} ") for other in said)]
    reason = "; ".join(whole) or nothing
    return Score(value=min(HIGHEST, max(LOWEST, total)), reason=reason)
