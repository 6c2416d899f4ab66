"""Run tasks through the loop, several at a time, so that the builds of one overlap with the timing of another.

Timing stays exclusive: the evaluator holds the GPU's lock, across tasks and processes. A task that
fails, crashes or hangs costs itself only.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from contracts import codec
from contracts.contract import Precision, Space
from contracts.errors import HieraError
from engine.bench.rows import ResultFile, result_row
from engine.bench.tasks import BenchTask, read_tasks, select
from engine.trajectory import Event, Job, ModelOptions, Trajectory

# After its limit a task may still time its best again and confirm its winner; then it is cancelled, then killed.
FINISH_S = 180.0
# Without a limit of the user's, a task that hangs must still not hold the others up for ever.
HANGS_AFTER_S = 3600.0
CANCEL_S = 20.0


class Optimize(Protocol):
    """The loop's public function, as far as a benchmark needs it."""

    def __call__(self, job: Job, *, on_event: Callable[[Event, Trajectory], None],
                 cancel: asyncio.Event) -> Awaitable[Trajectory]:
        """Run one job."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """What to run and how.

    Attributes:
        tasks: The JSONL file.
        out: Result file.
        ids, levels: Selection, as `tasks.select` reads it.
        limit_s: Seconds a task may search; None for no limit but that of a task that hangs.
        resume: Go on with an existing result file.
        parallel: Tasks at a time.
        preset, budget, rounds, space, agent, precision, device, python, confirm, profile, tokens, fixed_space,
            llm: As in `Job`.
    """

    tasks: Path
    out: Path
    ids: str | None = None
    levels: str | None = None
    limit_s: float | None = None
    resume: bool = False
    parallel: int = 2
    preset: str = "normal"
    budget: int | None = None
    rounds: int | None = None
    space: Space | None = None
    agent: str = "expert"
    precision: Precision = "match"
    device: str = "auto"
    python: str = ""
    confirm: bool = True
    profile: bool = False
    tokens: int | None = None
    fixed_space: bool = False
    llm: ModelOptions = field(default_factory=ModelOptions)

    def job(self, file: Path) -> Job:
        """One task's job."""
        return Job(file=str(file), name="Model", preset=self.preset, budget=self.budget, rounds=self.rounds,
                   seconds=self.limit_s, space=self.space, agent=self.agent, precision=self.precision,
                   device=self.device, python=self.python, confirm=self.confirm, profile=self.profile,
                   tokens=self.tokens, fixed_space=self.fixed_space, llm=self.llm)

    @property
    def settings(self) -> dict[str, Any]:
        """What a row says about how it was made."""
        return {"preset": self.preset, "budget": self.budget, "space": self.space, "agent": self.agent,
                "precision": self.precision, "limit_s": self.limit_s, "parallel": self.parallel,
                **({"llm": codec.to_data(self.llm), "tokens": self.tokens, "fixed_space": self.fixed_space}
                   if self.agent == "llm" else {})}


async def run(
    options: BenchOptions,
    *,
    on_line: Callable[[str], None] = lambda _line: None,
    cancel: asyncio.Event | None = None,
    optimize: Optimize | None = None,
) -> list[dict[str, Any]]:
    """Run the tasks and return all rows of the result file.

    Args:
        options: What to run.
        on_line: Called with one line of progress for every task that begins or ends.
        cancel: When set, tasks that run are cancelled and get no row; the rest do not begin.
        optimize: The loop; a stand-in for tests.

    Raises:
        InputError: The task file or the selection cannot be used.
        ConfigError: The result file cannot be written.
    """
    if optimize is None:
        from engine.optimize import optimize as loop

        optimize = loop
    cancel = cancel or asyncio.Event()
    chosen = select(read_tasks(options.tasks), options.ids, options.levels)
    results = ResultFile(options.out, resume=options.resume)
    waiting = [task for task in chosen if not results.has(task)]
    if len(waiting) < len(chosen):
        on_line(f"{len(chosen) - len(waiting)} of {len(chosen)} tasks have results already")
    queue: asyncio.Queue[BenchTask] = asyncio.Queue()
    for task in waiting:
        queue.put_nowait(task)
    with tempfile.TemporaryDirectory(prefix="hiera-bench-") as folder:
        bench = _Bench(options=options, results=results, folder=Path(folder), on_line=on_line, cancel=cancel,
                       optimize=optimize, total=len(waiting))
        workers = [asyncio.ensure_future(bench.work(queue)) for _ in range(min(options.parallel, len(waiting)))]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
    return results.rows


@dataclass(slots=True, kw_only=True)
class _Bench:
    """The state that the workers share."""

    options: BenchOptions
    results: ResultFile
    folder: Path
    on_line: Callable[[str], None]
    cancel: asyncio.Event
    optimize: Optimize
    total: int
    done: int = 0

    async def work(self, queue: asyncio.Queue[BenchTask]) -> None:
        """Take tasks until there are none or the user cancels."""
        while not self.cancel.is_set() and not queue.empty():
            task = queue.get_nowait()
            row = await self.one(task)
            if row is not None:
                self.results.append(row)
                self.done += 1
                self.on_line(f"[{self.done}/{self.total}] {row_words(row)}")

    async def one(self, task: BenchTask) -> dict[str, Any] | None:
        """One task's row; None when the user cancelled it."""
        file = self.folder / f"level{task.level}_{task.id}" / "task.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(task.code, encoding="utf-8")
        self.on_line(f"{task.key} {task.name} begins")
        seen: list[Trajectory] = []
        begin = time.monotonic()
        failure = await self.guarded(task, file, seen)
        if self.cancel.is_set():
            return None
        return result_row(task, seen[0] if seen else None, settings=self.options.settings,
                          wall_s=time.monotonic() - begin, failure=failure)

    async def guarded(self, task: BenchTask, file: Path, seen: list[Trajectory]) -> str | None:
        """Run the loop under the hard limit. Returns why it failed, or None."""
        own_cancel = asyncio.Event()

        def note(_event: Event, trajectory: Trajectory) -> None:
            if not seen:
                seen.append(trajectory)

        async def loop() -> Trajectory:
            return await self.optimize(self.options.job(file), on_event=note, cancel=own_cancel)

        limit_s = HANGS_AFTER_S if self.options.limit_s is None else self.options.limit_s + FINISH_S
        job = asyncio.ensure_future(loop())
        wish = asyncio.ensure_future(self.cancel.wait())
        try:
            await asyncio.wait({job, wish}, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
            if not job.done():
                own_cancel.set()
                await asyncio.wait({job}, timeout=CANCEL_S)
            if not job.done():
                job.cancel()
                await asyncio.wait({job}, timeout=CANCEL_S)
                return f"time: stopped hard {limit_s:g} s after its begin"
            seen[:] = [job.result()]
        except HieraError as error:
            return str(error)
        except asyncio.CancelledError:
            if not job.cancelled():
                raise
            return "cancelled"
        except Exception as error:  # noqa: BLE001 - a fault of ours in one task must not cost the others.
            return f"internal error in task {task.key}: {type(error).__name__}: {error}"
        finally:
            wish.cancel()
            if not job.done():
                job.cancel()
        return None


def row_words(row: dict[str, Any]) -> str:
    """A row in one line, such as `2/14 gemm_relu: 1.83x over eager [1.80, 1.86], 41 s`."""
    head = f"{row['level']}/{row['id']} {row['name']}"
    best = row.get("best")
    if not best:
        return f"{head}: nothing verified ({row['failure']}), {row['wall_s']:.0f} s"
    if best["speedup"] is None:
        return f"{head}: verified, not measured, {row['wall_s']:.0f} s"
    low, high = best["ci95"]
    versus = f", {best['speedup_vs_compile']:.2f}x over compile" if best["speedup_vs_compile"] else ""
    return (f"{head}: {best['speedup']:.2f}x over eager [{low:.2f}, {high:.2f}]{versus}, {best['space']}, "
            f"direction {best['direction'] or '-'}, {row['wall_s']:.0f} s")
