"""Who uses a GPU when, across processes of this user: many verify at once, one times alone.

Two lock files a GPU. Whoever wants to time takes the *gate* first, so that no new verification begins,
then waits for those at work to end. A killed holder frees both, since the kernel drops its locks.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import re
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from contracts.errors import WorkerError
from engine.nvml import Gpu

POLL_S = 0.02
WORKER = "/worker/main.py"
# GPUs that this process waits for now.
_waiting: set[int] = set()


def waiting_for() -> tuple[int, ...]:
    """GPUs that this process waits for because another job is at work on them."""
    return tuple(sorted(_waiting))


@contextlib.asynccontextmanager
async def exclusive(index: int, *, timeout_s: float = 1800.0, folder: Path | None = None) -> AsyncIterator[None]:
    """Hold GPU `index` alone, for timing.

    Raises:
        WorkerError: Others held it for the whole of `timeout_s`.
    """
    with _file(index, "gate", folder) as gate, _file(index, "lock", folder) as lock:
        await _take(gate, fcntl.LOCK_EX, index, timeout_s)
        await _take(lock, fcntl.LOCK_EX, index, timeout_s)
        yield


@contextlib.asynccontextmanager
async def shared(index: int, *, timeout_s: float = 1800.0, folder: Path | None = None) -> AsyncIterator[None]:
    """Use GPU `index` beside others who do not time, such as for verification.

    Raises:
        WorkerError: Somebody held it alone for the whole of `timeout_s`.
    """
    with _file(index, "lock", folder) as lock:
        with _file(index, "gate", folder) as gate:
            await _take(gate, fcntl.LOCK_SH, index, timeout_s)
            await _take(lock, fcntl.LOCK_SH, index, timeout_s)
        yield


def path_of(index: int, kind: str, folder: Path | None = None) -> Path:
    """The file behind the `gate` or the `lock` of a GPU, for programs that cannot import us."""
    return (folder or Path(tempfile.gettempdir())) / f"hiera-{os.getuid()}-gpu{_card(index)}.{kind}"


def _card(index: int) -> str:
    """The card behind a CUDA index: what CUDA_VISIBLE_DEVICES names at that place, since jobs may differ in it."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    name = named[index].strip() if index < len(named) else ""
    return re.sub(r"\W", "-", name) or str(index)


@contextlib.contextmanager
def _file(index: int, kind: str, folder: Path | None) -> Iterator[int]:
    descriptor = os.open(path_of(index, kind, folder), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


async def _take(descriptor: int, how: int, index: int, timeout_s: float) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    try:
        while True:
            try:
                fcntl.flock(descriptor, how | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                _waiting.add(index)
                if loop.time() > deadline:
                    raise WorkerError(
                        f"another job has been using GPU {index} for {timeout_s:g} s",
                        hint="wait for it, or end the process that runs it",
                    ) from None
                await asyncio.sleep(POLL_S)
    finally:
        _waiting.discard(index)


def strangers(gpu: Gpu) -> tuple[str, ...]:
    """Other programs' processes that have the GPU open, as far as the driver tells; in containers it may not.

    Our own workers are none, those of other jobs neither: whoever holds the lock times alone, and they wait for it.
    """
    found = []
    for pid in sorted(gpu.processes() or {}):
        try:
            words = Path("/proc", str(pid), "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue  # It belongs to another container, or is ours seen from outside.
        if not any(word.endswith(WORKER) for word in words):
            found.append(f"{pid} {Path(words[0]).name}")
    return tuple(found)
