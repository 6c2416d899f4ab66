"""Progress of a job: one moving line on a terminal, plain lines elsewhere. Goes to stderr; results go to stdout."""

from __future__ import annotations

import contextlib
import sys
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.status import Status

from engine import report
from engine.records import Evaluation
from engine.trajectory import Event, Trajectory

STEPS = {
    "job": "looking at the device",
    "device": "extracting the contract",
    "contract": "profiling the workload",
    "workload": "preparing the evaluator",
}


class Progress:
    """Shows what `optimize` tells. A context manager.

    Args:
        rounds: Rounds at most.
        budget: Candidates at most.
    """

    def __init__(self, *, rounds: int, budget: int) -> None:
        self._rounds, self._budget = rounds, budget
        self._console = Console(stderr=True, highlight=False)
        self._status: Status | None = None
        self._judged_before: dict[str, Evaluation] = {}

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._status = self._console.status("starting")
            self._status.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
                 ) -> None:
        if self._status is not None:
            self._status.stop()

    def __call__(self, event: Event, trajectory: Trajectory) -> None:
        """Take one event."""
        with contextlib.suppress(BrokenPipeError):
            for line in self._lines(event, trajectory):
                self._say(line)
            if self._status is not None:
                self._status.update(self._now(event, trajectory))

    def _lines(self, event: Event, trajectory: Trajectory) -> list[str]:
        value = event.value
        match event.kind:
            case "device":
                if value.kind == "none":
                    target = f"{value.name} (sm_{value.arch})"
                    return [f"no GPU is used: written for {target}, verified on the CPU, no time is measured"]
                return [f"device {value.name} (sm_{value.arch})"]
            case "contract":
                return [f"contract {value.name} ({value.id}), {len(value.arguments)} arguments"]
            case "workload":
                return [f"workload {report.bound_words(value)}, roof {value.roof_us:.4g} us (estimated)"]
            case "baseline" if value.eager_us is not None:
                return [f"baseline eager {value.eager_us:.4g} us"]
            case "plan":
                scores = " ".join(f"{code}={score.value:g}" for code, score in value.scores.items())
                where = f"space {value.space}, direction {value.direction} ({scores})"
                return [f"round {value.round}: {where}: {value.reason}"]
            case "evaluation":
                return [self._judged(event, trajectory)]
            case "note" | "resumed":
                return [f"note: {value.text}"]
        return []

    def _judged(self, event: Event, trajectory: Trajectory) -> str:
        evaluation = event.value
        candidate = trajectory.candidate(evaluation.candidate_id)
        what = f"{candidate.space} {report.titled(candidate)}".strip() if candidate else ""
        if evaluation.failure is not None:
            said = f"{'slower' if evaluation.slower else 'rejected'}: {evaluation.failure.reason}"
        elif evaluation.timing is not None:
            said = f"{evaluation.timing.median_us:.4g} us, {evaluation.timing.speedup:.2f}x"
        elif trajectory.accepted(evaluation.candidate_id):
            said = f"verified {evaluation.verification.where}" if evaluation.verification else "verified"
        else:
            said = "not accepted"
        before, self._judged_before[evaluation.candidate_id] = (
            self._judged_before.get(evaluation.candidate_id), evaluation)
        if evaluation.confirmed:
            said += ", confirmed"
        elif before is not None and evaluation.counters is not None and before.counters is None:
            found = evaluation.counters
            said += f", profiled: {found.limiter or found.bound or found.status}"
        elif before is not None:
            said += ", timed again"
        line = report.progress_line(trajectory, rounds=self._rounds, budget=self._budget)
        return f"{line} | {evaluation.candidate_id} {what}: {said}"

    def _now(self, event: Event, trajectory: Trajectory) -> str:
        if not trajectory.plans:
            return STEPS.get(event.kind, "working")
        return report.progress_line(trajectory, rounds=self._rounds, budget=self._budget)

    def _say(self, line: str) -> None:
        if self._status is not None:
            self._console.print(line, markup=False, soft_wrap=True)
        else:
            print(line, file=sys.stderr, flush=True)
