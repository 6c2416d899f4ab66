"""KernelBench's own measurements, driven from outside: the worker `kernelbench`, its time limits, the GPU's lock.

Nothing here decides whether a candidate is right or fast; it is reported beside what our judge found.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

from engine.evaluate import gpu_lock
from engine.processes import Worker
from engine.records import Build

WARMUPS, RUNS, TRIALS = 3, 100, 5
OPEN_S, MAKE_S, RUN_S = 240.0, 300.0, 180.0
# Slow references get fewer runs, and nobody holds the GPU alone for longer than a piece.
BUDGET_S, PIECE_S, FEWEST = 4.0, 0.5, 10
FLUSH_US = 200.0
VALIDATE_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where to measure.

    Attributes:
        python: The user's interpreter.
        device: `cuda:N` as the worker sees it, or `cpu`.
        environment: Further variables of the worker, such as which GPU it may see.
        locks: Folder of the GPU's lock files; None for the usual one.
        nice: Priority of the worker: compiling for baselines must give way to the search.
    """

    python: str
    device: str
    environment: Mapping[str, str]
    locks: Path | None = None
    nice: int = 0

    @property
    def index(self) -> int | None:
        """The GPU's index, None on the CPU."""
        return int(self.device.partition(":")[2] or 0) if self.device.startswith("cuda") else None

    def worker(self) -> Worker:
        """A process that can measure one task."""
        wrap = ("nice", "-n", str(self.nice)) if self.nice else ()
        return Worker("kernelbench", python=self.python, env=self.environment, wrap=wrap)

    @contextlib.asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """The GPU for us alone."""
        if self.index is None:
            yield
        else:
            async with gpu_lock.exclusive(self.index, folder=self.locks):
                yield


class Protocol:
    """Measures forms of one task in one worker process.

    Args:
        place: Where.
        file: The task's file.
    """

    def __init__(self, place: Place, file: Path) -> None:
        self.place, self._file = place, file
        self.worker = place.worker()
        self._copies = tempfile.TemporaryDirectory(prefix="hiera-protocol-")

    async def open(self) -> None:
        """Start the process and make model and inputs.

        Raises:
            HieraError: The task cannot be run there.
        """
        index = self.place.index
        locks = None if index is None else [str(gpu_lock.path_of(index, kind, self.place.locks))
                                            for kind in ("gate", "lock")]
        await self.worker.call("open", timeout_s=OPEN_S, file=str(self._file), device=self.place.device, locks=locks)

    async def make(self, which: str) -> float:
        """Make a form. Returns the seconds it took.

        Raises:
            HieraError: It cannot be made.
        """
        return (await self.worker.call("make", timeout_s=MAKE_S, which=which))["seconds"]

    async def candidate(self, folder: Path, source: str, build: Build) -> None:
        """Make the form `candidate` by a copy of the contract folder's torch_demo.py, with what was built already.

        Raises:
            HieraError: It cannot be made.
        """
        copy = Path(self._copies.name)
        for path in folder.iterdir():
            if path.is_file():
                shutil.copyfile(path, copy / path.name)
        (copy / "cuda_source.cu").write_text(source, encoding="utf-8")
        await self.worker.call("candidate", timeout_s=MAKE_S, folder=str(copy), extension=build.extension,
                               module=build.module)

    async def validate(self, which: str) -> dict[str, Any]:
        """KernelBench's verdict at 1e-4: `valid`, `trials`, `worst`."""
        return await self.worker.call("validate", timeout_s=RUN_S, which=which, trials=TRIALS, seconds=VALIDATE_S)

    async def times(self, which: str) -> dict[str, Any]:
        """Times of a form, and of eager in turn with it, as a result row holds them.

        Raises:
            HieraError: The process failed.
        """
        async with self.place.alone():
            first = await self._time(which, runs=3, warmups=WARMUPS)
            beside = await self._time("eager", runs=3, warmups=WARMUPS)
        pair_us = median(first) + median(beside) + 2 * FLUSH_US
        runs = RUNS if pair_us * RUNS <= BUDGET_S * 1e6 else max(FEWEST, int(BUDGET_S * 1e6 / pair_us))
        piece = max(1, min(runs, int(PIECE_S * 1e6 / pair_us)))
        own: list[float] = []
        eager: list[float] = []
        while len(own) < runs:
            count = min(piece, runs - len(own))
            async with self.place.alone():
                own += await self._time(which, runs=count)
                if which != "eager":
                    eager += await self._time("eager", runs=count)
            await asyncio.sleep(0)
        row: dict[str, Any] = {"warmups": WARMUPS, "runs": runs, "mean_us": fmean(own), "median_us": median(own),
                               "min_us": min(own), "max_us": max(own)}
        if eager:
            row |= {"eager_mean_us": fmean(eager), "eager_median_us": median(eager),
                    "speedup": median(eager) / median(own)}
        return row

    async def close(self) -> None:
        """End the process and remove what was copied for it."""
        await self.worker.close()
        self._copies.cleanup()

    async def _time(self, which: str, *, runs: int, warmups: int = 0) -> list[float]:
        reply = await self.worker.call("time", timeout_s=RUN_S, which=which, runs=runs, warmups=warmups)
        return reply["times_us"]
