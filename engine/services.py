"""What the loop needs from the rest of the engine, as one small interface.

The loop knows only these types, so that tests and other machines can stand in for each part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from contracts.contract import Contract
from engine.records import Baseline, Candidate, Device, Evaluation, WorkloadProfile
from engine.trajectory import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One extracted task.

    Attributes:
        contract: What to optimise.
        reduced: The same at small sizes, for runs without a GPU; None where none is needed.
        folder: The contract folder.
        reduced_folder: The reduced contract's folder, where there is one.
        source: The user's own kernel, which is candidate 0; None for a module.
        notes: Sentences for the user.
    """

    contract: Contract
    reduced: Contract | None = None
    folder: Path
    reduced_folder: Path | None = None
    source: str | None = None
    notes: tuple[str, ...] = field(default_factory=tuple)


class JobEvaluator(Protocol):
    """An evaluator prepared for one task."""

    async def baseline(self) -> Baseline:
        """Times of the reference; absent ones None."""
        ...

    async def evaluate(self, contract: Contract, candidate: Candidate) -> Evaluation:
        """Judge one candidate. A candidate that fails is an `Evaluation`, never an exception."""
        ...

    async def profiled(self, contract: Contract, candidate: Candidate, evaluation: Evaluation) -> Evaluation:
        """The same evaluation with counters, or with the reason why there are none."""
        ...

    async def retime(self, contract: Contract, candidates: Sequence[tuple[Candidate, Evaluation]]) -> list[Evaluation]:
        """Time the best again, against each other; the same evaluations with new timing, in order."""
        ...

    async def confirm(self, contract: Contract, candidate: Candidate, evaluation: Evaluation) -> Evaluation:
        """Rebuild with PyTorch's own headers and verify in a fresh process; sets `confirmed`."""
        ...

    def identity(self) -> dict[str, object]:
        """All about toolchain, interpreter and settings that could change an evaluation."""
        ...

    async def close(self) -> None:
        """End every process it started."""
        ...


class Services(Protocol):
    """How a job gets its task, device, workload and evaluator."""

    async def device(self, job: Job) -> Device:
        """The GPU of the job, or the target without one."""
        ...

    async def task(self, job: Job, folder: Path, device: Device) -> Task:
        """Extract the contract and write its folder."""
        ...

    def workload(self, contract: Contract, device: Device) -> WorkloadProfile:
        """Floors, roofs and estimated shares."""
        ...

    async def shares(
        self, job: Job, task: Task, device: Device, workload: WorkloadProfile
    ) -> tuple[WorkloadProfile, str]:
        """The profile with measured shares, and why they stay estimated (empty where they are measured)."""
        ...

    async def evaluator(
        self, job: Job, task: Task, device: Device, workload: WorkloadProfile, on_note: Callable[[str], None]
    ) -> JobEvaluator:
        """Prepare evaluation: reference, inputs, baselines."""
        ...

    async def close(self) -> None:
        """End what was begun ahead and not taken over by an evaluator, which has its own end."""
        ...
