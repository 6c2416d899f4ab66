"""The strategy planning agent (paper: SPA): a direction in a space becomes steps, constraints and moves.

Steps and constraints come from the expert notes that fit the direction, the bottleneck and the operators,
else from the direction's own row. Moves are changes of recipe over code generation's tunables.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from engine.codegen import Tunable
from engine.planning.catalog import Catalog, Note
from engine.planning.conditions import Facts
from engine.records import Plan, Strategy

Choice = int | str | bool
MAX_STEPS = 5
# So many tunables of one kind are moved together first.
TOGETHER = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """A recipe that moves start from.

    Attributes:
        space: Its space.
        choices: Its choices that differ from the default.
        tunables: What its program could have chosen otherwise.
        candidate: Id of the candidate it made, or empty.
    """

    space: str
    choices: Mapping[str, Choice] = field(default_factory=dict)
    tunables: tuple[Tunable, ...] = ()
    candidate: str = ""


def fitting_notes(catalog: Catalog, direction: str, bottleneck: str, facts: Facts) -> tuple[Note, ...]:
    """Notes of the direction, those about this bottleneck and these operators first, unfitting ones left out."""
    families = facts.get("families")
    families = families if isinstance(families, frozenset) else frozenset()
    bound = facts.get("bound")

    def fit(note: Note) -> int:
        by_cause = 2 if bottleneck in note.bottlenecks else 1 if bound in note.bottlenecks else 0
        if (note.bottlenecks and not by_cause) or (note.families and not note.families & families):
            return -1
        return by_cause + bool(note.families)

    notes = [note for note in catalog.notes if note.direction == direction and fit(note) >= 0]
    return tuple(sorted(notes, key=lambda note: -fit(note)))


def plan_strategy(
    catalog: Catalog, plan: Plan, facts: Facts, *, bottleneck: str, bases: Sequence[Base] = (),
    tried: Iterable[tuple[str, Mapping[str, Choice]]] = (), wanted: int = 6,
) -> Strategy:
    """Turn a plan into a strategy.

    Args:
        catalog: Rows and notes.
        plan: The decision.
        facts: Facts of task and evidence.
        bottleneck: What limits now.
        bases: Recipes to start from, best first.
        tried: Space and choices of recipes that need not be made again.
        wanted: How many moves at most.
    """
    row = catalog.directions[plan.direction]
    notes = fitting_notes(catalog, plan.direction, bottleneck, facts)
    steps = [step for note in notes for step in note.do][:MAX_STEPS] or list(row.steps)
    constraints = [*row.constraints, *catalog.spaces[plan.space].constraints,
                   *[avoid for note in notes[:2] for avoid in note.avoid]]
    order = [plan.direction, *sorted((d for d in plan.scores if d != plan.direction),
                                     key=lambda code: -plan.scores[code].value)]
    moves = tuple(_take(_moves(order, bases), {_key(space, choices) for space, choices in tried}, wanted))
    return Strategy(steps=tuple(dict.fromkeys(steps)), constraints=tuple(dict.fromkeys(constraints)), moves=moves)


def untried(bases: Sequence[Base], tried: Iterable[tuple[str, Mapping[str, Choice]]]) -> dict[str, int]:
    """Untried single moves per direction, over all bases."""
    seen = {_key(space, choices) for space, choices in tried}
    counts: dict[str, int] = {}
    for base in bases:
        for tunable in base.tunables:
            for _, choices in _variants(base, tunable):
                if _key(base.space, choices) not in seen:
                    counts[tunable.direction] = counts.get(tunable.direction, 0) + 1
    return counts


def _moves(order: Sequence[str], bases: Sequence[Base]) -> Iterator[dict[str, object]]:
    """Moves in the order they should be tried.

    First what helped apart is joined; then the chosen direction over all parents, then the next direction;
    when single steps are used up, pairs of them from the best parent.
    """
    yield from _joined(bases)
    for direction in order:
        queues = [list(_of_direction(base, direction)) for base in bases]
        # The best parent gets two turns for one of every other.
        while any(queues):
            for position, queue in enumerate(queues):
                for _ in range(2 if position == 0 else 1):
                    if queue:
                        yield queue.pop(0)
    if bases:
        yield from _pairs(order, bases[0])


def _joined(bases: Sequence[Base]) -> Iterator[dict[str, object]]:
    """The best parent's choices with those that the other parents of its space made beside them."""
    for other in bases[1:]:
        best = bases[0]
        choices = {**other.choices, **best.choices}
        if other.space == best.space and other.choices and choices != best.choices and choices != other.choices:
            codes = {t.key: t.direction for t in best.tunables}
            added = [key for key in other.choices if key not in best.choices]
            yield {"parent": best.candidate, "space": best.space, "choices": choices,
                   "direction": codes.get(added[0], ""), "title": "also " + ", ".join(
                       f"{key} = {other.choices[key]}" for key in added)}


def _pairs(order: Sequence[str], base: Base) -> Iterator[dict[str, object]]:
    singles = [move for direction in order for move in _of_direction(base, direction)]
    for first, second in itertools.combinations(singles, 2):
        one, two = _changes(base, first), _changes(base, second)
        if one.keys() & two.keys():
            continue  # Two values of one tunable.
        choices = {k: v for k, v in {**base.choices, **one, **two}.items() if v is not None}
        yield {**first, "choices": choices, "title": f"{first['title']}, {second['title']}"}


def _changes(base: Base, move: Mapping[str, object]) -> dict[str, Choice | None]:
    """What a move sets; None where it goes back to a default."""
    choices = move["choices"]
    assert isinstance(choices, Mapping)
    keys = {*choices, *base.choices}
    return {k: choices.get(k) for k in keys if choices.get(k) != base.choices.get(k)}


def _of_direction(base: Base, direction: str) -> Iterator[dict[str, object]]:
    tunables = sorted((t for t in base.tunables if t.direction == direction), key=lambda t: -t.weight)
    yield from _together(base, tunables, direction)
    lists = [list(_variants(base, tunable)) for tunable in tunables]
    # One value of every tunable before a second value of any: breadth finds the tunable that matters.
    for rank in range(max(map(len, lists), default=0)):
        for tunable, variants in zip(tunables, lists, strict=True):
            if rank < len(variants):
                value, choices = variants[rank]
                yield {"parent": base.candidate, "space": base.space, "choices": choices, "direction": direction,
                       "title": f"{tunable.key} = {value}"}


def _together(base: Base, tunables: Sequence[Tunable], direction: str) -> Iterator[dict[str, object]]:
    """The same choice for many operators of a model at once: one of fifty layers alone shows nothing."""
    groups: dict[str, list[Tunable]] = {}
    for tunable in tunables:
        groups.setdefault(tunable.key.rpartition(".")[2], []).append(tunable)
    for name, members in groups.items():
        if len(members) < TOGETHER:
            continue
        for value in dict.fromkeys(value for tunable in members for value in tunable.values):
            keys = [t.key for t in members if value in t.values]
            defaults = {t.key for t in members if t.values[0] == value}
            choices = {k: v for k, v in base.choices.items() if k not in keys}
            choices |= {key: value for key in keys if key not in defaults}
            if choices != dict(base.choices):
                yield {"parent": base.candidate, "space": base.space, "choices": choices, "direction": direction,
                       "title": f"every {name} = {value}"}


def _variants(base: Base, tunable: Tunable) -> Iterator[tuple[Choice, dict[str, Choice]]]:
    """Other values of one tunable, nearest to the current one first."""
    current = base.choices.get(tunable.key, tunable.values[0])
    place = tunable.values.index(current) if current in tunable.values else 0
    others = sorted((i for i in range(len(tunable.values)) if i != place), key=lambda i: (abs(i - place), i))
    for index in others:
        choices = {key: value for key, value in base.choices.items() if key != tunable.key}
        if index != 0:
            choices[tunable.key] = tunable.values[index]
        yield tunable.values[index], choices


def _take(moves: Iterator[dict[str, object]], seen: set[object], wanted: int) -> Iterator[dict[str, object]]:
    for move in moves:
        if wanted <= 0:
            return
        key = _key(str(move["space"]), move["choices"])  # type: ignore[arg-type]
        if key not in seen:
            seen.add(key)
            wanted -= 1
            yield move


def _key(space: str, choices: Mapping[str, Choice]) -> tuple[str, frozenset[tuple[str, Choice]]]:
    return space, frozenset(choices.items())
