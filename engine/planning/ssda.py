"""The search-space decision agent (paper: SSDA): first the space, then a score for every direction.

Pure: facts in, a `Plan` out. Knows no space and no direction by name; both are rows of the catalog.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from engine.planning import bottleneck as memory
from engine.planning import rubric
from engine.planning.bottleneck import Lesson
from engine.planning.catalog import Catalog
from engine.planning.conditions import Fact, Facts
from engine.records import Plan, Score


def score_spaces(
    catalog: Catalog, facts: Facts, results: Mapping[str, Mapping[str, Fact]], *, locked: str | None = None
) -> dict[str, Score]:
    """Score every admissible space, best first; among equals the wider space is first, it is the safer one.

    Args:
        catalog: Rows.
        facts: Facts of task and evidence.
        results: For every space its `space.*` facts.
        locked: The space the user allows at most, or None.
    """
    names = catalog.allowed(locked) if locked else tuple(catalog.spaces)
    scores = {
        name: rubric.score(name, catalog.space_rubric, {**facts, **results.get(name, {})},
                           nothing="no row of the rubric speaks for it")
        for name in names
    }
    width = {name: len(catalog.allowed(name)) for name in names}
    return dict(sorted(scores.items(), key=lambda item: (-item[1].value, -width[item[0]], item[0])))


def score_directions(
    catalog: Catalog, facts: Facts, *, bottleneck: str, learnt: Sequence[Lesson], moves: Mapping[str, int] | None
) -> dict[str, Score]:
    """Score every direction, in the catalog's order.

    Args:
        catalog: Rows.
        facts: Facts of task and evidence.
        bottleneck: What limits now, space-independent.
        learnt: Lessons of all spaces.
        moves: Untried choices per direction, or None where the agent does not count them.
    """
    scores: dict[str, Score] = {}
    for code, row in catalog.directions.items():
        own = dict(memory.direction_facts(code, bottleneck, learnt))
        own["direction.moves"] = None if moves is None else moves.get(code, 0)
        scores[code] = rubric.score(code, catalog.direction_rubric, {**facts, **own},
                                    nothing=f"nothing points to {row.addresses}")
    return scores


def decide(
    catalog: Catalog,
    facts: Facts,
    *,
    round: int,  # noqa: A002 - the record's own name.
    spaces: Mapping[str, Score],
    bottleneck: str,
    learnt: Sequence[Lesson] = (),
    moves: Mapping[str, Mapping[str, int]] | None = None,
) -> Plan:
    """The round's plan.

    Args:
        catalog: Rows.
        facts: Facts of task and evidence.
        round: Counted from 1.
        spaces: `score_spaces`' answer, best first.
        bottleneck: What limits now.
        learnt: Lessons of all spaces.
        moves: Per space, untried choices per direction.
    """
    space, chosen = next(iter(spaces.items()))
    others = ", ".join(f"{name} {score.value:g}" for name, score in spaces.items() if name != space)
    scores = score_directions(catalog, facts, bottleneck=bottleneck, learnt=learnt,
                              moves=None if moves is None else moves.get(space, {}))
    direction = max(scores, key=lambda code: scores[code].value)
    return Plan(
        round=round,
        space=space,  # type: ignore[arg-type]  # Spaces are rows of data.
        space_reason=f"{chosen.reason} (score {chosen.value:g}{'; ' + others if others else ''})",
        scores=scores,
        direction=direction,
        reason=scores[direction].reason,
        transfer=memory.transfer(bottleneck, space, learnt),
    )
