"""Killing a process with all that it started: tools have sessions of their own, so a group is not enough."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Collection
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends, so that none gets out of sight (Linux)."""
    import ctypes  # Whoever only kills, such as the language server, does not need it.

    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants(root: int, spared: Collection[int] = ()) -> list[int]:
    """Processes below `root` but those `spared` and below them, parents first; empty where there is no /proc."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            # After the name, which may hold spaces and brackets: state, parent.
            parent = int(entry.joinpath("stat").read_text(errors="replace").rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            continue
        children.setdefault(parent, []).append(int(entry.name))
    found: list[int] = []
    waiting = [root]
    while waiting:
        below = [pid for pid in children.get(waiting.pop(), []) if pid not in spared]
        found += below
        waiting += below
    return found


def kill_tree(root: int, *, with_root: bool = True, spared: Collection[int] = ()) -> None:
    """Kill a process and everything below it but those `spared` and below them. What is gone already is no error."""
    pids = descendants(root, spared)
    if with_root:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(root, signal.SIGKILL)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
