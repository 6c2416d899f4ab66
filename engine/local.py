"""The services of this machine: extraction, device, workload and evaluation in local processes."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from contracts.contract import Contract
from contracts.errors import ConfigError, InputError
from engine.agents import Agent
from engine.agents.expert import ExpertAgent
from engine.devices import find_device
from engine.evaluate.build import Builder
from engine.evaluate.estimate import estimate
from engine.evaluate.local import LocalEvaluator, Settings
from engine.evaluate.session import Prestarted
from engine.evaluate.shares import measure_shares
from engine.example_inputs import parse_script
from engine.extract import extract, read_folder
from engine.extract_cu import extract_cu
from engine.own_names import lines_of, named
from engine.planning.own_kernel import launches_of
from engine.presets import limits
from engine.probing import Probe
from engine.processes import Worker
from engine.records import Baseline, Candidate, Device, Evaluation, WorkloadProfile
from engine.requests import CUDA_FILES
from engine.services import JobEvaluator, Task
from engine.store import cache_root
from engine.toolchain import find_python, find_toolchain
from engine.trajectory import Job
from engine.workload import profile_workload

# Raised when estimates change their meaning, so that stored ones are not mixed with new ones.
ESTIMATE = 2

T = TypeVar("T")


def make_agent(job: Job) -> Agent:
    """The agent that the job names.

    Raises:
        ConfigError: There is none of this name, or no model can be reached with these settings.
    """
    if job.agent == "expert":
        return ExpertAgent()
    if job.agent == "llm":
        return _llm_agent(job)
    raise ConfigError(f"there is no agent {job.agent!r}", hint="use expert or llm")


def _llm_agent(job: Job) -> Agent:
    # Imported here: the SDK takes a second that jobs without a model need not wait.
    from engine.agents.llm import LlmAgent
    from engine.llm.budget import Budget, read_price
    from engine.llm.client import Client
    from engine.llm.endpoint import resolve

    options = job.llm
    endpoint = resolve(options, os.environ)
    budget = Budget(tokens=job.tokens, dollars=options.dollars, price=read_price(options.prices, endpoint.model),
                    model=str(endpoint))
    rounds, candidates = limits(job)
    return LlmAgent(Client(endpoint, budget=budget, call_s=options.call_s), options, rounds=rounds, budget=candidates,
                    seconds=job.seconds)


class LocalServices:
    """Everything in processes of this machine, under the user's interpreter. See `engine.services.Services`.

    Args:
        settings: How much evaluation candidates get on a GPU; the usual where None.
    """

    def __init__(self, settings: Settings | None = None) -> None:
        self._settings = settings
        self._interpreter: asyncio.Task[tuple[str, str]] | None = None
        self._probe: asyncio.Task[Probe | None] | None = None
        self._prestarted: Prestarted | None = None
        self._builder: asyncio.Task[Builder] | None = None
        self._shared_parts: asyncio.Task[None] | None = None

    async def device(self, job: Job) -> Device:
        """The GPU of the job, or the target without one. What needs no device is begun meanwhile."""
        self._begin(job)
        return await find_device(job.device)

    async def task(self, job: Job, folder: Path, device: Device) -> Task:
        """Extract the contract of a module, a .cu file or a contract folder into `folder`.

        Raises:
            InputError: The user's file cannot be used as it is.
            ToolError: There is no interpreter with torch.
        """
        python = await self._python(job)
        # What needs no contract is done while there is none yet.
        file = Path(job.file)
        on_gpu = device.kind == "cuda"
        # A contract folder is read so fast that nothing is won, and often only candidates are judged against it.
        self._prestarted = Prestarted(python, f"cuda:{device.index}" if on_gpu else "cpu",
                                      shares=on_gpu and not file.is_dir())
        self._begin_builder(python)
        probe = await self._probe if self._probe is not None else None
        if file.is_dir():
            return await _of_folder(job, file, folder, python)
        if file.suffix in CUDA_FILES:
            found = await extract_cu(file, job.name, out=folder, python=python, precision=job.precision)
            return Task(contract=found.contract, folder=found.folder, source=found.source)
        script = parse_script(job.inputs, Path.cwd()) if job.inputs else None
        extracted = await extract(file, job.name, out=folder, python=python, precision=job.precision, inputs=script,
                                  reduce=device.kind == "none", probe=probe)
        reduced = extracted.reduced
        if reduced is not None and reduced.example.tensors == extracted.contract.example.tensors:
            # Small already: it is verified as it is.
            return Task(contract=extracted.contract, folder=extracted.folder)
        notes = ()
        if device.kind == "none" and extracted.reduced_reason:
            smaller = " the module is checked at smaller sizes" if reduced is not None else ""
            notes = (f"without a GPU{smaller}: {extracted.reduced_reason}",)
        return Task(contract=extracted.contract, folder=extracted.folder, reduced=reduced,
                    reduced_folder=extracted.reduced_folder, notes=notes)

    def workload(self, contract: Contract, device: Device) -> WorkloadProfile:
        """Floors, roofs and estimated shares."""
        return profile_workload(contract, device)

    async def shares(
        self, job: Job, task: Task, device: Device, workload: WorkloadProfile
    ) -> tuple[WorkloadProfile, str]:
        """The profile with shares of time measured on the GPU, in a process of its own."""
        warm = self._prestarted.take("shares") if self._prestarted is not None else None
        worker = warm or Worker("shares", python=await self._python(job))
        return await measure_shares(worker, contract=task.contract, folder=task.folder, device=device,
                                    workload=workload)

    async def evaluator(
        self, job: Job, task: Task, device: Device, workload: WorkloadProfile, on_note: Callable[[str], None]
    ) -> JobEvaluator:
        """Begin to prepare the judge and what all candidates share; the first of them are built meanwhile.

        Raises:
            ToolError: There is no nvcc, or none that fits, for a GPU.
        """
        builder = await asyncio.shield(self._begin_builder(await self._python(job)))
        toolchain = builder.toolchain
        if device.kind == "cuda":
            toolchain.require_nvcc()
        elif toolchain.nvcc is None or toolchain.nvcc_problem:
            on_note(f"candidates are not compiled for the GPU: {toolchain.nvcc_problem or 'there is no nvcc'}")
        evaluator = LocalJobEvaluator(builder, task, device, workload, self._prestarted,
                                      self._settings if device.kind == "cuda" else None,
                                      own_file=file.name if (file := Path(job.file)).suffix in CUDA_FILES else "")
        evaluator.inner.begin()
        return evaluator

    async def close(self) -> None:
        """End what was begun ahead and is still at work, or was never needed."""
        begun = [task for task in (self._interpreter, self._probe, self._builder, self._shared_parts) if task]
        for task in begun:
            task.cancel()
        if begun:
            await asyncio.wait(begun)
        made, self._probe = self._probe, None
        if made is not None and not made.cancelled() and made.exception() is None and (probe := made.result()):
            await probe.close()
        self._interpreter = self._builder = self._shared_parts = None
        prestarted, self._prestarted = self._prestarted, None
        if prestarted is not None:
            await prestarted.close()

    def _begin(self, job: Job) -> None:
        """Look for the interpreter; with it, a module's probe imports torch, and what all tasks share is built."""

        async def make() -> Probe | None:
            python = await self._python(job)
            self._begin_builder(python)
            file = Path(job.file).resolve()
            if file.suffix != ".py":
                return None
            probe = Probe(python, file)
            probe.begin()
            return probe

        if self._probe is None:
            self._probe = _quiet(asyncio.create_task(make()))

    def _begin_builder(self, python: str) -> asyncio.Task[Builder]:
        """The job's one builder. From now on it builds what does not depend on the contract."""

        async def make() -> Builder:
            builder = Builder(await find_toolchain(python), cache_root() / "builds")
            # Whoever needs these parts waits for them and meets their trouble again, so nobody waits here.
            self._shared_parts = _quiet(asyncio.create_task(builder.begin()))
            return builder

        if self._builder is None:
            self._builder = _quiet(asyncio.create_task(make()))
        return self._builder

    async def _python(self, job: Job) -> str:
        """The job's interpreter, looked for once."""
        if self._interpreter is None:
            near = Path(job.file)
            near = near if near.is_dir() else near.parent
            self._interpreter = _quiet(asyncio.create_task(asyncio.to_thread(find_python, near, job.python or None)))
        # Two may wait for it, and the one that is cancelled must not end it for the other.
        python, _why = await asyncio.shield(self._interpreter)
        return python


class LocalJobEvaluator:
    """The local evaluator of one task, with estimates where nothing can be measured.

    Args:
        builder: What candidates are built by.
        task: What they must do.
        device: Where they run.
        workload: What the work costs at least.
        prestarted: Processes that were begun ahead.
        settings: How much evaluation candidates get; the usual where None.
        own_file: The `.cu` file whose text the user's own candidate is; empty where the task is from no such file.
    """

    def __init__(self, builder: Builder, task: Task, device: Device, workload: WorkloadProfile,
                 prestarted: Prestarted | None = None, settings: Settings | None = None, *, own_file: str = "") -> None:
        self.inner = LocalEvaluator(
            builder.toolchain, device, task.contract, task.folder, builder,
            reduced=task.reduced, reduced_folder=task.reduced_folder, prestarted=prestarted, settings=settings)
        self._device, self._workload, self._own_file = device, workload, own_file

    async def baseline(self) -> Baseline:
        """Times of the reference; absent ones None."""
        return await self.inner.baseline()

    async def evaluate(self, contract: Contract, candidate: Candidate) -> Evaluation:
        """Judge one candidate."""
        found = self._told(candidate, await self.inner.evaluate(contract, candidate))
        if self._device.kind == "cuda" or found.build is None or not found.build.kernels:
            return found
        guess = estimate(found.build.kernels, self._workload, self._device,
                         launches=launches_of(candidate.source, contract.entry))
        return replace(found, estimate_us=guess.estimate_us, build=replace(found.build, kernels=guess.kernels))

    async def profiled(self, contract: Contract, candidate: Candidate, evaluation: Evaluation) -> Evaluation:
        """Add counters where a GPU and a build are there."""
        if self._device.kind != "cuda" or evaluation.build is None or evaluation.build.extension is None:
            return evaluation
        counters = await self.inner.profile(contract, candidate, evaluation.build)
        measured = counters.status == "measured"
        return replace(evaluation, counters=counters, stage="profiled" if measured else evaluation.stage)

    async def retime(self, contract: Contract, candidates: Sequence[tuple[Candidate, Evaluation]]) -> list[Evaluation]:
        """Time the best again, against each other."""
        again = await self.inner.retime(contract, candidates)
        return [self._told(candidate, found) for (candidate, _), found in zip(candidates, again, strict=True)]

    async def confirm(self, contract: Contract, candidate: Candidate, evaluation: Evaluation) -> Evaluation:
        """Rebuild with PyTorch's own headers and verify in a fresh process."""
        return self._told(candidate, await self.inner.confirm(contract, candidate, evaluation))

    def identity(self) -> dict[str, object]:
        """All that could change an evaluation."""
        named_by = {"own_file": self._own_file} if self._own_file else {}
        return {**self.inner.identity(), "estimate": ESTIMATE, **named_by}

    def _told(self, candidate: Candidate, found: Evaluation) -> Evaluation:
        """The evaluation; that of the user's own text names the user's file."""
        if not self._own_file or candidate.author != "user":
            return found
        return named(found, self._own_file, lines=lines_of(candidate.source))

    async def close(self) -> None:
        """End every process it started."""
        await self.inner.close()


def _quiet(task: asyncio.Task[T]) -> asyncio.Task[T]:
    """The same task; its failure is not shouted at exit where nobody waited for it."""
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return task


async def _of_folder(job: Job, given: Path, folder: Path, python: str) -> Task:
    """A copy of a contract folder: the run keeps what it was made from, and the user's folder stays as it is."""
    try:
        shutil.copytree(given, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__", ".git"))
    except (OSError, shutil.Error) as error:
        raise InputError(f"the contract folder cannot be copied: {error}", hint="check its permissions",
                         file=given) from None
    found = await read_folder(folder, python=python)
    source, reduced = folder / "cuda_source.cu", found.reduced
    if reduced is not None and reduced.example.tensors == found.contract.example.tensors:
        reduced = None  # Small already: it is verified as it is.
    return Task(contract=replace(found.contract, precision=job.precision), folder=folder, reduced=reduced,
                reduced_folder=found.reduced_folder if reduced is not None else None,
                source=source.read_text(encoding="utf-8") if source.is_file() else None)
