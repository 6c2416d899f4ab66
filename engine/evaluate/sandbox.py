"""How compilers and candidates are shut in, from the strongest that works here to the weakest, each with its name.

A compiler sees the system's folders, the few it is told of, and one private folder that it may write to. A candidate
sees the file system read-only, with the places where people keep keys and other programs keep files hidden, and one
private folder. Neither has a network. What each name stands for is in docs/sandbox.md.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from contracts.errors import WorkerTimeoutError
from engine import processes

SHUT_IN = Path(__file__).parent.parent / "worker" / "shut_in.py"
TRIAL_S = 10.0
SYSTEM_FOLDERS = (
    "/usr", "/lib", "/lib64", "/bin", "/sbin", "/opt", "/etc/alternatives", "/etc/ld.so.cache", "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
)
# Where people keep keys and histories. A candidate has no use for any of them.
HIDDEN_AT_HOME = (
    ".ssh", ".gnupg", ".aws", ".azure", ".config", ".docker", ".kube", ".huggingface", ".netrc", ".pgpass", ".npmrc",
    ".pypirc", ".git-credentials", ".gitconfig", ".bash_history", ".zsh_history", ".python_history",
    ".cache/huggingface/token", ".mozilla", ".local/share/keyrings",
)
HIDDEN_FOLDERS = ("/tmp", "/var/tmp", "/run", "/mnt", "/media", "/srv")
# Of what is hidden with /run, what NVIDIA's driver and some distributions need.
SHOWN_AGAIN = ("/run/nvidia-persistenced", "/run/nvidia", "/run/opengl-driver", "/run/current-system")
# What root may change about the machine without any capability.
MACHINE_SETTINGS = ("/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs")
DEVICE_FOLDER, DEVICES = Path("/dev"), ("nvidia*", "dxg", "nvhost*")
_COMPILERS = (
    "--unshare-net", "--unshare-pid", "--unshare-ipc", "--die-with-parent", "--cap-drop", "ALL", "--proc", "/proc",
    "--dev", "/dev", "--tmpfs", "/tmp",
)
NOT_INSTALLED = "bubblewrap is not installed"


@dataclass(frozen=True, slots=True)
class Isolation:
    """How compilers are shut in.

    Attributes:
        name: For reports.
        kind: What sets the rules.
        command: Prefix of the command line.
    """

    name: str
    kind: Literal["bubblewrap", "landlock", "limits"] = "limits"
    command: tuple[str, ...] = ()

    @property
    def private_files(self) -> bool:
        """Only named folders can be read."""
        return self.kind != "limits"

    def wrap(self, command: Sequence[str], *, folder: Path, readable: Sequence[str]) -> list[str]:
        """`command` as run inside, with `folder` writable and `readable` visible."""
        if self.kind == "limits":
            return [*self.command, *command]
        visible: list[Path] = []
        for name in [*SYSTEM_FOLDERS, *readable]:
            # A folder below one that is shown already cannot be, and need not be, shown again.
            for path in (Path(name), Path(name).resolve()):
                if not any(path.is_relative_to(other) for other in visible):
                    visible.append(path)
        if self.kind == "landlock":
            return [*self.command, str(folder), *map(str, visible), "--", *command]
        binds = [word for path in visible for word in ("--ro-bind-try", str(path), str(path))]
        return [*self.command, *binds, "--bind", str(folder), str(folder), "--chdir", str(folder), "--", *command]


LIMITS_ONLY = Isolation("resource limits only")
_known: list[Isolation] = []
_distrusted: set[str] = set()
_candidates: dict[bool, tuple[bool, str]] = {}


async def find_isolation() -> Isolation:
    """The strongest way to shut a compiler in that works here."""
    if not _known:
        _known.append(await strongest())
    return _known[0]


async def distrust(isolation: Isolation) -> None:
    """Do not use `isolation` from now on, such as because it failed a real build: the next best takes its place."""
    _distrusted.add(isolation.kind)
    if isolation in _known:
        _known[:] = [await strongest()]


async def strongest() -> Isolation:
    """The first choice that runs a trial command, of those that are not distrusted."""
    for choice in _choices():
        if choice.kind not in _distrusted and await _works(choice):
            return choice
    return LIMITS_ONLY


def _choices() -> list[Isolation]:
    choices = []
    if shutil.which("bwrap"):
        choices.append(Isolation("bubblewrap", "bubblewrap", ("bwrap", *_COMPILERS)))
    choices.append(Isolation("landlock and seccomp", "landlock", (sys.executable, "-I", "-S", str(SHUT_IN))))
    if shutil.which("unshare"):
        choices.append(Isolation("network namespace", command=("unshare", "--net")))
        choices.append(Isolation("network namespace", command=("unshare", "--net", "--map-root-user")))
    return choices


async def _works(choice: Isolation) -> bool:
    with tempfile.TemporaryDirectory(prefix="hiera-") as name:
        return await _runs(choice.wrap(["true"], folder=Path(name), readable=())) == ""


async def _runs(command: Sequence[str]) -> str:
    """Empty where a trial command ran, else why not."""
    try:
        done = await processes.run(command, timeout_s=TRIAL_S)
    except (OSError, WorkerTimeoutError) as error:
        return str(error)
    return "" if done.status == 0 else (done.output.strip().splitlines() or [f"status {done.status}"])[-1]


async def candidate_prefix(shared: Path, *, cuda: bool, python: str) -> list[str]:
    """What a candidate's command line begins with: bubblewrap where it works, else nothing."""
    works, _why = await candidate_sandbox(cuda=cuda)
    return candidate_command(shared, cuda=cuda, python=python) if works else []


async def tool_prefix(folder: Path, *, python: str, shown: Sequence[Path]) -> list[str]:
    """What the command line of a profiler begins with, which runs a candidate in a process of its own.

    It keeps the rights it has, because counters need them, and may write to `folder` only. Empty without bubblewrap.
    """
    works, _why = await candidate_sandbox(cuda=True)
    return candidate_command(folder, cuda=True, python=python, rights=True, shown=shown) if works else []


async def candidate_report(*, cuda: bool) -> dict[str, str]:
    """For the verdict: whether bubblewrap is in force, or why it is not."""
    works, why = await candidate_sandbox(cuda=cuda)
    return {"bubblewrap": "in force" if works else why}


async def give_up(why: str, *, cuda: bool) -> bool:
    """Run candidates without bubblewrap from now on, because none would start in it. False where none did anyway."""
    works, _ = await candidate_sandbox(cuda=cuda)
    _candidates[cuda] = (False, f"a process did not start in bubblewrap: {why}") if works else _candidates[cuda]
    return works


def words(report: Mapping[str, str]) -> str:
    """The sandbox of a verdict in words: what was in force, and what was not and why."""
    held = ["own process", *(name for name, state in report.items() if state == "in force")]
    missing = [f"{name} ({state})" for name, state in report.items() if state != "in force"]
    return " + ".join(held) + (f"; without {', '.join(missing)}" if missing else "")


async def candidate_sandbox(*, cuda: bool) -> tuple[bool, str]:
    """Whether candidates run in bubblewrap here, and why not. Tried once."""
    if cuda not in _candidates:
        _candidates[cuda] = await _try_candidate(cuda)
    return _candidates[cuda]


async def _try_candidate(cuda: bool) -> tuple[bool, str]:
    if not shutil.which("bwrap"):
        return False, NOT_INSTALLED
    with tempfile.TemporaryDirectory(prefix="hiera-") as name:
        why = await _runs([*candidate_command(Path(name), cuda=cuda, python=sys.executable), "true"])
    return not why, why


def candidate_command(
    shared: Path, *, cuda: bool, python: str, rights: bool = False, shown: Sequence[Path] = ()
) -> list[str]:
    """The prefix that starts a candidate in bubblewrap.

    With a GPU the process and IPC namespaces stay the engine's: CUDA's memory handles are not to be had across them.

    Args:
        shared: The session's private folder, the only one that stays writable.
        cuda: The GPU's device files are needed.
        python: The interpreter; where it lies in a hidden place, its environment is shown again.
        rights: Keep the capabilities that the engine has.
        shown: Further folders to show again, read-only.
    """
    command = ["bwrap", "--unshare-net", "--unshare-uts", "--die-with-parent",
               *(() if rights else ("--cap-drop", "ALL")), "--ro-bind", "/", "/", "--dev", "/dev",
               # Read-only in here, so that it may be the one that trusted processes fill.
               *("--setenv", *next(iter(processes.bytecode_cache("judge").items())))]
    if cuda:
        command += ["--bind", "/proc", "/proc"]  # CUDA names its threads there.
        for node in sorted(path for pattern in DEVICES for path in DEVICE_FOLDER.glob(pattern)):
            command += ["--dev-bind-try", str(node), str(node)]
    else:
        command += ["--unshare-pid", "--unshare-ipc", "--proc", "/proc"]
    for name in filter(os.path.exists, MACHINE_SETTINGS):
        command += ["--ro-bind", name, name]
    for name in HIDDEN_FOLDERS:
        if Path(name).is_dir() and not Path(name).is_symlink():
            command += ["--tmpfs", name]
    for path in (Path(os.path.expanduser("~"), name) for name in HIDDEN_AT_HOME):  # noqa: PTH111 - never raises.
        if path.is_dir():
            command += ["--tmpfs", str(path)]
        elif path.exists():
            command += ["--ro-bind", "/dev/null", str(path)]
    for path in [*SHOWN_AGAIN, *map(str, _environments(python)), *map(str, shown)]:
        if any(Path(path).is_relative_to(hidden) for hidden in HIDDEN_FOLDERS) and Path(path).exists():
            command += ["--ro-bind", path, path]
    return [*command, "--bind", str(shared), str(shared), "--chdir", str(shared), "--"]


def _environments(python: str) -> list[Path]:
    """Folders of the interpreter as named and as linked to, of our own worker, and of libraries it is told of."""
    named = Path(python).absolute()  # Not resolved: a virtual environment's python is a link.
    found = [named.parent.parent, named.resolve().parent.parent, Path(processes.WORKER_MAIN).parent]
    for variable in ("LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH"):
        found += [Path(name) for name in os.environ.get(variable, "").split(":") if name]
    return [path for path in dict.fromkeys(found) if path != Path("/")]
