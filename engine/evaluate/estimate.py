"""What can be said about a candidate's speed without a GPU: occupancy and a roofline, labelled as an estimate.

The figure orders candidates roughly and finds the ones that cannot be good (spills, low occupancy, many launches). It
knows neither the access pattern nor the caches, so it is never turned into a speed-up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from engine.evaluate.occupancy import Occupancy, best_occupancy, limits_of, occupancy
from engine.records import Device, How, KernelFacts, WorkloadProfile

# A kernel that streams keeps about this much in flight a thread, and waits this long for DRAM.
BYTES_IN_FLIGHT = 16
DRAM_LATENCY_S = 0.7e-6
# A spilled byte is stored and loaded; most of it stays in L1, which is this many times faster than DRAM.
SPILL_DISCOUNT = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """An estimate of one call.

    Attributes:
        estimate_us: Microseconds, all kernels and their launches.
        how: Always `estimated`.
        occupancies: Per kernel, in the order of the facts.
        kernels: The facts with their occupancy filled in.
        reasons: Sentences that say what the figure rests on.
    """

    estimate_us: float
    occupancies: tuple[Occupancy, ...]
    kernels: tuple[KernelFacts, ...]
    reasons: tuple[str, ...]
    how: How = "estimated"


def estimate(
    kernels: Sequence[KernelFacts],
    workload: WorkloadProfile,
    device: Device,
    *,
    launches: int | None = None,
    threads: int | None = None,
) -> Estimate:
    """Estimate a candidate's time from what ptxas said about its kernels.

    Args:
        kernels: Facts from a build or from `compile_only`.
        workload: What the work costs at least.
        device: The GPU it is written for; its peaks are used.
        launches: Kernel launches of a call; the number of kernels where None.
        threads: Block size; where None, each kernel gets the block size that suits it best.

    Raises:
        ConfigError: The device's compute capability is not known.
    """
    found = tuple(_occupancy(kernel, device, threads) for kernel in kernels)
    filled = tuple(replace(kernel, occupancy=one.fraction) for kernel, one in zip(kernels, found, strict=True))
    count = launches if launches is not None else max(1, len(kernels))
    reasons = [f"an ideal implementation takes {workload.roof_us:.2f} us ({workload.bound})"]

    slowest = min(found, key=lambda one: one.fraction, default=None)
    share = 1.0 if slowest is None else _bandwidth_share(slowest, device)
    memory_us = workload.bytes / device.copy_bytes_per_s * 1e6 if device.copy_bytes_per_s else 0.0
    time_us = max(workload.roof_us, memory_us / share if share else workload.roof_us)
    if slowest is not None and slowest.blocks == 0:
        reasons.append(f"a kernel cannot be launched with {slowest.threads} threads a block: {slowest.limiter}")
    elif slowest is not None:
        reasons.append(
            f"occupancy is {slowest.fraction:.0%}, limited by {slowest.limiter}, which sustains about "
            f"{share:.0%} of the memory bandwidth"
        )

    spilled = sum(kernel.spill_bytes for kernel in kernels)
    if spilled:
        spill_us = _spill_us(spilled, device)
        time_us += spill_us
        reasons.append(f"{spilled} B a thread are spilled, about {spill_us:.2f} us")
    time_us += count * device.launch_us
    reasons.append(f"{count} launch{'es' if count != 1 else ''} of {device.launch_us:g} us")
    return Estimate(estimate_us=time_us, occupancies=found, kernels=filled, reasons=tuple(reasons))


def _occupancy(kernel: KernelFacts, device: Device, threads: int | None) -> Occupancy:
    if threads is None:
        return best_occupancy(device.sm, registers=kernel.registers, shared_bytes=kernel.shared_bytes)
    return occupancy(device.sm, registers=kernel.registers, shared_bytes=kernel.shared_bytes, threads=threads)


def _bandwidth_share(one: Occupancy, device: Device) -> float:
    """Little's law: the bytes in flight that the resident threads can hold, over those that DRAM needs."""
    if not (device.sm_count and device.copy_bytes_per_s):
        return 1.0
    in_flight = one.fraction * limits_of(device.sm).warps * 32 * BYTES_IN_FLIGHT
    needed = device.copy_bytes_per_s / device.sm_count * DRAM_LATENCY_S
    return min(1.0, in_flight / needed)


def _spill_us(spilled: int, device: Device) -> float:
    """One wave of resident threads that writes and reads its spills once."""
    if not (device.sm_count and device.copy_bytes_per_s):
        return 0.0
    threads = device.sm_count * limits_of(device.sm).warps * 32
    return spilled * threads / (SPILL_DISCOUNT * device.copy_bytes_per_s) * 1e6
