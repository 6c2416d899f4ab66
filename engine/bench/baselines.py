"""What a user would pick instead of us: eager, torch.compile in two modes, eager as a CUDA graph. Measured once.

One JSON line a task and form, kept by task, device and torch, so that a later sitting need not compile again.
Works beside the search: compiling takes CPU seconds, and only the timed calls hold the GPU.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from contracts.errors import HieraError
from engine.bench.lines import append_line, cut_torn_line, read_lines
from engine.bench.protocol import Place, Protocol
from engine.bench.tasks import BenchTask

FORMS = ("eager", "compile", "compile max-autotune", "graph")
SCHEMA = 1
TRIES = 2
Key = tuple[int, int, str, str, str, str]


class BaselineFile:
    """Baselines on disk, appended and synced line by line.

    Args:
        path: The file that is written.
        others: Files of earlier sittings, read only.

    Raises:
        ConfigError: A file cannot be read.
    """

    def __init__(self, path: Path, others: Iterable[Path] = ()) -> None:
        self.path = path
        self.rows: dict[Key, dict[str, Any]] = {}
        self._failed: Counter[Key] = Counter()
        cut_torn_line(path)
        for file in (*others, *([path] if path.exists() else [])):
            for row in read_lines(file):
                self._take(row)

    def missing(self, task: BenchTask, facts: Mapping[str, Any], forms: Sequence[str]) -> list[str]:
        """Forms of a task that were not measured on this device with this torch."""
        return [form for form in forms if self._again(_key(task, facts, form))]

    def append(self, row: Mapping[str, Any]) -> None:
        """Write one line.

        Raises:
            ConfigError: The disk refused it.
        """
        append_line(self.path, row)
        self._take(row)

    def _take(self, row: Mapping[str, Any]) -> None:
        if key := _key_of(row):
            self.rows[key] = dict(row)
            self._failed[key] += row.get("median_us") is None

    def _again(self, key: Key) -> bool:
        """What failed once may have failed for want of memory beside other tasks; twice is a finding."""
        row = self.rows.get(key)
        return row is None or (row.get("median_us") is None and self._failed[key] < TRIES)


async def measure(
    tasks: asyncio.Queue[tuple[BenchTask, Path]], place: Place, facts: Mapping[str, Any], kept: BaselineFile, *,
    forms: Sequence[str] = FORMS, provenance: Mapping[str, Any], on_line: Callable[[str], None],
) -> None:
    """Measure what is missing of the queued tasks, one after the other.

    Args:
        tasks: Task and its file.
        place: Where.
        facts: Device and torch, by which baselines are kept.
        kept: Those that are known.
        forms: Which forms, of `FORMS`.
        provenance: Facts of the sitting, for every line.
        on_line: Called with one line of progress for each task.
    """
    while not tasks.empty():
        task, file = tasks.get_nowait()
        wanted = kept.missing(task, facts, forms)
        if not wanted:
            continue
        rows = [row async for row in _forms(file, place, wanted, kept, {
            "schema": SCHEMA, "level": task.level, "id": task.id, "code_sha256": task.sha256, **facts, **provenance})]
        said = ", ".join(f"{row['form']} " + (f"{row['median_us']:.0f} us" if row["median_us"] else "-")
                         + (" (not valid)" if row["valid"] is False else "") for row in rows)
        on_line(f"{task.key} baselines: {said}")


async def _forms(file: Path, place: Place, wanted: Sequence[str], kept: BaselineFile,
                 head: Mapping[str, Any]) -> AsyncIterator[dict[str, Any]]:
    protocol: Protocol | None = None
    try:
        for form in wanted:
            row: dict[str, Any] = {**head, "form": form, "median_us": None, "valid": None, "compile_s": None,
                                   "note": None}
            try:
                if protocol is None:
                    protocol = Protocol(place, file)
                    await protocol.open()
                if form != "eager":
                    row["compile_s"] = await protocol.make(form)
                    row |= {key: value for key, value in (await protocol.validate(form)).items()
                            if key in ("valid", "trials", "worst")}
                else:
                    row["valid"] = True
                row |= await protocol.times(form)
            except HieraError as error:
                # A form that cannot be had is a finding; whatever state it left in the process is not kept.
                row["note"] = error.problem.splitlines()[0][:300]
                if protocol is not None:
                    await protocol.close()
                protocol = None
            kept.append(row)
            yield row
    finally:
        if protocol is not None:
            await protocol.close()


def _key(task: BenchTask, facts: Mapping[str, Any], form: str) -> Key:
    return task.level, task.id, task.sha256, str(facts["device"]), str(facts["torch"]), form


def _key_of(row: Mapping[str, Any]) -> Key | None:
    try:
        return row["level"], row["id"], row["code_sha256"], row["device"], row["torch"], row["form"]
    except KeyError:
        return None
