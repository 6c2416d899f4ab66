"""The rows of the fixed rubric that apply to a situation, as text for a model."""

from __future__ import annotations

from collections.abc import Sequence

from engine.agents import Situation
from engine.agents.expert import ExpertAgent, situation_bottleneck, situation_facts
from engine.planning import bottleneck as memory
from engine.planning import conditions
from engine.planning.bottleneck import Lesson
from engine.planning.catalog import RubricRow
from engine.planning.conditions import Fact


def lessons_of(situation: Situation) -> tuple[Lesson, ...]:
    """What every space's candidates taught so far."""
    trajectory = situation.trajectory
    return memory.lessons(trajectory.candidates, trajectory.evaluations, situation.workload,
                          situation.contract.precision)


def applying_rows(expert: ExpertAgent, situation: Situation) -> str:
    """One line a row: points, space or direction, reason with its facts. Asks code generation, so it takes a moment."""
    facts = situation_facts(situation)
    limit, learnt = situation_bottleneck(situation), lessons_of(situation)
    lines: list[str] = []
    for name in situation.spaces:
        lines += _rows(f"space {name}", name, situation.catalog.space_rubric,
                       {**facts, **expert.space_facts(situation, name)})
    for code in situation.catalog.directions:
        own = {**facts, **memory.direction_facts(code, limit, learnt), "direction.moves": None}
        lines += _rows(f"direction {code}", code, situation.catalog.direction_rubric, own)
    return "\n".join(lines) or "none applies"


def _rows(what: str, name: str, rubric: Sequence[RubricRow], facts: dict[str, Fact]) -> list[str]:
    return [f"- {row.points:+g} {what}: {conditions.fill(row.reason, facts)}" for row in rubric
            if row.name in (name, "*") and conditions.holds(row.when, facts)]
