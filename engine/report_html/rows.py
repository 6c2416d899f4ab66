"""What tables and plots are drawn from: one row a candidate in the order of making, and the best after each."""

from __future__ import annotations

from dataclasses import dataclass

from engine import report
from engine.records import Candidate, Evaluation, Timing
from engine.trajectory import Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One candidate.

    Attributes:
        number: Its place among those that count against the budget, from 1; 0 for the user's own kernel.
        state: How far it came, in a word or two.
        why: Why it is not accepted; empty where it is, or where it was not judged.
        is_best: It is the one that is offered.
    """

    number: int
    candidate: Candidate
    evaluation: Evaluation | None
    accepted: bool
    state: str
    why: str
    is_best: bool

    @property
    def timing(self) -> Timing | None:
        """Its measured times, where it was accepted with some."""
        return self.evaluation.timing if self.accepted and self.evaluation else None

    @property
    def glance(self) -> Timing | None:
        """The brief time of one that was left as slower: shown, and neither drawn nor compared."""
        return self.evaluation.timing if self.evaluation and self.evaluation.slower else None

    @property
    def label(self) -> str:
        """A few characters that name it in a plot."""
        return str(self.number) if self.number else "yours"


def rows_of(trajectory: Trajectory) -> list[Row]:
    """All candidates, in the order of making."""
    best, found, number = trajectory.best, [], 0
    for candidate in trajectory.candidates:
        evaluation = trajectory.evaluations.get(candidate.id)
        number += candidate.round > 0
        accepted = trajectory.accepted(candidate.id)
        found.append(Row(
            number=number if candidate.round > 0 else 0, candidate=candidate, evaluation=evaluation,
            accepted=accepted, state=report.state(trajectory, evaluation), why=_why(trajectory, evaluation, accepted),
            is_best=best is not None and best.id == candidate.id))
    return found


def best_after(rows: list[Row]) -> list[tuple[int, float | None]]:
    """The largest measured speed-up among the first B candidates, for each B; None where none was accepted yet."""
    found: list[tuple[int, float | None]] = []
    best: float | None = None
    for row in rows:
        if row.timing is not None and row.number:
            best = max(best or 0.0, row.timing.speedup)
        if row.number:
            found.append((row.number, best))
    return found


def _why(trajectory: Trajectory, evaluation: Evaluation | None, accepted: bool) -> str:
    if evaluation is None or accepted:
        return ""
    return evaluation.failure.reason if evaluation.failure else report.why_not(trajectory, evaluation)
