"""What a list of runs shows of each, without reading whole runs: a small file beside the events remembers it.

The file is only a copy: it counts while the events are as long as they were when it was written, and is made
again from them otherwise.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import cattrs

from contracts import codec
from contracts.errors import HieraError
from engine.store import EVENTS, Store
from engine.trajectory import Trajectory

FILE = "headline.json"
# Raised when the fields change their meaning.
VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """One line about a run.

    Attributes:
        run: Run id.
        events_bytes: Length of the events it was made from.
        version: Of this record.
        file: The user's file.
        symbol: The class or function in it; empty for the only one.
        name: The contract's name, or the symbol's while there is none.
        agent: `expert` or `llm`.
        device: The GPU's name, or the target's without one.
        measured: True where times come from a GPU.
        written, judged, accepted: Numbers of candidates.
        planned: Rounds that were planned.
        best: Id of the best candidate, or None.
        speedup, ci95: The best's, where measured.
        faster: The interval lies above 1.
        confirmed: The best was confirmed in a fresh build.
        stop_reason: Empty while nothing says that it ended.
        complete: False where it can be resumed.
        wall_s: Seconds of work.
    """

    run: str
    events_bytes: int
    version: int = VERSION
    file: str = ""
    symbol: str = ""
    name: str = ""
    agent: str = ""
    device: str = ""
    measured: bool = False
    written: int = 0
    judged: int = 0
    accepted: int = 0
    planned: int = 0
    best: str | None = None
    speedup: float | None = None
    ci95: tuple[float, float] | None = None
    faster: bool = False
    confirmed: bool = False
    stop_reason: str = ""
    complete: bool = False
    wall_s: float = 0.0


def headline_of(trajectory: Trajectory, events_bytes: int) -> Headline:
    """The line about a run that was read."""
    job, best, stopped = trajectory.job, trajectory.best, trajectory.stopped
    evaluation = trajectory.evaluations[best.id] if best else None
    timing = evaluation.timing if evaluation else None
    symbol = job.name or "" if job else ""
    return Headline(
        run=trajectory.run, events_bytes=events_bytes, file=job.file if job else "", symbol=symbol,
        name=trajectory.contract.name if trajectory.contract else symbol, agent=job.agent if job else "",
        device=trajectory.device.name if trajectory.device else "", measured=trajectory.measured,
        written=len(trajectory.candidates), judged=len(trajectory.evaluations),
        accepted=len(trajectory.ranked()), planned=len(trajectory.plans), best=best.id if best else None,
        speedup=timing.speedup if timing else None, ci95=timing.ci95 if timing else None,
        faster=best is not None and trajectory.is_faster(best.id), confirmed=bool(evaluation and evaluation.confirmed),
        stop_reason=stopped.reason if stopped else "", complete=stopped is not None and stopped.complete,
        wall_s=trajectory.wall_s,
    )


class Headlines:
    """Headlines of a store's runs, each made once and remembered.

    Args:
        store: Where the runs are.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[str, Headline] = {}

    def runs(self) -> Iterator[Path]:
        """Folders of runs, newest first."""
        try:
            yield from sorted((self._store.root / "runs").iterdir(), reverse=True)
        except OSError:
            return

    def of(self, folder: Path, wanted: Callable[[str], bool] = lambda _file: True) -> Headline | None:
        """The headline of a run, or None where it cannot be read or its file is not `wanted`.

        Args:
            folder: The run's folder.
            wanted: Of the user's file; asked before the run is read.
        """
        try:
            size = (folder / EVENTS).stat().st_size
        except OSError:
            self._known.pop(folder.name, None)
            return None
        known = self._known.get(folder.name)
        if known is None or known.events_bytes != size:
            known = _stored(folder, size)
        if known is None:
            if not wanted(_file_of(folder)):
                return None
            known = self._made(folder, size)
        if known is None:
            return None
        self._known[folder.name] = known
        return known if wanted(known.file) else None

    def _made(self, folder: Path, size: int) -> Headline | None:
        try:
            found = headline_of(self._store.load(str(folder)), size)
        except HieraError:
            return None
        if found.stop_reason:
            # A run at work gets longer at once; a disk that refuses only costs time.
            with contextlib.suppress(OSError):
                part = folder / f"{FILE}.{os.getpid()}.part"
                part.write_text(json.dumps(codec.to_data(found)), encoding="utf-8")
                part.replace(folder / FILE)
        return found


def inside(folders: Collection[str]) -> Callable[[str], bool]:
    """Whether a file lies in one of the folders, under the name given or the one behind all links."""
    names = {name for folder in folders for name in (folder.rstrip("/"), str(Path(folder).resolve()))}
    beginnings = tuple(f"{name}/" for name in names)
    return lambda file: file.startswith(beginnings) or file in names


def _stored(folder: Path, size: int) -> Headline | None:
    try:
        data = json.loads((folder / FILE).read_bytes())
        found = codec.from_data(data, Headline) if data["version"] == VERSION else None
    except (OSError, ValueError, KeyError, TypeError, cattrs.BaseValidationError):
        return None
    return found if found is not None and found.events_bytes == size else None


def _file_of(folder: Path) -> str:
    """The user's file, from the first event alone."""
    try:
        with (folder / EVENTS).open("rb") as events:
            first = json.loads(events.readline())
        return str(first["data"]["file"]) if first["kind"] == "job" else ""
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def is_at_work(folder: Path) -> bool:
    """True where a process holds the run open. Asked without a lock of our own, which might be in somebody's way."""
    try:
        number = (folder / EVENTS).stat().st_ino
        return re.search(rf"FLOCK.*:{number} ", Path("/proc/locks").read_text(encoding="utf-8")) is not None
    except OSError:
        return False
