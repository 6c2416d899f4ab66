"""Reads the planning data files, ours and the user's, and refuses what could not be meant.

A user's folder may hold any of `spaces.toml`, `directions.toml`, `rubric.toml`, `families.toml` and
`notes/*.md`; tables there add to ours, a table with a name of ours replaces it, rubric rows and notes
are added, operators join their family.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from contracts.errors import ContractError
from engine.planning import conditions
from engine.planning.conditions import Condition
from engine.planning.facts import FACTS

HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceRow:
    """An implementation space: what candidates may use."""

    name: str
    title: str
    contains: str
    permits: tuple[str, ...]
    constraints: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectionRow:
    """An optimisation direction."""

    code: str
    title: str
    addresses: str
    steps: tuple[str, ...]
    constraints: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RubricRow:
    """Points for one space or direction (`*` for all) when every condition holds."""

    name: str
    points: float
    reason: str
    when: tuple[Condition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """An expert note: what helps in one direction under some bottlenecks.

    Attributes:
        direction: The direction's code.
        bottlenecks: Bounds and limiter codes it is about; empty for any.
        families: Operator families it is about; empty for any.
        title: For people.
        do: Transformation steps.
        avoid: Constraints.
        text: The whole note, for language models.
        file: Where it stands.
    """

    direction: str
    bottlenecks: frozenset[str]
    families: frozenset[str]
    title: str
    do: tuple[str, ...]
    avoid: tuple[str, ...]
    text: str
    file: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalog:
    """Everything planning knows that is not about the task at hand."""

    spaces: Mapping[str, SpaceRow]
    directions: Mapping[str, DirectionRow]
    space_rubric: tuple[RubricRow, ...]
    direction_rubric: tuple[RubricRow, ...]
    families: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[Note, ...] = ()

    def allowed(self, space: str) -> tuple[str, ...]:
        """`space` and the narrower spaces it contains, widest first."""
        chain = [space]
        while (inner := self.spaces[chain[-1]].contains) and inner not in chain:
            chain.append(inner)
        return tuple(chain)


def load_catalog(extra: Sequence[str | Path] = ()) -> Catalog:
    """Our data files, then those of every folder in `extra`, in order.

    Raises:
        ContractError: A file or row is wrong; the message names it and what to do.
    """
    spaces: dict[str, SpaceRow] = {}
    directions: dict[str, DirectionRow] = {}
    families: dict[str, str] = {}
    rubrics: list[tuple[Path, Mapping[str, Any]]] = []
    note_files: list[Path] = []
    for folder in (HERE, *map(Path, extra)):
        if not folder.is_dir():
            raise ContractError("the planning folder does not exist", hint="correct `planning` in the settings",
                                file=folder)
        for name, row in _tables(folder / "spaces.toml"):
            spaces[name] = _space(folder / "spaces.toml", name, row)
        for name, row in _tables(folder / "directions.toml"):
            directions[name] = _direction(folder / "directions.toml", name, row)
        for family, operators in _read(folder / "families.toml").items():
            for op in _texts(folder / "families.toml", family, {"operators": operators}, "operators"):
                families[op] = family
        rubrics.append((folder / "rubric.toml", _read(folder / "rubric.toml")))
        note_files += sorted((folder / "notes").glob("*.md"))
    for name, row in spaces.items():
        if row.contains and row.contains not in spaces:
            raise ContractError(f"space {name!r} contains {row.contains!r}, which is no space",
                                hint=f"use one of {', '.join(spaces)} or \"\"", file="spaces.toml")
    return Catalog(
        spaces=spaces,
        directions=directions,
        space_rubric=_rubric(rubrics, "space", spaces),
        direction_rubric=_rubric(rubrics, "direction", directions),
        families=families,
        notes=tuple(parse_note(path.read_text(encoding="utf-8"), str(path), directions) for path in note_files),
    )


def parse_note(text: str, file: str, directions: Mapping[str, DirectionRow]) -> Note:
    """Read one note: `key: value` lines, a blank line, then Markdown with `## Do` and `## Avoid` lists.

    Raises:
        ContractError: The head or the lists are wrong.
    """
    head, _, body = text.partition("\n\n")
    keys: dict[str, str] = {}
    for number, line in enumerate(head.splitlines(), 1):
        key, colon, value = line.partition(":")
        if not colon or key.strip() not in ("title", "direction", "bottlenecks", "families"):
            raise ContractError(f"the note's head has the line {line!r}",
                                hint="write `title:`, `direction:`, `bottlenecks:` or `families:`, then a blank line",
                                file=file, line=number)
        keys[key.strip()] = value.strip()
    if keys.get("direction") not in directions or not keys.get("title"):
        raise ContractError(f"the note's direction {keys.get('direction')!r} is unknown or its title is missing",
                            hint=f"use a direction of {', '.join(directions)} and give a title", file=file, line=1)
    lists: dict[str, list[str]] = {"Do": [], "Avoid": []}
    current = None
    for line in body.splitlines():
        if line.startswith("## "):
            current = line[3:].strip()
        elif current in lists and line.startswith("- "):
            lists[current].append(line[2:].strip())
        elif current in lists and line.startswith("  ") and lists[current]:
            lists[current][-1] += " " + line.strip()
    if not lists["Do"]:
        raise ContractError("the note has no steps", hint="add a `## Do` list with `- ` items", file=file)
    return Note(direction=keys["direction"], bottlenecks=_words(keys.get("bottlenecks", "")),
                families=_words(keys.get("families", "")), title=keys["title"], do=tuple(lists["Do"]),
                avoid=tuple(lists["Avoid"]), text=text, file=Path(file).name)


def _words(text: str) -> frozenset[str]:
    return frozenset(word.strip() for word in text.split(",") if word.strip())


def _read(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ContractError(f"this is not TOML: {error}", hint="correct the syntax there", file=path) from None


def _tables(path: Path) -> list[tuple[str, Mapping[str, Any]]]:
    rows = _read(path)
    for name, row in rows.items():
        if not isinstance(row, Mapping):
            raise ContractError(f"{name!r} is not a table", hint=f"start it with [{name}]", file=path)
    return list(rows.items())


def _text(path: Path, name: str, row: Mapping[str, Any], key: str, *, empty: bool = False) -> str:
    value = row.get(key)
    if not isinstance(value, str) or not (value.strip() or empty):
        raise ContractError(f"{name!r} has no text {key!r}", hint=f'add {key} = "..." to it', file=path)
    return value


def _texts(path: Path, name: str, row: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = row.get(key)
    if not isinstance(value, list) or not all(isinstance(item, str) and item.strip() for item in value):
        raise ContractError(f"{name!r} needs {key!r} as a list of texts", hint=f'write {key} = ["..."]', file=path)
    return tuple(value)


def _known(path: Path, name: str, row: Mapping[str, Any], keys: set[str]) -> None:
    unknown = sorted(set(row) - keys)
    if unknown:
        raise ContractError(f"{name!r} has unknown {', '.join(map(repr, unknown))}",
                            hint=f"use only {', '.join(sorted(keys))}", file=path)


def _space(path: Path, name: str, row: Mapping[str, Any]) -> SpaceRow:
    _known(path, name, row, {"title", "contains", "permits", "constraints"})
    return SpaceRow(name=name, title=_text(path, name, row, "title"),
                    contains=_text(path, name, row, "contains", empty=True),
                    permits=_texts(path, name, row, "permits"), constraints=_texts(path, name, row, "constraints"))


def _direction(path: Path, code: str, row: Mapping[str, Any]) -> DirectionRow:
    _known(path, code, row, {"title", "addresses", "steps", "constraints"})
    return DirectionRow(code=code, title=_text(path, code, row, "title"),
                        addresses=_text(path, code, row, "addresses"), steps=_texts(path, code, row, "steps"),
                        constraints=_texts(path, code, row, "constraints"))


def _rubric(files: list[tuple[Path, Mapping[str, Any]]], kind: str, names: Mapping[str, object]
            ) -> tuple[RubricRow, ...]:
    rows: list[RubricRow] = []
    for path, data in files:
        unknown = set(data) - {"space", "direction"}
        if unknown:
            raise ContractError(f"the rubric has unknown tables {', '.join(sorted(unknown))}",
                                hint="use [[space]] and [[direction]]", file=path)
        table = data.get(kind, [])
        if not isinstance(table, list):
            raise ContractError(f"[{kind}] is one table", hint=f"write [[{kind}]] for each row", file=path)
        rows += [_rubric_row(path, f"[[{kind}]] row {number}", row, names) for number, row in enumerate(table, 1)]
    return tuple(rows)


def _rubric_row(path: Path, where: str, row: Mapping[str, Any], names: Mapping[str, object]) -> RubricRow:
    _known(path, where, row, {"name", "points", "reason", "when"})
    name = _text(path, where, row, "name")
    if name != "*" and name not in names:
        raise ContractError(f"{where} names {name!r}", hint=f"use one of {', '.join(names)}, or *", file=path)
    points = row.get("points")
    if isinstance(points, bool) or not isinstance(points, (int, float)):
        raise ContractError(f"{where} ({name}) has points {points!r}", hint="give a number", file=path)
    when = row.get("when", {})
    if not isinstance(when, Mapping):
        raise ContractError(f"{where} ({name}) has when = {when!r}", hint="write when = { fact = condition }",
                            file=path)
    reason = _text(path, where, row, "reason")
    try:
        used = {*when, *conditions.fields(reason)}
        parsed = tuple(conditions.parse(fact, text) for fact, text in when.items())
    except ValueError as error:
        raise ContractError(f"{where} ({name}): {error}", hint="see the head of our rubric.toml", file=path) from None
    unknown = sorted(fact for fact in used if fact not in FACTS and not fact.startswith("share."))
    if unknown:
        raise ContractError(f"{where} ({name}) uses the unknown fact {unknown[0]!r}",
                            hint=f"use one of {', '.join(sorted(FACTS))}, or share.<family>", file=path)
    return RubricRow(name=name, points=float(points), reason=reason, when=parsed)
