"""One task's result as one JSON line, and the file of them: appended, flushed to disk, safe to kill and resume."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from contracts.errors import ConfigError
from engine.bench.tasks import BenchTask
from engine.records import Candidate
from engine.trajectory import Trajectory

SCHEMA = 1
BUDGETS = (1, 6, 12, 18)


def result_row(task: BenchTask, trajectory: Trajectory | None, *, settings: Mapping[str, Any], wall_s: float,
               failure: str | None) -> dict[str, Any]:
    """All that the summary needs; a task without any trajectory has its failure only.

    Args:
        task: What was run.
        trajectory: How far it came; None where it did not begin.
        settings: Preset, budget, precision and so on, for the record.
        wall_s: Seconds in all.
        failure: Why there is no result, or None.
    """
    row: dict[str, Any] = {
        "schema": SCHEMA, "level": task.level, "id": task.id, "name": task.name, "code_sha256": task.sha256,
        "settings": dict(settings), "verified": False, "failure": failure, "wall_s": round(wall_s, 2),
    }
    if trajectory is None:
        return row
    best, spent = trajectory.best, [c for c in trajectory.candidates if c.round > 0]
    rejected = Counter(e.failure.stage for e in trajectory.evaluations.values() if e.failure)
    builds = [e.build.seconds for e in trajectory.evaluations.values() if e.build and not e.build.cached]
    row |= {
        "run": trajectory.run, "verified": best is not None, "measured": trajectory.measured,
        "device": trajectory.device.name if trajectory.device else None,
        "first_verified_s": trajectory.first_verified_s,
        "stop_reason": trajectory.stopped.reason if trajectory.stopped else None,
        "candidates": len(spent), "rejected": dict(rejected),
        "build_s": round(sorted(builds)[len(builds) // 2], 3) if builds else None,
        "bound": trajectory.workload.bound if trajectory.workload else None,
        "roof_us": trajectory.workload.roof_us if trajectory.workload else None,
        "floor_us": trajectory.workload.floor_us if trajectory.workload else None,
        "baseline": {"eager_us": trajectory.baseline.eager_us, "compile_us": trajectory.baseline.compile_us,
                     "compile_mode": trajectory.baseline.compile_mode},
        "best": candidate_row(trajectory, best),
        "budgets": {str(b): candidate_row(trajectory, best_within(trajectory, spent[:b]))
                    for b in BUDGETS if b <= len(spent) or not _cut_by_budget(trajectory)},
        "notes": list(dict.fromkeys(trajectory.notes))[:20],
    }
    if best is None and failure is None:
        row["failure"] = why_none(trajectory)
    return row


def _cut_by_budget(trajectory: Trajectory) -> bool:
    """True where a larger budget would have gone on: nothing can then be said about it."""
    return trajectory.stopped is not None and trajectory.stopped.reason.startswith("budget")


def best_within(trajectory: Trajectory, candidates: Sequence[Candidate]) -> Candidate | None:
    """The fastest accepted of the first candidates: what a smaller budget would have found on the same path."""
    accepted = [c for c in candidates if trajectory.accepted(c.id)]
    return min(accepted, key=lambda c: trajectory.rank_us(c.id), default=None)


def candidate_row(trajectory: Trajectory, candidate: Candidate | None) -> dict[str, Any] | None:
    """A candidate's numbers; null where none was accepted."""
    if candidate is None:
        return None
    evaluation = trajectory.evaluations[candidate.id]
    timing = evaluation.timing
    return {
        "id": candidate.id, "space": candidate.space, "direction": candidate.direction or None,
        "title": candidate.title or None, "author": candidate.author, "confirmed": evaluation.confirmed,
        "median_us": timing.median_us if timing else None, "speedup": timing.speedup if timing else None,
        "ci95": list(timing.ci95) if timing else None,
        "minimum_detectable": timing.minimum_detectable if timing else None,
        "speedup_vs_compile": timing.speedup_vs_compile if timing else None,
        "compile_ci95": list(timing.compile_ci95) if timing and timing.compile_ci95 else None,
        "wall_us": timing.wall_us if timing else None,
    }


def why_none(trajectory: Trajectory) -> str:
    """Why nothing was accepted, from the evaluations: the most common reason first."""
    reasons = Counter(f"{e.failure.stage}: {e.failure.reason}" for e in trajectory.evaluations.values() if e.failure)
    if reasons:
        return reasons.most_common(1)[0][0]
    checks = Counter(f"verify: {check.name}: {check.status}" for e in trajectory.evaluations.values() if e.verification
                     for check in e.verification.checks if check.status != "pass")
    if checks:
        return checks.most_common(1)[0][0]
    return trajectory.stopped.reason if trajectory.stopped else "no candidate was evaluated"


class ResultFile:
    """JSON lines, appended one task at a time and synced, so that a killed run keeps what it had.

    Args:
        path: The file.
        resume: Take what is in it as done; else an existing file that has results is refused.

    Raises:
        ConfigError: The file cannot be written, or has results and `resume` is not set.
    """

    def __init__(self, path: Path, *, resume: bool) -> None:
        self.path = path
        self.rows = list(read_rows(path)) if path.exists() else []
        if self.rows and not resume:
            raise ConfigError(f"it has results of {len(self.rows)} tasks already",
                              hint="add --resume to go on with it, or choose another --out", file=path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _cut_torn_line(path)
        except OSError as error:
            raise ConfigError(f"the results cannot be written: {error.strerror}", hint="choose another --out",
                              file=path) from None

    def has(self, task: BenchTask) -> bool:
        """True where the same code has a result."""
        return any((row.get("level"), row.get("id"), row.get("code_sha256")) == (task.level, task.id, task.sha256)
                   for row in self.rows)

    def append(self, row: Mapping[str, Any]) -> None:
        """Write one result to the disk.

        Raises:
            ConfigError: The disk refused it.
        """
        line = json.dumps(row, ensure_ascii=False) + "\n"
        try:
            with self.path.open("ab") as file:
                file.write(line.encode())
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise ConfigError(f"the result of task {row['level']}/{row['id']} cannot be written: {error.strerror}",
                              hint="free space, then go on with --resume", file=self.path) from None
        self.rows.append(dict(row))


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a result file; a line that a killed process left half written is left out."""
    rows = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict) and "level" in row and "id" in row:
            rows.append(row)
    return rows


def _cut_torn_line(path: Path) -> None:
    with path.open("ab+") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - (1 << 20)))
        tail = file.read()
        if tail and not tail.endswith(b"\n"):
            file.truncate(size - len(tail) + tail.rfind(b"\n") + 1)
