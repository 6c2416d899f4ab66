"""One task from its file to its row: search, then a fresh look at the winner, each in a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contracts import codec
from contracts.errors import HieraError
from engine.bench.children import Ended, converse
from engine.bench.rows import result_row
from engine.bench.tasks import BenchTask
from engine.store import Store
from engine.trajectory import Job, Trajectory

# After its limit a task may still time its best again and confirm its winner; then it is asked to stop, then killed.
FINISH_S = 180.0
# Without a limit of the user's, a task that hangs must still not hold the others up for ever.
HANGS_AFTER_S = 3600.0
CHECK_S = 300.0
# A task is not begun with less of the sitting left than this: it would only load torch.
ONE_LEFT_S = 15.0
BUSY, BUSY_S = "another process is working on this run", 4.0


@dataclass(slots=True, kw_only=True)
class TaskRunner:
    """Runs tasks in one lane.

    Attributes:
        settings: For the record.
        work: Where it is kept which run belongs to which task.
        python: The interpreter with torch, for the fresh look.
        recheck: Take that look.
        paired: Candidates are timed in turn with torch.compile too.
        limit_s: Seconds a task may search, or None.
        environment: All variables of the lane's processes.
        program: The command line of a task's process.
        provenance: Facts of the sitting.
        stop: When set, tasks end and are kept as unfinished.
    """

    settings: Mapping[str, Any]
    work: Path
    python: str
    recheck: bool
    paired: bool
    limit_s: float | None
    environment: Mapping[str, str]
    program: Sequence[str]
    provenance: Mapping[str, Any]
    stop: asyncio.Event

    async def one(self, task: BenchTask, variant: str, job: Job, file: Path) -> dict[str, Any] | None:
        """One task's row; None where the sitting ended before anything was known."""
        note = _Notebook(self.work / f"{variant.replace(':', '-')}_{task.level}_{task.id}.json",
                         _same(task, job, self.provenance))
        begin = time.monotonic()
        failure: str | None = None
        trajectory = await asyncio.to_thread(_load, note.run)
        if trajectory is None or trajectory.best is None or not _finished(trajectory):
            # A run that ended without a result has nothing to go on with.
            anew = trajectory is None or _finished(trajectory)
            ended = await self._search(job, variant, note.forget() if anew else note)
            trajectory = await asyncio.to_thread(_load, note.run)
            failure = self._failure(ended)
            if ended.stopped == "cancel" and not _finished(trajectory):
                row = self._row(task, variant, trajectory, note, time.monotonic() - begin, None, complete=False)
                return row if trajectory is not None and trajectory.candidates else None
        checked: dict[str, Any] = {}
        if self.recheck and trajectory is not None and trajectory.best is not None:
            found = await self._check(note, file, trajectory)
            if found is None:
                return self._row(task, variant, trajectory, note, time.monotonic() - begin, failure, complete=False)
            checked = found
        return self._row(task, variant, trajectory, note, time.monotonic() - begin, failure, checked=checked)

    async def _search(self, job: Job, variant: str, note: _Notebook) -> Ended:
        ended = await self._converse(job, variant, note)
        if note.run is not None and BUSY in (ended.failed or ""):
            # The process of a sitting that was killed leaves within seconds.
            await asyncio.sleep(BUSY_S)
            ended = await self._converse(job, variant, note)
        return ended

    async def _converse(self, job: Job, variant: str, note: _Notebook) -> Ended:
        return await converse(
            {"what": "search", "job": codec.to_data(job), "variant": variant, "resume": note.run,
             "paired": self.paired},
            program=self.program, environment=self.environment, limit_s=self._hard_s, cancel=self.stop,
            on_run=note.keep)

    @property
    def _hard_s(self) -> float:
        return HANGS_AFTER_S if self.limit_s is None else self.limit_s + FINISH_S

    async def _check(self, note: _Notebook, file: Path, trajectory: Trajectory) -> dict[str, Any] | None:
        """What a fresh process says of the winner; None where the sitting ended first."""
        ended = await converse(
            {"what": "check", "run": note.run, "python": self.python, "file": str(file)}, program=self.program,
            environment=self.environment, limit_s=CHECK_S, cancel=self.stop)
        if ended.checked is not None:
            return ended.checked
        if ended.stopped == "cancel":
            return None
        assert trajectory.best is not None
        why = ended.failed or f"it did not end within {CHECK_S:g} s"
        return {"reverified": {"id": trajectory.best.id, "accepted": None, "reason": f"not run: {why}"},
                "kernelbench": None}

    def _failure(self, ended: Ended) -> str | None:
        if ended.stopped == "limit":
            return f"time: stopped hard {self._hard_s:g} s after its begin"
        return ended.failed

    def _row(self, task: BenchTask, variant: str, trajectory: Trajectory | None, note: _Notebook, seconds: float,
             failure: str | None, *, complete: bool = True, checked: Mapping[str, Any] | None = None) -> dict[str, Any]:
        # The run's own clock counts on over sittings; before it began, only our clock ran.
        wall_s = seconds if trajectory is None else trajectory.wall_s + note.begin_s
        return result_row(task, trajectory, settings=self.settings, wall_s=wall_s, failure=failure, variant=variant,
                          complete=complete, begin_s=note.begin_s, provenance=self.provenance, checked=checked)


class _Notebook:
    """Which run belongs to a task, on disk from the run's first moment, so that a kill at any moment is harmless."""

    def __init__(self, path: Path, same: str) -> None:
        self._path, self._same = path, same
        self.run: str | None = None
        self.begin_s = 0.0
        with contextlib.suppress(OSError, ValueError, KeyError):
            known = json.loads(path.read_text(encoding="utf-8"))
            if known["same"] == same:
                self.run, self.begin_s = known["run"], known["begin_s"]

    def keep(self, run: str, begin_s: float) -> None:
        """Write down a run that began, or goes on."""
        if run == self.run:
            return
        self.run, self.begin_s = run, begin_s
        part = self._path.with_suffix(".part")
        part.write_text(json.dumps({"same": self._same, "run": run, "begin_s": round(begin_s, 3)}), encoding="utf-8")
        part.replace(self._path)

    def forget(self) -> _Notebook:
        """Begin anew."""
        self.run, self.begin_s = None, 0.0
        return self


def _same(task: BenchTask, job: Job, provenance: Mapping[str, Any]) -> str:
    """Says whether an unfinished run may be gone on with: same code, same job, same text of ours."""
    told = [task.sha256, codec.to_data(job), provenance.get("text_sha256")]
    return hashlib.sha256(json.dumps(told, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _load(run: str | None) -> Trajectory | None:
    if run is None:
        return None
    try:
        trajectory = Store().load(run)
    except HieraError:
        return None
    return trajectory if trajectory.job is not None else None


def _finished(trajectory: Trajectory | None) -> bool:
    return trajectory is not None and trajectory.stopped is not None and trajectory.stopped.complete
