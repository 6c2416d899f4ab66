"""One compiler run: no network, few readable folders where the machine allows it, limits on time, memory and output."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from contracts.errors import WorkerTimeoutError
from engine import processes

MEMORY_BYTES = 8 << 30
FILE_BYTES = 256 << 20
LOG_BYTES = 256 << 10
TIMEOUT_S = 180.0
_SYSTEM_FOLDERS = (
    "/usr", "/lib", "/lib64", "/bin", "/sbin", "/opt", "/etc/alternatives", "/etc/ld.so.cache", "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
)
# Both streams go to a file, so that the file-size limit also bounds a flood of messages.
_LIMITED = 'ulimit -c 0; ulimit -v {memory}; ulimit -t {seconds}; ulimit -f {blocks}; exec "$@" >compiler.log 2>&1'
_BUBBLEWRAP = (
    "--unshare-net", "--unshare-pid", "--unshare-ipc", "--die-with-parent", "--proc", "/proc", "--dev", "/dev",
    "--tmpfs", "/tmp",
)


@dataclass(frozen=True, slots=True)
class Compiled:
    """A compiler that ran to its end, or was stopped.

    Attributes:
        status: Exit status; 124 when it ran out of time.
        log: Both streams, at most LOG_BYTES.
    """

    status: int
    log: str


@dataclass(frozen=True, slots=True)
class Isolation:
    """How compilers are shut in.

    Attributes:
        name: For reports.
        command: Prefix of the command line.
        private_files: Only named folders are visible.
    """

    name: str
    command: tuple[str, ...] = ()
    private_files: bool = False

    def wrap(self, command: Sequence[str], *, folder: Path, readable: Sequence[str]) -> list[str]:
        """`command` as run inside, with `folder` writable and `readable` visible."""
        if not self.private_files:
            return [*self.command, *command]
        binds: list[str] = []
        visible: list[Path] = []
        for name in [*_SYSTEM_FOLDERS, *readable]:
            # A folder below one that is bound already cannot be, and need not be, bound again.
            for path in (Path(name), Path(name).resolve()):
                if not any(path.is_relative_to(other) for other in visible):
                    visible.append(path)
                    binds += ["--ro-bind-try", str(path), str(path)]
        return [*self.command, *binds, "--bind", str(folder), str(folder), "--chdir", str(folder), "--", *command]


LIMITS_ONLY = Isolation("resource limits only")
_known: list[Isolation] = []


async def find_isolation() -> Isolation:
    """The strongest isolation that works here: bubblewrap, else a network namespace, else limits only."""
    if not _known:
        _known.append(await _find_isolation(bubblewrap=True))
    return _known[0]


async def _find_isolation(*, bubblewrap: bool) -> Isolation:
    choices = []
    if bubblewrap and shutil.which("bwrap"):
        choices.append(Isolation("bubblewrap", ("bwrap", *_BUBBLEWRAP), private_files=True))
    if shutil.which("unshare"):
        choices.append(Isolation("network namespace", ("unshare", "--net")))
        choices.append(Isolation("network namespace", ("unshare", "--net", "--map-root-user")))
    with tempfile.TemporaryDirectory(prefix="hiera-") as name:
        for choice in choices:
            command = choice.wrap(["true"], folder=Path(name), readable=())
            try:
                if (await processes.run(command, timeout_s=10)).status == 0:
                    return choice
            except (OSError, WorkerTimeoutError):
                continue
    return LIMITS_ONLY


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
    limits = _LIMITED.format(memory=MEMORY_BYTES >> 10, seconds=int(timeout_s) + 1, blocks=FILE_BYTES >> 9)
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
        if isolation.private_files and done.status != 0 and done.stderr.startswith("bwrap:"):
            # This machine's folders cannot be laid out inside: the next best isolation, from now on.
            _known[:] = [await _find_isolation(bubblewrap=False)]
            continue
        return Compiled(done.status, done.output + _log(folder))


def _log(folder: Path) -> str:
    try:
        with (folder / "compiler.log").open("rb") as file:
            return file.read(LOG_BYTES).decode(errors="replace")
    except OSError:
        return ""
