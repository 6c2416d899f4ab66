"""One task's result as one JSON line, and the file of them: appended, flushed to disk, safe to kill and resume."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from contracts.errors import ConfigError
from engine.bench.lines import append_line, cut_torn_line, read_lines
from engine.bench.tasks import BenchTask
from engine.bench.variants import FULL
from engine.presets import limits
from engine.records import Candidate
from engine.trajectory import PROGRESS, Trajectory

SCHEMA = 2
BUDGETS = (1, 6, 12, 18)
# Reasons to stop that a larger budget would have met as well.
ENDS = ("converged", "no direction left")


def result_row(task: BenchTask, trajectory: Trajectory | None, *, settings: Mapping[str, Any], wall_s: float,
               failure: str | None, variant: str = FULL, complete: bool = True, begin_s: float = 0.0,
               provenance: Mapping[str, Any] | None = None, checked: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """All that the summary needs; a task without any trajectory has its failure only.

    Args:
        task: What was run.
        trajectory: How far it came; None where it did not begin.
        settings: Preset, budget, precision and so on, for the record.
        wall_s: Seconds in all.
        failure: Why there is no result, or None.
        variant: Which variant of the search.
        complete: False where the sitting ended first; a later one goes on.
        begin_s: Seconds before the trajectory's own clock began.
        provenance: What the result was made from.
        checked: What a fresh process said about the winner.
    """
    row: dict[str, Any] = {
        "schema": SCHEMA, "level": task.level, "id": task.id, "name": task.name, "code_sha256": task.sha256,
        "variant": variant, "complete": complete, "settings": dict(settings), **(provenance or {}),
        "verified": False, "failure": failure, "wall_s": round(wall_s, 2),
    }
    if trajectory is None:
        return row
    best, spent = trajectory.best, [c for c in trajectory.candidates if c.round > 0]
    evaluations = trajectory.evaluations.values()
    builds = [e.build.seconds for e in evaluations if e.build and not e.build.cached]
    told = {b: spent[:b] for b in BUDGETS if complete and _tells(trajectory, b, len(spent))}
    first_s = trajectory.first_verified_s
    row |= {
        "run": trajectory.run, "verified": best is not None, "measured": trajectory.measured,
        "device": trajectory.device.name if trajectory.device else None,
        "driver": trajectory.device.driver if trajectory.device else None,
        "first_verified_s": None if first_s is None else round(first_s + begin_s, 2),
        "stop_reason": trajectory.stopped.reason if trajectory.stopped else None,
        "candidates": len(spent), "slower": sum(e.slower for e in evaluations),
        "rejected": dict(Counter(e.failure.stage for e in evaluations if e.failure and not e.slower)),
        "reasons": reasons(trajectory)[:5],
        "build_s": round(sorted(builds)[len(builds) // 2], 3) if builds else None,
        "bound": trajectory.workload.bound if trajectory.workload else None,
        "roof_us": trajectory.workload.roof_us if trajectory.workload else None,
        "floor_us": trajectory.workload.floor_us if trajectory.workload else None,
        "baseline": {"eager_us": trajectory.baseline.eager_us, "compile_us": trajectory.baseline.compile_us,
                     "compile_mode": trajectory.baseline.compile_mode, "graph_us": trajectory.baseline.graph_us},
        "best": candidate_row(trajectory, best),
        "budgets": {str(b): candidate_row(trajectory, best_within(trajectory, made)) for b, made in told.items()},
        "strict": {str(b): candidate_row(trajectory, best_within(trajectory, made, strict=True))
                   for b, made in told.items()},
        # Candidates that only KernelBench's tolerance would let pass were rejected, and never timed.
        "kernelbench_valid": {str(b): any(_verdict(trajectory, c.id, "kernelbench") for c in made)
                              for b, made in told.items()},
        "progress": progress(trajectory, spent), "rounds": rounds(trajectory),
        "notes": list(dict.fromkeys(trajectory.notes))[:20], **(checked or {}),
    }
    if best is None and failure is None:
        row["failure"] = why_none(trajectory)
    return row


def _tells(trajectory: Trajectory, budget: int, made: int) -> bool:
    """False where a larger budget would have gone on: nothing can then be said about it."""
    reason = trajectory.stopped.reason if trajectory.stopped else ""
    if budget <= made or reason.startswith(ENDS):
        return True
    return not reason.startswith("budget") and (trajectory.job is None or budget <= limits(trajectory.job)[1])


def _verdict(trajectory: Trajectory, identity: str, precision: str) -> bool:
    evaluation = trajectory.evaluations.get(identity)
    verification = evaluation.verification if evaluation else None
    return verification is not None and getattr(verification, precision) is True


def best_within(trajectory: Trajectory, candidates: Sequence[Candidate], *, strict: bool = False) -> Candidate | None:
    """The fastest accepted of the first candidates: what a smaller budget would have found on the same path.

    Args:
        trajectory: The whole record.
        candidates: The first ones.
        strict: Only those that hold the strict policy as well.
    """
    made = {c.id for c in candidates}
    return next((c for c in trajectory.ranked() if c.id in made
                 and (not strict or _verdict(trajectory, c.id, "strict"))), None)


def candidate_row(trajectory: Trajectory, candidate: Candidate | None) -> dict[str, Any] | None:
    """A candidate's numbers; null where none was accepted."""
    if candidate is None:
        return None
    evaluation = trajectory.evaluations[candidate.id]
    timing, verification = evaluation.timing, evaluation.verification
    return {
        "id": candidate.id, "space": candidate.space, "direction": candidate.direction or None,
        "title": candidate.title or None, "author": candidate.author, "round": candidate.round,
        "confirmed": evaluation.confirmed, "where": verification.where if verification else None,
        "strict": verification.strict if verification else None,
        "kernelbench": verification.kernelbench if verification else None,
        "median_us": timing.median_us if timing else None, "speedup": timing.speedup if timing else None,
        "ci95": list(timing.ci95) if timing else None,
        "minimum_detectable": timing.minimum_detectable if timing else None,
        "same_vs_same": timing.same_vs_same if timing else None,
        "speedup_vs_compile": timing.speedup_vs_compile if timing else None,
        "compile_ci95": list(timing.compile_ci95) if timing and timing.compile_ci95 else None,
        "wall_us": timing.wall_us if timing else None,
    }


def progress(trajectory: Trajectory, spent: Sequence[Candidate]) -> list[list[Any]]:
    """Each new best as [candidates made so far, speed-up over eager, microseconds]; null where nothing is timed."""
    steps: list[list[Any]] = []
    best = float("inf")
    for number, candidate in enumerate(spent, 1):
        if not trajectory.accepted(candidate.id):
            continue
        rank = trajectory.rank_us(candidate.id)
        if steps and rank >= best:
            continue
        best = rank
        timing = trajectory.evaluations[candidate.id].timing
        steps.append([number, timing.speedup if timing else None, timing.median_us if timing else None])
    return steps


def rounds(trajectory: Trajectory) -> list[dict[str, Any]]:
    """Each plan beside what won: the chosen direction, and that of the candidate that made the round's new best.

    `winner` is null where nothing became faster by more than noise, or where nothing was timed.
    """
    found, best = [], float("inf")
    for plan in trajectory.plans:
        mine = [c for c in trajectory.candidates if c.round == plan.round]
        before, winner = best, None
        for candidate in mine:
            timing = trajectory.evaluations[candidate.id].timing if trajectory.accepted(candidate.id) else None
            if timing is not None and trajectory.rank_us(candidate.id) < best:
                best, winner = trajectory.rank_us(candidate.id), candidate
        # The first best of all is a beginning, not a gain, unless a later one of the round beat it.
        seed = next((trajectory.rank_us(c.id) for c in mine if not c.direction and trajectory.accepted(c.id)
                     and trajectory.evaluations[c.id].timing is not None), before)
        start = min(before, seed)
        gain = start / best if winner is not None and start < float("inf") else None
        won = winner is not None and bool(winner.direction) and gain is not None and gain >= PROGRESS
        found.append({
            "round": plan.round, "space": plan.space, "direction": plan.direction, "author": plan.author,
            "scores": {code: score.value for code, score in plan.scores.items()},
            "tried": dict(Counter(c.direction or "seed" for c in mine)),
            "winner": {"direction": winner.direction, "space": winner.space, "gain": gain} if won and winner else None,
        })
    return found


def reasons(trajectory: Trajectory) -> list[str]:
    """Why candidates were not accepted, each once, the most common first."""
    failures = Counter(f"{e.failure.stage}: {e.failure.reason}"[:300] for e in trajectory.evaluations.values()
                       if e.failure and not e.slower)
    return [reason for reason, _ in failures.most_common()]


def why_none(trajectory: Trajectory) -> str:
    """Why nothing was accepted, from the evaluations: the most common reason first."""
    if found := reasons(trajectory):
        return found[0]
    checks = Counter(f"verify: {check.name}: {check.status}" for e in trajectory.evaluations.values() if e.verification
                     for check in e.verification.unmet)
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
        self.rows = read_rows(path) if path.exists() else []
        if self.rows and not resume:
            raise ConfigError(f"it has results of {len(self.rows)} tasks already",
                              hint="add --resume to go on with it, or choose another --out", file=path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("ab"):
                pass
            cut_torn_line(path)
        except OSError as error:
            raise ConfigError(f"the results cannot be written: {error.strerror}", hint="choose another --out",
                              file=path) from None

    def has(self, task: BenchTask, variant: str = FULL, *, verified: bool = False) -> bool:
        """True where the same code has a complete result of the variant; with `verified`, one that is verified."""
        found = [row for row in self.rows if row.get("complete", True) and
                 (row["level"], row["id"], row.get("code_sha256"), row.get("variant", FULL))
                 == (task.level, task.id, task.sha256, variant)]
        return bool(found) and (not verified or bool(found[-1]["verified"]))

    def append(self, row: Mapping[str, Any]) -> None:
        """Write one result to the disk.

        Raises:
            ConfigError: The disk refused it.
        """
        append_line(self.path, row)
        self.rows.append(dict(row))


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The results of a file.

    Raises:
        ConfigError: The file cannot be read.
    """
    return [row for row in read_lines(path) if "level" in row and "id" in row and "verified" in row]
