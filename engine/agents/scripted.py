"""Replays given answers: a recorded session, or a test's script."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from contracts.errors import AgentError
from engine.agents import Situation
from engine.records import Candidate, Evaluation, Plan, Score, Strategy
from engine.trajectory import Trajectory, Usage, candidate_id


class ScriptedAgent:
    """Answers round n with the n-th plan, strategy and list of candidates.

    Args:
        rounds: For every round its plan, its strategy and its candidates in order.
        repairs: Candidate id to the candidate that mends it.
    """

    def __init__(
        self,
        rounds: Sequence[tuple[Plan, Strategy, Sequence[Candidate]]],
        repairs: dict[str, Candidate] | None = None,
    ) -> None:
        self._rounds = tuple(rounds)
        self._repairs = dict(repairs or {})

    @classmethod
    def replay(cls, trajectory: Trajectory) -> ScriptedAgent:
        """The agent that did what a stored run did."""
        strategies = [*trajectory.strategies, *[Strategy(steps=(), constraints=())] * len(trajectory.plans)]
        return cls([
            (plan, strategy, [c for c in trajectory.candidates if c.round == plan.round])
            for plan, strategy in zip(trajectory.plans, strategies, strict=False)
        ])

    @classmethod
    def of_sources(cls, contract_id: str, rounds: Sequence[Sequence[str]], *, space: str = "cuda_libs_torch",
                   direction: str = "M") -> ScriptedAgent:
        """An agent that proposes plain source texts, round by round."""
        return cls([
            (
                Plan(round=number, space=space, space_reason="scripted",  # type: ignore[arg-type]
                     scores={direction: Score(value=10.0, reason="scripted")}, direction=direction, reason="scripted",
                     author="scripted"),
                Strategy(steps=(), constraints=(), author="scripted"),
                [Candidate(id=candidate_id(contract_id, text), source=text, space=space,  # type: ignore[arg-type]
                           direction=direction, round=number, author="scripted") for text in texts],
            )
            for number, texts in enumerate(rounds, 1)
        ])

    @property
    def name(self) -> str:
        """Stable name."""
        return "scripted"

    @property
    def usage(self) -> Usage:
        """Nothing is spent."""
        return Usage()

    def take_notes(self, situation: Situation | None = None) -> tuple[str, ...]:  # noqa: ARG002
        """Nothing comes up beside what plans say."""
        return ()

    async def decide_space_and_scores(self, situation: Situation) -> Plan:
        """The script's plan."""
        return self._at(situation)[0]

    async def plan_strategy(self, situation: Situation, plan: Plan, count: int) -> Strategy:  # noqa: ARG002
        """The script's strategy."""
        return self._at(situation)[1]

    async def propose(
        self, situation: Situation, plan: Plan, strategy: Strategy, count: int  # noqa: ARG002
    ) -> AsyncIterator[Candidate]:
        """The script's candidates, without those made before."""
        made = {c.id for c in situation.trajectory.candidates}
        for candidate in [c for c in self._at(situation)[2] if c.id not in made][:count]:
            yield candidate

    async def repair(
        self, situation: Situation, candidate: Candidate, evaluation: Evaluation  # noqa: ARG002
    ) -> Candidate | None:
        """The script's repair, if it has one."""
        return self._repairs.get(candidate.id)

    def _at(self, situation: Situation) -> tuple[Plan, Strategy, Sequence[Candidate]]:
        if situation.round > len(self._rounds):
            raise AgentError(f"the script has {len(self._rounds)} rounds, none for round {situation.round}",
                             hint="ask for fewer rounds")
        return self._rounds[situation.round - 1]
