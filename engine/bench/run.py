"""Run tasks through the loop, each in processes of its own: builds of one overlap with the timing of another.

A lane is a GPU (or the CPU). Timing stays exclusive: the evaluator holds the GPU's lock, across processes.
A task that fails, crashes or hangs costs itself only; what was searched is in its run folder, so a kill at
any moment costs seconds. Baselines are measured beside the search, in a process that gives way to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from contracts import codec
from contracts.contract import Precision, Space
from contracts.errors import ConfigError, HieraError
from engine.bench import baselines
from engine.bench.children import PROGRAM
from engine.bench.one import ONE_LEFT_S, TaskRunner
from engine.bench.protocol import Place
from engine.bench.provenance import provenance
from engine.bench.rows import ResultFile
from engine.bench.tasks import BenchTask, read_tasks, representative, select
from engine.bench.variants import FULL, job_of
from engine.devices import find_device
from engine.processes import Worker
from engine.store import cache_root
from engine.toolchain import find_python, find_toolchain
from engine.trajectory import Job, ModelOptions

# The sitting's last seconds are for asking tasks to stop and killing those that do not.
END_S = 12.0
FACTS_S = 120.0
BASELINE_NICE = 10
# Inductor's own processes would otherwise take every core from the builds of candidates.
COMPILE_THREADS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """What to run and how.

    Attributes:
        tasks: The JSONL file.
        out: Result file.
        ids, levels: Selection, as `tasks.select` reads it.
        sample: So many tasks only, of each level alike.
        seconds: Limit of this sitting; None for none.
        limit_s: Seconds a task may search; None for no limit but that of a task that hangs.
        resume: Go on with an existing result file.
        retry: Run tasks again whose last result is not verified.
        parallel: Tasks at a time on a GPU.
        gpus: CUDA indices as this process counts them, each with its own tasks; empty for `device`.
        variants: Variants of the search, by name.
        recheck: Judge every winner again in a fresh process, and by KernelBench's protocol.
        paired: Time candidates in turn with torch.compile too, which every search then compiles for itself.
        forms: Baselines to measure, of `baselines.FORMS`.
        baselines: Files with baselines of earlier sittings.
        commit: What to call the state of our text; None asks git.
        preset, budget, rounds, space, agent, precision, device, python, retime, confirm, profile, tokens, fixed_space,
            llm: As in `Job`.
    """

    tasks: Path
    out: Path
    ids: str | None = None
    levels: str | None = None
    sample: int | None = None
    seconds: float | None = None
    limit_s: float | None = None
    resume: bool = False
    retry: bool = False
    parallel: int = 2
    gpus: tuple[int, ...] = ()
    variants: tuple[str, ...] = (FULL,)
    recheck: bool = True
    paired: bool = True
    forms: tuple[str, ...] = baselines.FORMS
    baselines: tuple[Path, ...] = ()
    commit: str | None = None
    preset: str = "normal"
    budget: int | None = None
    rounds: int | None = None
    space: Space | None = None
    agent: str = "expert"
    precision: Precision = "match"
    device: str = "auto"
    python: str = ""
    retime: bool = True
    confirm: bool = True
    profile: bool = False
    tokens: int | None = None
    fixed_space: bool = False
    llm: ModelOptions = field(default_factory=ModelOptions)

    def job(self, file: Path, variant: str = FULL) -> Job:
        """One task's job.

        Raises:
            ConfigError: The variant does not fit the rest.
        """
        return job_of(variant, Job(
            file=str(file), name="Model", preset=self.preset, budget=self.budget, rounds=self.rounds,
            seconds=self.limit_s, space=self.space, agent=self.agent, precision=self.precision,
            # A lane sees its GPU only; should that be lost, a task fails and is not judged on the CPU instead.
            device="cuda:0" if self.gpus and self.device == "auto" else self.device, python=self.python,
            retime=self.retime, confirm=self.confirm, profile=self.profile, tokens=self.tokens,
            fixed_space=self.fixed_space, llm=self.llm))

    @property
    def settings(self) -> dict[str, Any]:
        """What a row says about how it was made."""
        return {"preset": self.preset, "budget": self.budget, "space": self.space, "agent": self.agent,
                "precision": self.precision, "limit_s": self.limit_s, "parallel": self.parallel,
                "gpus": len(self.gpus) or 1, "paired": self.paired, "retime": self.retime,
                **({"llm": codec.to_data(self.llm), "tokens": self.tokens, "fixed_space": self.fixed_space}
                   if self.agent == "llm" else {})}

    @property
    def work(self) -> Path:
        """Where task files and what is known of unfinished tasks lie."""
        return self.out.absolute().with_name(self.out.name + ".work")

    @property
    def baseline_file(self) -> Path:
        """Where baselines are kept, beside the results."""
        return baseline_file(self.out)


def baseline_file(out: Path) -> Path:
    """The baselines that belong to a result file."""
    return out.with_suffix(".baselines.jsonl")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """One GPU, or the CPU: what its processes see of the world.

    Attributes:
        name: Shown in progress lines; empty where there is one lane only.
        gpu: Index of the one GPU that its processes see, as we count; None where they see what we see.
        environment: Variables of its processes beside ours.
        locks: Folder of the GPU's lock files; None for the usual one.
    """

    name: str = ""
    gpu: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    locks: Path | None = None


def lanes(gpus: Sequence[int]) -> list[Lane]:
    """A lane for each GPU, with temporary files, locks and a cache of its own; without any, the one as it is."""
    if not gpus:
        return [Lane()]
    # A scheduler may have given us some of the machine's GPUs only: what we call 0 is then the first of those.
    ours = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    made = []
    for gpu in gpus:
        name = ours[gpu] if gpu < len(ours) else str(gpu)
        kept = re.sub(r"[^\w-]", "_", name)
        # The same folder in every sitting: whoever uses this GPU in such a lane meets the same locks.
        temporary = Path(tempfile.gettempdir()) / f"hiera-{os.getuid()}-lane{kept}"
        temporary.mkdir(mode=0o700, exist_ok=True)
        made.append(Lane(name=f"GPU {gpu}", gpu=gpu, locks=temporary, environment={
            "CUDA_VISIBLE_DEVICES": name, "TMPDIR": str(temporary), "HIERA_CACHE": str(cache_root() / f"gpu{kept}")}))
    return made


async def run(
    options: BenchOptions,
    *,
    on_line: Callable[[str], None] = lambda _line: None,
    cancel: asyncio.Event | None = None,
    program: Sequence[str] = PROGRAM,
) -> list[dict[str, Any]]:
    """Run the tasks and return all rows of the result file.

    Args:
        options: What to run.
        on_line: Called with one line of progress for every task that begins or ends.
        cancel: When set, tasks that run are stopped and kept as unfinished; the rest do not begin.
        program: The command line of a task's process; a stand-in for tests.

    Raises:
        HieraError: The task file, the selection, a variant or a GPU cannot be used, or a result cannot be written.
    """
    chosen = representative(select(read_tasks(options.tasks), options.ids, options.levels), options.sample)
    for variant in options.variants:
        options.job(options.tasks, variant)
    await _check_gpus(options)
    results = ResultFile(options.out, resume=options.resume)
    wanted = [(task, variant) for task in chosen for variant in options.variants]
    waiting = [item for item in wanted if not results.has(*item, verified=options.retry)]
    if len(waiting) < len(wanted):
        on_line(f"{len(wanted) - len(waiting)} of {len(wanted)} tasks have results already")
    files = {task.key: _task_file(options.work, task) for task in chosen}
    stop = asyncio.Event()
    bench = _Bench(options=options, results=results, on_line=on_line, stop=stop, files=files, total=len(waiting),
                   provenance=await provenance(options.commit), program=program)
    for item in waiting:
        bench.queue.put_nowait(item)
    watching = [asyncio.ensure_future(_set_after(stop, options.seconds)),
                asyncio.ensure_future(_pass_on(cancel or asyncio.Event(), stop))]
    try:
        await bench.all(chosen)
    finally:
        for watcher in watching:
            watcher.cancel()
    if left := sum(not results.has(*item) for item in wanted):
        on_line(f"{left} of {len(wanted)} tasks have no complete result yet: --resume goes on")
    return results.rows


async def _check_gpus(options: BenchOptions) -> None:
    """Refuse a GPU that is not there: its tasks would all fail."""
    if options.gpus and options.device.startswith("cuda"):
        raise ConfigError(f"--gpus and --device {options.device} both say which GPU", hint="leave one of them out")
    if options.device == "auto":
        for gpu in options.gpus:
            await find_device(f"cuda:{gpu}")


def _task_file(work: Path, task: BenchTask) -> Path:
    """The task as a file, which stays where it is: a run that is resumed reads it again."""
    file = work / f"level{task.level}_{task.id}" / "task.py"
    if not file.exists() or file.read_text(encoding="utf-8") != task.code:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(task.code, encoding="utf-8")
    return file


async def _set_after(stop: asyncio.Event, seconds: float | None) -> None:
    if seconds is not None:
        await asyncio.sleep(max(0.0, seconds - END_S))
        stop.set()


async def _pass_on(cancel: asyncio.Event, stop: asyncio.Event) -> None:
    await cancel.wait()
    stop.set()


@dataclass(slots=True, kw_only=True)
class _Bench:
    """The state that the lanes share."""

    options: BenchOptions
    results: ResultFile
    on_line: Callable[[str], None]
    stop: asyncio.Event
    files: Mapping[str, Path]
    total: int
    provenance: dict[str, Any]
    program: Sequence[str]
    queue: asyncio.Queue[tuple[BenchTask, str]] = field(default_factory=asyncio.Queue)
    done: int = 0

    async def all(self, chosen: Sequence[BenchTask]) -> None:
        """Every lane's workers, and the baselines beside them, until there is nothing left or it must stop."""
        begin = asyncio.get_running_loop().time()
        places = lanes(self.options.gpus)
        python = ""
        if self.total or self.options.forms:
            python, _why = await asyncio.to_thread(find_python, Path.cwd(), self.options.python or None)
            toolchain = await find_toolchain(python)
            self.provenance |= {"torch": toolchain.torch_version, "cuda": toolchain.torch_cuda}
        work = [asyncio.ensure_future(self.lane(lane, python, begin)) for lane in places
                for _ in range(min(self.options.parallel, self.queue.qsize()))]
        try:
            work += await self.baseline_lanes(places, chosen, python)
            await asyncio.gather(*work)
        finally:
            for job in work:
                job.cancel()
            await asyncio.gather(*work, return_exceptions=True)

    async def lane(self, lane: Lane, python: str, begin: float) -> None:
        """Take tasks until there are none, or no time for another."""
        given = self.options
        runner = TaskRunner(
            settings=given.settings, work=given.work, python=python, recheck=given.recheck, paired=given.paired,
            limit_s=given.limit_s, environment={**os.environ, **lane.environment}, program=self.program,
            provenance={**self.provenance, **({"lane": lane.name} if lane.name else {})}, stop=self.stop)
        loop = asyncio.get_running_loop()
        while not self.stop.is_set() and not self.queue.empty():
            seconds = self.options.seconds
            if seconds is not None and begin + seconds - END_S - loop.time() < ONE_LEFT_S:
                return
            task, variant = self.queue.get_nowait()
            head = f"{lane.name + ': ' if lane.name else ''}{task.key}{'' if variant == FULL else ' ' + variant}"
            self.on_line(f"{head} {task.name} begins")
            file = self.files[task.key]
            row = await runner.one(task, variant, self.options.job(file, variant), file)
            if row is None:
                continue
            self.results.append(row)
            self.done += row["complete"]
            self.on_line(f"[{self.done}/{self.total}] {row_words(row)}")

    async def baseline_lanes(self, places: Sequence[Lane], chosen: Sequence[BenchTask],
                             python: str) -> list[asyncio.Future[None]]:
        """One worker a GPU for what is missing; none without a GPU."""
        if not self.options.forms:
            return []
        devices = [await find_device(self.options.device if lane.gpu is None else f"cuda:{lane.gpu}")
                   for lane in places if self.options.device != "none"]
        if not devices or devices[0].kind != "cuda":
            return []
        kept = baselines.BaselineFile(self.options.baseline_file, self.options.baselines)
        facts = await _facts(python)
        if facts is None or facts["device"] is None:
            self.on_line("baselines are not measured: this interpreter's torch does not see the GPU")
            return []
        queue: asyncio.Queue[tuple[BenchTask, Path]] = asyncio.Queue()
        for task in chosen:
            queue.put_nowait((task, self.files[task.key]))
        made = []
        for lane, device in zip(places, devices, strict=True):
            index = 0 if lane.gpu is not None else device.index
            place = Place(python=python, device=f"cuda:{index}", locks=lane.locks, nice=BASELINE_NICE, environment={
                **lane.environment, "TORCHINDUCTOR_COMPILE_THREADS": str(COMPILE_THREADS),
                "TORCHINDUCTOR_CACHE_DIR": str(cache_root() / "inductor")})
            made.append(asyncio.ensure_future(self.until_stopped(baselines.measure(
                queue, place, {"device": device.name, "torch": facts["torch"]}, kept, forms=self.options.forms,
                provenance=self.provenance, on_line=self.on_line))))
        return made

    async def until_stopped(self, work: Any) -> None:
        """Do it until the sitting ends; a fault costs the rest of the baselines, not the search."""
        job, wish = asyncio.ensure_future(work), asyncio.ensure_future(self.stop.wait())
        try:
            await asyncio.wait({job, wish}, return_when=asyncio.FIRST_COMPLETED)
            if job.done() and (error := job.exception()) is not None:
                self.on_line(f"baselines end early: {type(error).__name__}: {error}")
        finally:
            wish.cancel()
            job.cancel()
            await asyncio.wait({job})


async def _facts(python: str) -> dict[str, Any] | None:
    worker = Worker("kernelbench", python=python)
    try:
        with contextlib.suppress(HieraError):
            return await worker.call("facts", timeout_s=FACTS_S)
        return None
    finally:
        await worker.close()


def row_words(row: Mapping[str, Any]) -> str:
    """A row in one line, such as `2/14 gemm_relu: 1.83x over eager [1.80, 1.86], 41 s`."""
    variant = row.get("variant", FULL)
    head = f"{row['level']}/{row['id']} {row['name']}{'' if variant == FULL else f' ({variant})'}"
    best, again = row.get("best"), row.get("reverified") or {}
    if not row.get("complete", True):
        return f"{head}: unfinished after {row['wall_s']:.0f} s, --resume goes on"
    if not best:
        return f"{head}: nothing verified ({row['failure']}), {row['wall_s']:.0f} s"
    doubt = f", NOT confirmed by a fresh process: {again.get('reason')}" if again.get("accepted") is False else ""
    if best["speedup"] is None:
        return f"{head}: verified, not measured, {row['wall_s']:.0f} s{doubt}"
    low, high = best["ci95"]
    versus = f", {best['speedup_vs_compile']:.2f}x over compile" if best["speedup_vs_compile"] else ""
    return (f"{head}: {best['speedup']:.2f}x over eager [{low:.2f}, {high:.2f}]{versus}, {best['space']}, "
            f"direction {best['direction'] or '-'}, {row['wall_s']:.0f} s{doubt}")
