"""What a user gets without us: the module as it is, torch.compile, and a CUDA graph of the eager run.

Compiled forms live in a judge of their own, so that compiling neither delays nor disturbs the judge.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from statistics import median

from contracts.errors import HieraError, WorkerError
from engine.evaluate import timing
from engine.evaluate.session import Session, own
from engine.evaluate.verify import seeds
from engine.processes import Worker
from engine.records import Baseline, Device
from engine.toolchain import Toolchain

COMPILE_S = 600.0
# A task this large leaves no room for a second copy of everything while candidates are judged.
LARGE_SHARE = 1 / 16
TIME_S = 120.0
COMPILED_BYTES = 1 << 30
CALLS, LEAST_CALLS, BLOCKS, BLOCK_S = 10, 3, 5, 0.1
MODES = {"off": (), "default": ("compile",), "best": ("compile", "compile max-autotune", "compile reduce-overhead")}


class Baselines:
    """Measures the reference's times, and keeps the best compiled form ready for paired timing.

    Args:
        session: The candidates' session, whose judge times the eager reference.
        toolchain: The user's interpreter.
        folder: The contract folder.
        device: Where.
        effort: `off`, `default` or `best`: which modes of torch.compile to try.
        beside: See `Session`.
    """

    def __init__(
        self, session: Session, toolchain: Toolchain, folder: Path, device: Device, effort: str, *,
        beside: Callable[[], contextlib.AbstractAsyncContextManager[None]] = contextlib.nullcontext,
    ) -> None:
        self._session, self._device, self._beside = session, device, beside
        self._modes = MODES[effort] if device.kind == "cuda" and session.contract.reference != "cuda" else ()
        self._other = Session(toolchain, session.contract, folder, session.device, budget_bytes=lambda: COMPILED_BYTES,
                              beside=beside)
        self._compiling: asyncio.Task[None] | None = None
        self._ready: dict[str, float] = {}
        self._notes: list[str] = []
        self._best: str | None = None
        self._measured: Baseline | None = None

    def start(self) -> None:
        """Begin to compile in the background, unless the memory for a second copy of everything is dear."""
        if self._modes and self._compiling is None and not self._large():
            self._compiling = asyncio.create_task(self._compile())

    async def compiling(self) -> None:
        """Wait until torch.compile has done what it can; candidates may be judged meanwhile."""
        if self._modes and self._compiling is None:
            if self._session.is_open:
                with contextlib.suppress(HieraError):
                    await own(self._session.judge).call("release", timeout_s=TIME_S)
            self._compiling = asyncio.create_task(self._compile())
        if self._compiling is not None:
            await asyncio.shield(self._compiling)

    def compiled(self) -> tuple[Worker, str] | None:
        """The compiled reference to time against, or None while there is none."""
        if self._best is None or not self._other.is_open:
            return None
        return self._other.judge, self._best

    async def measure(self) -> Baseline:
        """All times. The caller holds the GPU and has waited for `compiling`."""
        if self._device.kind != "cuda":
            return Baseline(notes=("not measured: no GPU is used",))
        if self._measured is not None:
            return self._measured
        judge = own(self._session.judge)
        await _fill(judge)
        eager = await _time(judge, "eager")
        graph: float | None = None
        if not self._large() and not any(a.mutable for a in self._session.contract.arguments):
            try:
                await judge.call("compile", timeout_s=COMPILE_S, which="graph")
                graph = await _time(judge, "graph")
            except WorkerError as error:
                self._notes.append(f"CUDA graph not measured: {_short(error)}")
                self._session.spoil()  # The caller holds the GPU, and opening waits for it.
        times: dict[str, float] = {}
        for which in self._ready:
            try:
                times[which] = await _time(own(self._other.judge if self._other.is_open else None), which)
            except WorkerError as error:
                self._notes.append(f"{which} not measured: {_short(error)}")
        self._best = min(times, key=times.__getitem__, default=None)
        best = self._best
        self._measured = Baseline(
            eager_us=eager, compile_us=times[best] if best else None, compile_mode=best,
            compile_s=self._ready[best] if best else None, graph_us=graph, notes=tuple(self._notes))
        if self._large():
            self._best = None
            await self._other.close()
        return self._measured

    def _large(self) -> bool:
        need = self._session.opened["set_bytes"] + self._session.opened["output_bytes"]
        return need > LARGE_SHARE * self._device.memory_bytes

    async def close(self) -> None:
        """Stop compiling and end the process."""
        if self._compiling is not None:
            self._compiling.cancel()
            with contextlib.suppress(asyncio.CancelledError, HieraError):
                await self._compiling
            self._compiling = None
        await self._other.close()

    async def _compile(self) -> None:
        try:
            await self._other.open_judge()
            judge = own(self._other.judge)
            async with self._beside():
                await _fill(judge)
        except HieraError as error:
            self._notes.append(f"torch.compile not measured: {_short(error)}")
            return
        for which in self._modes:
            try:
                reply = await judge.call("compile", timeout_s=COMPILE_S, which=which)
            except HieraError as error:
                self._notes.append(f"{which} not measured: {_short(error)}")
                if self._other.judge is None or self._other.judge.pid is None:
                    return
            else:
                self._ready[which] = reply["seconds"]
                self._best = self._best or which


async def _fill(judge: Worker) -> None:
    drawn = seeds()
    await judge.call("fill_sets", timeout_s=TIME_S, family="example", seed=next(drawn) >> 8,
                     fixed_seed=next(drawn) >> 8, fixed=True, poison=True)


async def _time(judge: Worker, which: str) -> float:
    """Median of a few blocks, microseconds a call. Blocks of slow calls are shorter; the first one warms up."""
    found, calls = [], LEAST_CALLS
    for number in range(BLOCKS + 1):
        reply = await judge.call("time", timeout_s=TIME_S, which=which, order=[0] * calls, seed=number)
        found.append(timing.without(reply["empty_us"], [median(reply["times_us"])])[0])
        calls = min(CALLS, max(LEAST_CALLS, int(BLOCK_S * 1e6 / found[-1])))
    return median(found[1:])


def _short(error: HieraError) -> str:
    return error.problem.splitlines()[0][:300]
