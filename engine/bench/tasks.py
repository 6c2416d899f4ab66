"""Tasks in KernelBench's form: `{"level", "id", "name", "code"}` a line."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from contracts.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchTask:
    """One task. `key` is `level/id`; `sha256` (12 digits) changes with its code."""

    level: int
    id: int
    name: str
    code: str

    @property
    def key(self) -> str:
        """Names the task among others."""
        return f"{self.level}/{self.id}"

    @property
    def sha256(self) -> str:
        """First 12 hex digits of the code's hash."""
        return hashlib.sha256(self.code.encode()).hexdigest()[:12]


def read_tasks(path: Path) -> tuple[BenchTask, ...]:
    """All tasks of a file.

    Raises:
        InputError: The file is missing, or a line is no task; the message names the line.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"the tasks cannot be read: {error.strerror}", hint="give a .jsonl file", file=path) from None
    tasks: list[BenchTask] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            task = BenchTask(level=int(row["level"]), id=int(row["id"]), name=str(row["name"]), code=str(row["code"]))
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"this line is no task: {type(error).__name__}: {error}",
                             hint='each line is {"level": 1, "id": 2, "name": "...", "code": "..."}', file=path,
                             line=number) from None
        tasks.append(task)
    if not tasks:
        raise InputError("the file holds no task", hint="give one JSON object a line", file=path)
    return tuple(tasks)


def select(tasks: Sequence[BenchTask], ids: str | None = None, levels: str | None = None) -> tuple[BenchTask, ...]:
    """Tasks by id and level, in the file's order.

    Args:
        tasks: All of them.
        ids: Comma-separated `id`, `level/id` or `level:id`, each also as a range `2/10-20`; None for all.
        levels: Comma-separated levels; None for all.

    Raises:
        InputError: A part cannot be read, or names no task.
    """
    wanted_levels = {_whole(part, levels or "") for part in _parts(levels)}
    chosen = [task for task in tasks if not wanted_levels or task.level in wanted_levels]
    if ids is not None:
        keys: set[str] = set()
        for part in _parts(ids):
            found = [task.key for task in chosen if _matches(task, part)]
            if not found:
                raise InputError(f"--ids: {part!r} names no task", hint="write 14, 2/14, or 2/10-20")
            keys.update(found)
        chosen = [task for task in chosen if task.key in keys]
    if not chosen:
        raise InputError("no task is left to run", hint="check --ids and --levels")
    return tuple(chosen)


def representative(tasks: Sequence[BenchTask], sample: int | None = None) -> tuple[BenchTask, ...]:
    """Tasks in an order whose every beginning stands for the whole: levels in turn, drawn within a level.

    The order is always the same, so that several sittings and variants meet the same tasks first.

    Args:
        tasks: All of them.
        sample: Keep the first so many, as equal a number of each level as there can be; None for all, each
            level by its share.
    """
    by_level: dict[int, list[BenchTask]] = {}
    for task in sorted(tasks, key=lambda task: hashlib.sha256(task.key.encode()).hexdigest()):
        by_level.setdefault(task.level, []).append(task)
    placed = [((place if sample else (place + 0.5) / len(members)), task.level, task)
              for members in by_level.values() for place, task in enumerate(members)]
    return tuple(task for _, _, task in sorted(placed, key=lambda row: row[:2]))[:sample]


def _parts(text: str | None) -> list[str]:
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def _whole(part: str, text: str) -> int:
    if not part.isdigit():
        raise InputError(f"--levels: {text!r} is no list of levels", hint="write 1,2")
    return int(part)


def _matches(task: BenchTask, part: str) -> bool:
    match = re.fullmatch(r"(?:(\d+)[/:])?(\d+)(?:-(\d+))?", part)
    if match is None:
        raise InputError(f"--ids: {part!r} cannot be read", hint="write 14, 2/14, or 2/10-20")
    level, first, last = match.groups()
    return (level is None or int(level) == task.level) and int(first) <= task.id <= int(last or first)
