"""Proposes one given source, or none: verifies or profiles what is there without a search."""

from __future__ import annotations

from collections.abc import AsyncIterator

from engine.agents import Situation
from engine.records import Candidate, Evaluation, Plan, Score, Strategy
from engine.trajectory import Usage, candidate_id


class GivenAgent:
    """An agent with one idea.

    Args:
        source: The text to judge; None proposes nothing, so that only what is there already is looked at.
        space: The space it claims.
    """

    def __init__(self, source: str | None = None, space: str = "cuda_libs_torch") -> None:
        self._source, self._space = source, space

    @property
    def name(self) -> str:
        """Stable name."""
        return "given"

    @property
    def usage(self) -> Usage:
        """Nothing is spent."""
        return Usage()

    def take_notes(self, situation: Situation | None = None) -> tuple[str, ...]:  # noqa: ARG002
        """Nothing comes up beside what plans say."""
        return ()

    async def decide_space_and_scores(self, situation: Situation) -> Plan:
        """The space of the given source; directions do not matter."""
        scores = {code: Score(value=0.0, reason="nothing is changed") for code in situation.catalog.directions}
        return Plan(
            round=situation.round, space=self._space, space_reason="the given kernel's space",  # type: ignore[arg-type]
            scores=scores, direction="", reason="the given kernel is judged again", author=self.name,
        )

    async def plan_strategy(self, situation: Situation, plan: Plan, count: int) -> Strategy:  # noqa: ARG002
        """Judge it as it is."""
        return Strategy(steps=("judge the given kernel as it is",), constraints=(), author=self.name)

    async def propose(
        self, situation: Situation, plan: Plan, strategy: Strategy, count: int  # noqa: ARG002
    ) -> AsyncIterator[Candidate]:
        """The given source, once."""
        if self._source is None or any(c.author == self.name for c in situation.trajectory.candidates):
            return
        yield Candidate(
            id=candidate_id(situation.contract.id, self._source), source=self._source, space=plan.space,
            round=situation.round, author=self.name, title="the kernel given",
        )

    async def repair(
        self, situation: Situation, candidate: Candidate, evaluation: Evaluation  # noqa: ARG002
    ) -> Candidate | None:
        """Nothing is mended."""
        return None
