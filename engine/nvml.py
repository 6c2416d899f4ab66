"""What NVIDIA's management library says about a GPU: memory by process, clocks, temperature, what holds clocks back.

It makes no CUDA context and takes no device memory, so the engine may ask it. Every answer may be missing: a container
often hides processes, and a slice of a card has no clocks of its own. Missing is None, never a guess.
"""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass
from typing import Any

from engine.records import ClockSample, Device

LIBRARY = "libnvidia-ml.so.1"
NOT_AVAILABLE = (1 << 64) - 1
MAX_PROCESSES = 256
SM_CLOCK, MEMORY_CLOCK, ON_DIE = 1, 2, 0
# Bits of nvmlDeviceGetCurrentClocksThrottleReasons that make a kernel slower than the card could run it.
THROTTLES = {
    0x4: "power cap", 0x8: "hardware slowdown", 0x20: "thermal, by the driver", 0x40: "thermal, by the hardware",
    0x80: "power brake",
}


class _Process(ctypes.Structure):
    _fields_ = [("pid", ctypes.c_uint), ("used_bytes", ctypes.c_ulonglong), ("gpu_instance", ctypes.c_uint),
                ("compute_instance", ctypes.c_uint)]


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


@dataclass(frozen=True, slots=True)
class Memory:
    """A card's memory."""

    total_bytes: int
    used_bytes: int


class Gpu:
    """One GPU, as the library sees it.

    Args:
        library: The loaded and started library.
        handle: The library's handle of the card.
    """

    def __init__(self, library: ctypes.CDLL, handle: ctypes.c_void_p) -> None:
        self._library, self._handle = library, handle

    def processes(self) -> dict[int, int | None] | None:
        """Process id to bytes, of those that compute here; None where the driver does not tell."""
        for name in ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2"):
            count, rows = ctypes.c_uint(MAX_PROCESSES), (_Process * MAX_PROCESSES)()
            if not self._asked(name, ctypes.byref(count), rows):
                continue
            return {row.pid: None if row.used_bytes == NOT_AVAILABLE else row.used_bytes
                    for row in rows[:count.value]}
        return None

    def memory(self) -> Memory | None:
        """The card's memory, whoever uses it."""
        found = _Memory()
        if not self._asked("nvmlDeviceGetMemoryInfo", ctypes.byref(found)):
            return None
        return Memory(total_bytes=found.total, used_bytes=found.used)

    def clocks(self) -> ClockSample:
        """Clocks, temperature, power and what holds the clocks back, now."""
        reasons = ctypes.c_ulonglong()
        told = self._asked("nvmlDeviceGetCurrentClocksThrottleReasons", ctypes.byref(reasons))
        milliwatts = self._number("nvmlDeviceGetPowerUsage")
        return ClockSample(
            sm_mhz=self._number("nvmlDeviceGetClockInfo", SM_CLOCK),
            memory_mhz=self._number("nvmlDeviceGetClockInfo", MEMORY_CLOCK),
            temperature_c=self._number("nvmlDeviceGetTemperature", ON_DIE),
            power_w=None if milliwatts is None else milliwatts / 1e3,
            throttled=tuple(name for bit, name in THROTTLES.items() if told and reasons.value & bit),
        )

    def _number(self, call: str, *which: int) -> int | None:
        found = ctypes.c_uint()
        return found.value if self._asked(call, *map(ctypes.c_int, which), ctypes.byref(found)) else None

    def _asked(self, call: str, *arguments: Any) -> bool:
        """True when the library has this call and answered it."""
        function = getattr(self._library, call, None)
        return function is not None and function(self._handle, *arguments) == 0


def find_gpu(device: Device) -> Gpu | None:
    """The GPU that a job uses, or None where there is no driver or the library does not know the card."""
    if device.kind != "cuda":
        return None
    library = _start(LIBRARY)
    if library is None:
        return None
    handle = ctypes.c_void_p()
    if device.pci:
        # The order of CUDA's devices is not the library's, least of all under CUDA_VISIBLE_DEVICES.
        status = library.nvmlDeviceGetHandleByPciBusId_v2(device.pci.encode(), ctypes.byref(handle))
    else:
        status = library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(device.index), ctypes.byref(handle))
    return Gpu(library, handle) if status == 0 else None


@functools.cache
def _start(name: str) -> ctypes.CDLL | None:
    """The library, started once and never stopped: another part of this process may use it."""
    try:
        library = ctypes.CDLL(name)
    except OSError:
        return None
    return library if library.nvmlInit_v2() == 0 else None
