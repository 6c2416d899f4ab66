"""Where ideas come from: one Protocol for the built-in expert, language models and replays.

The loop can not tell agents apart and must not try. An agent decides the space and scores the
directions (SSDA), plans a strategy (SPA) and writes candidates (OA), as in the paper.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

from contracts.contract import Contract
from engine.planning.catalog import Catalog
from engine.records import Candidate, Device, Evaluation, Plan, Strategy, WorkloadProfile
from engine.trajectory import Trajectory, Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """Everything an agent may know when it is asked.

    Attributes:
        contract: What to optimise.
        reduced: The same at small sizes, for runs without a GPU; None elsewhere.
        device: The GPU, or the target without one.
        workload: Floors, roofs and shares.
        catalog: Spaces, directions, rubric, notes.
        trajectory: All that was tried, with the evidence. Read only.
        round: The round being planned, counted from 1.
        locked: The widest space the user allows, or None.
        parents: How many of the strongest candidates to build on.
        reference: Text of groundtruth.py, or empty.
        fixed_space: `locked` is the only space, not the widest.
    """

    contract: Contract
    reduced: Contract | None
    device: Device
    workload: WorkloadProfile
    catalog: Catalog
    trajectory: Trajectory
    round: int
    locked: str | None = None
    parents: int = 2
    reference: str = ""
    fixed_space: bool = False

    @property
    def spaces(self) -> tuple[str, ...]:
        """The spaces that may be chosen, widest first."""
        if self.locked is None:
            return tuple(sorted(self.catalog.spaces, key=lambda name: -len(self.catalog.allowed(name))))
        return (self.locked,) if self.fixed_space else self.catalog.allowed(self.locked)


class Agent(Protocol):
    """Anything that can plan and write kernels.

    Implementations keep no search state: the same situation may be asked about again after a restart.
    They raise `AgentError` when they cannot answer and let cancellation pass through. All methods are
    called from the event loop, so they must not block it.
    """

    @property
    def name(self) -> str:
        """Stable name, written into every record."""
        ...

    @property
    def usage(self) -> Usage:
        """What was spent since the agent was made; zeros where nothing is counted."""
        ...

    def take_notes(self, situation: Situation | None = None) -> tuple[str, ...]:
        """Sentences for the user that came up since it was last asked; asked once before the first plan too."""
        ...

    async def decide_space_and_scores(self, situation: Situation) -> Plan:
        """Choose the space, score every direction and choose one."""
        ...

    async def plan_strategy(self, situation: Situation, plan: Plan, count: int) -> Strategy:
        """Turn the plan into steps and constraints for `count` candidates."""
        ...

    def propose(self, situation: Situation, plan: Plan, strategy: Strategy, count: int) -> AsyncIterator[Candidate]:
        """Write at most `count` candidates, each as soon as it is ready, none that was made before."""
        ...

    async def repair(self, situation: Situation, candidate: Candidate, evaluation: Evaluation) -> Candidate | None:
        """Mend a candidate that failed to build or to be right, or None to leave it."""
        ...
