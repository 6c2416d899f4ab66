"""One compiler run: no network, few readable folders where the machine allows it, limits on time, memory and output."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from contracts.errors import WorkerTimeoutError
from engine import processes
from engine.evaluate.sandbox import distrust, find_isolation

MEMORY_BYTES = 8 << 30
FILE_BYTES = 256 << 20
LOG_BYTES = 256 << 10
TIMEOUT_S = 180.0
# Both streams go to a file, so that the file-size limit also bounds a flood of messages.
_LIMITED = 'ulimit -c 0; ulimit -v {memory}; ulimit -t {seconds}; ulimit -f {blocks}; exec "$@" >compiler.log 2>&1'


@dataclass(frozen=True, slots=True)
class Compiled:
    """A compiler that ran to its end, or was stopped.

    Attributes:
        status: Exit status; 124 when it ran out of time.
        log: Both streams, at most LOG_BYTES.
    """

    status: int
    log: str


async def compile_in(
    folder: Path,
    command: Sequence[str],
    *,
    readable: Sequence[str] = (),
    timeout_s: float = TIMEOUT_S,
    env: Mapping[str, str] | None = None,
) -> Compiled:
    """Run a compiler in `folder`, the only place it may write to (temporary files included).

    Args:
        folder: Private to this run.
        command: The compiler's command line.
        readable: Folders it must be able to read, where isolation hides the rest.
        timeout_s: Wall-clock limit; CPU seconds of each process are held to the same number.
        env: Further environment variables.
    """
    limits = _LIMITED.format(memory=_memory_bytes() >> 10, seconds=int(timeout_s) + 1, blocks=FILE_BYTES >> 9)
    shell = ["/bin/sh", "-c", limits, "sh", *command]
    variables = processes.child_environment({"TMPDIR": str(folder), "LC_ALL": "C", **(env or {})})
    while True:
        isolation = await find_isolation()
        try:
            done = await processes.run(
                isolation.wrap(shell, folder=folder, readable=readable), timeout_s=timeout_s, cwd=folder, env=variables
            )
        except WorkerTimeoutError:
            return Compiled(124, f"the compiler ran longer than {timeout_s:g} s and was stopped\n" + _log(folder))
        if _not_started(isolation.kind, done):
            # This machine's folders cannot be laid out inside.
            await distrust(isolation)
            continue
        return Compiled(done.status, done.output + _log(folder))


def _not_started(kind: str, done: processes.Finished) -> bool:
    """True when the trouble is the isolation's own: a compiler's messages go to its log, not to these streams."""
    says = {"bubblewrap": "bwrap:", "landlock": "shut_in:"}.get(kind)
    return says is not None and done.status != 0 and done.stderr.startswith(says)


def _memory_bytes() -> int:
    """What one compiler may take: a part of a small machine, so that a template bomb costs its own build only."""
    return min(MEMORY_BYTES, int(0.6 * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")))


def _log(folder: Path) -> str:
    try:
        with (folder / "compiler.log").open("rb") as file:
            return file.read(LOG_BYTES).decode(errors="replace")
    except OSError:
        return ""
