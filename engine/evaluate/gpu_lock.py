"""One timing at a time on a GPU, across processes of this user."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import tempfile
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

from contracts.errors import WorkerError, WorkerTimeoutError
from engine import processes

POLL_S = 0.05


@contextlib.asynccontextmanager
async def exclusive(index: int, *, timeout_s: float = 1800.0, folder: Path | None = None) -> AsyncIterator[None]:
    """Hold GPU `index` for timing. A killed holder frees it, since the kernel drops its lock.

    Raises:
        WorkerError: Somebody else held it for the whole of `timeout_s`.
    """
    path = (folder or Path(tempfile.gettempdir())) / f"hiera-{os.getuid()}-gpu{index}.lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        deadline = asyncio.get_running_loop().time() + timeout_s
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if asyncio.get_running_loop().time() > deadline:
                    raise WorkerError(
                        f"another job has been timing on GPU {index} for {timeout_s:g} s",
                        hint=f"wait for it, or end the process that holds {path}",
                    ) from None
                await asyncio.sleep(POLL_S)
        yield
    finally:
        os.close(descriptor)


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
