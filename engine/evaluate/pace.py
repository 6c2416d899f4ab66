"""Which candidates are looked at to the end: a search makes many, most of them right and slower than the best."""

from __future__ import annotations

from dataclasses import dataclass

from engine.records import SLOWER, Candidate, Failure, Timing

# A glance tells a time to a few per cent: what is this many times slower than the best does not catch up.
BEHIND = 1.15


@dataclass(slots=True)
class Pace:
    """The best of one contract's candidates, and which of them came first.

    The first is looked at to the end whatever its speed: it gets what it would get alone. So is what a person wrote,
    who wants to know all about it. One that holds the strict policy as far as is known is compared with the best that
    holds it: what careful arithmetic reaches is reported beside what is accepted.
    """

    first: str = ""
    best: float = 0.0
    strict: float = 0.0

    def enter(self, candidate: Candidate) -> None:
        """A candidate's evaluation begins."""
        self.first = self.first or candidate.id

    def asks(self, candidate: Candidate) -> bool:
        """Is a glance at its time worth while before the rest?"""
        return self.best > 0 and candidate.id != self.first and candidate.author != "user"

    def leaves(self, glance: Timing | None, *, strict: bool = False) -> bool:
        """Is nothing more wanted of a candidate that is this fast? `strict`: it holds that policy so far."""
        return glance is not None and glance.speedup * BEHIND < (self.strict if strict else self.best)

    def took(self, timing: Timing, *, strict: bool = False) -> None:
        """A candidate was accepted with this time."""
        self.best = max(self.best, timing.speedup)
        if strict:
            self.strict = max(self.strict, timing.speedup)

    def failure(self, glance: Timing) -> Failure:
        """Why one was left."""
        return Failure(stage=SLOWER, reason=f"{glance.speedup:.2f}x where the best so far has {self.best:.2f}x: "
                                            "not looked at further")
