"""Watches what a candidate's process takes of host and device memory, and ends it when that is too much.

An allocator's own limit binds only who asks that allocator, and a raw `cudaMalloc` does not: so the driver is asked
what each process holds. In a container it may not say; then the card as a whole is watched, and a candidate is ended
when the card runs full while it runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import time
from dataclasses import dataclass
from pathlib import Path

from contracts.contract import Contract
from engine import nvml
from engine.processes import Worker
from engine.records import Device

PERIOD_S = 0.1
CHILDREN = "*/children"
HOST_BYTES = 8 << 30
# A card with less than this part free is full: nobody's next allocation can be counted on.
FULL = 0.03
# Beyond what it held when it was loaded a candidate may take this part of the card, or this many times its tensors.
GPU_SHARE, HELD_SETS = 0.4, 5


@dataclass(frozen=True, slots=True)
class Allowance:
    """What a candidate may take beyond what its process held when it was loaded.

    Attributes:
        host_bytes: Resident memory of the host.
        gpu: The card; None where the driver tells nothing, or no GPU is used.
        gpu_bytes: Memory of the card.
    """

    host_bytes: int = HOST_BYTES
    gpu: nvml.Gpu | None = None
    gpu_bytes: int = 0

    def how(self, pid: int) -> str:
        """How device memory is bounded, for the verdict; empty where there is none to bound."""
        if self.gpu is None:
            return ""
        return "GPU memory by process" if _held(self.gpu, pid) is not None else "GPU memory of the whole card"


def allowance_of(gpu: nvml.Gpu | None, device: Device, contract: Contract) -> Allowance:
    """What a candidate may take of the card: its tensors several times over, since results are held for checks."""
    if gpu is None:
        return Allowance()
    need = max(sum(s.size_bytes for s in (*v.tensors.values(), *v.outputs)) for v in contract.variants)
    return Allowance(gpu=gpu, gpu_bytes=max(HELD_SETS * need + (1 << 30), int(GPU_SHARE * device.memory_bytes)))


async def watch(worker: Worker, allowance: Allowance) -> None:
    """Look until the process ends; kill it when it took more than it may."""
    pid = worker.pid
    if pid is None:
        return
    resident = _resident_bytes(pid)
    held = _held(allowance.gpu, pid) if allowance.gpu else None
    card = allowance.gpu.memory() if allowance.gpu else None
    while worker.pid == pid:
        now = _resident_bytes(pid)
        if now is None or resident is None:
            return
        reason = _too_much(now - resident, allowance.host_bytes, "of host memory")
        if allowance.gpu is not None and not reason:
            reason = _device_trouble(allowance, pid, held, card)
        if reason:
            worker.kill(reason)
            return
        await asyncio.sleep(PERIOD_S)


async def room(gpu: nvml.Gpu, share: float, wait_s: float) -> bool:
    """Wait until `share` of the card's memory is free. False where it is not after `wait_s`, or nobody knows."""
    end = time.monotonic() + wait_s
    while (memory := gpu.memory()) is not None:
        if memory.total_bytes - memory.used_bytes > share * memory.total_bytes:
            return True
        if time.monotonic() > end:
            break
        await asyncio.sleep(0.5)
    return False


def _device_trouble(allowance: Allowance, pid: int, held: int | None, card: nvml.Memory | None) -> str:
    assert allowance.gpu is not None
    now = _held(allowance.gpu, pid)
    if now is not None:
        return _too_much(now - (held or 0), allowance.gpu_bytes, "of GPU memory")
    memory = allowance.gpu.memory()
    if memory is None or card is None:
        return ""
    grown = memory.used_bytes - card.used_bytes
    if memory.total_bytes - memory.used_bytes > FULL * memory.total_bytes or grown <= allowance.gpu_bytes:
        return ""
    return f"the GPU's memory ran full while it ran: {_gib(grown)} more than when it was loaded"


def _too_much(grown: int, allowed: int, what: str) -> str:
    return f"it took {_gib(grown)} {what}, {_gib(allowed)} are allowed" if grown > allowed else ""


def _held(gpu: nvml.Gpu, pid: int) -> int | None:
    """Device bytes of the process and its descendants; None where the driver does not show them."""
    listed = gpu.processes() or {}
    found = [listed[member] for member in _family(pid) if listed.get(member) is not None]
    return sum(filter(None, found)) if found else None


def _family(pid: int) -> list[int]:
    """A process and all that descend from it, such as what runs behind a sandbox's own process."""
    found = [pid]
    parents = {} if _kernel_lists_children() else _parents()
    for one in found:
        for path in Path("/proc", str(one), "task").glob(CHILDREN):
            with contextlib.suppress(OSError):
                found += [int(word) for word in path.read_text().split()]
        found += [child for child, parent in parents.items() if parent == one]
    return found


@functools.cache
def _kernel_lists_children() -> bool:
    return any(Path("/proc/self/task").glob(CHILDREN))


def _parents() -> dict[int, int]:
    """Every process and its parent, for kernels that do not list a process's children."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            # The name, in brackets, may hold anything.
            found[int(path.parent.name)] = int(path.read_text(errors="replace").rpartition(")")[2].split()[1])
    return found


def busy_seconds(pid: int | None) -> float | None:
    """Seconds that a process and all that descend from it have run or wanted to; None where that cannot be read.

    Waiting for a core counts, so that a thread that spins on a machine with much to do is seen as well.
    """
    found = []
    for member in _family(pid) if pid is not None else ():
        for path in Path("/proc", str(member), "task").glob("*/schedstat"):
            with contextlib.suppress(OSError, ValueError, IndexError):
                run_ns, wait_ns = path.read_text().split()[:2]
                found.append(int(run_ns) + int(wait_ns))
    return sum(found) * 1e-9 if found else None


def _resident_bytes(pid: int) -> int | None:
    page = os.sysconf("SC_PAGE_SIZE")
    pages = []
    for member in _family(pid):
        try:
            pages.append(int(Path("/proc", str(member), "statm").read_text().split()[1]))
        except (OSError, ValueError, IndexError):
            continue
    return sum(pages) * page if pages else None


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
