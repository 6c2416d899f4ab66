"""Who uses a GPU when, across processes of this user: many verify at once, one times alone.

Two lock files a GPU. Whoever wants to time takes the *gate* first, so that no new verification begins,
then waits for those at work to end. A killed holder frees both, since the kernel drops its locks.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import tempfile
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path

from contracts.errors import WorkerError, WorkerTimeoutError
from engine import processes

POLL_S = 0.02
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
    return (folder or Path(tempfile.gettempdir())) / f"hiera-{os.getuid()}-gpu{index}.{kind}"


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


async def strangers(index: int, own: Iterable[int]) -> tuple[str, ...]:
    """Other processes that compute on the GPU, as far as the driver tells. In containers it may not."""
    command = ["nvidia-smi", f"--id={index}", "--query-compute-apps=pid,process_name", "--format=csv,noheader"]
    try:
        done = await processes.run(command, timeout_s=10)
    except (FileNotFoundError, WorkerTimeoutError):
        return ()
    ours = {str(pid) for pid in own}
    rows = [line.strip() for line in done.stdout.splitlines() if "," in line]
    # A process id that does not exist here belongs to another container, or is ours seen from outside.
    return tuple(row for row in rows if row.split(",")[0] not in ours and Path("/proc", row.split(",")[0]).exists())
