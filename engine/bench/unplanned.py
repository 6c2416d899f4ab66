"""The built-in expert without planning: the ablation of the paper's figure 5 (b).

It writes with the same code generation and from the same parents, but nothing tells it where to look: no
space is preferred, no direction is scored, and moves come in an order that knows nothing of the workload.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace

from engine.agents import Situation
from engine.agents.expert import ExpertAgent
from engine.records import Plan, Score, Strategy

WHY = "no planning: all count the same"


class UnplannedAgent(ExpertAgent):
    """Writes as the expert does and plans nothing."""

    @property
    def name(self) -> str:
        """Stable name."""
        return "expert without planning"

    def _space_scores(self, situation: Situation) -> dict[str, Score]:
        return {name: Score(value=1.0, reason=WHY) for name in situation.spaces}

    def _decide(self, situation: Situation) -> Plan:
        plan = super()._decide(situation)
        # The widest space that can be written: nothing constrains the choice, as in the paper's variant.
        space = next((name for name in situation.spaces if self._bases(situation, name)), plan.space)
        direction = min(plan.scores, key=lambda code: self._draw(situation, f"{situation.round} {code}"))
        return replace(plan, space=space, space_reason="no planning: nothing constrains the space",
                       scores={code: Score(value=5.0, reason=WHY) for code in plan.scores}, direction=direction,
                       reason="drawn, not chosen", transfer=(), author=self.name)

    def _strategy(self, situation: Situation, plan: Plan, count: int) -> Strategy:
        strategy = super()._strategy(situation, plan, 8 * count)
        drawn = sorted(strategy.moves, key=lambda move: self._draw(situation, _key(move)))
        return replace(strategy, steps=(), constraints=(), moves=tuple(drawn[: 4 * count]), author=self.name)

    def _draw(self, situation: Situation, text: str) -> str:
        """A place in a shuffled order: the same in every run of a task, and without regard to what it means."""
        return hashlib.sha256(f"{self._contract_id(situation.contract)} {text}".encode()).hexdigest()


def _key(move: Mapping[str, object]) -> str:
    choices = move["choices"]
    assert isinstance(choices, Mapping)
    return f"{move['space']} {sorted((str(key), str(value)) for key, value in choices.items())}"
