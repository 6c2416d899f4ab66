"""How many blocks of a kernel fit on a multiprocessor, by the rules of `cuda_occupancy.h`: sm_70 to sm_121."""

from __future__ import annotations

from dataclasses import dataclass

from contracts.errors import ConfigError

KIB = 1024
WARP = 32
MAX_BLOCK_THREADS = 1024
REGISTERS_PER_SM = 65536
MAX_REGISTERS_PER_THREAD = 255
REGISTER_UNIT = 256  # Registers are handed out to a warp in these.
SUB_PARTITIONS = 4  # Each with a quarter of the registers, and warps of its own.


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one multiprocessor holds.

    Attributes:
        warps: Resident warps.
        blocks: Resident blocks.
        shared_bytes: Shared memory of the multiprocessor, at the largest carve-out.
        shared_bytes_per_block: Largest share of one block (opt-in).
        shared_unit: Shared memory is handed out in these.
        reserved_shared_bytes: What the system takes of each block's shared memory.
    """

    warps: int
    blocks: int
    shared_bytes: int
    shared_bytes_per_block: int
    shared_unit: int
    reserved_shared_bytes: int


def _row(warps: int, blocks: int, shared_kib: int) -> Limits:
    """From sm_80 on a block can have all but the kibibyte that the system keeps."""
    return Limits(
        warps=warps, blocks=blocks, shared_bytes=shared_kib * KIB, shared_bytes_per_block=(shared_kib - 1) * KIB,
        shared_unit=128, reserved_shared_bytes=KIB,
    )


def _old_row(warps: int, blocks: int, shared_kib: int) -> Limits:
    return Limits(
        warps=warps, blocks=blocks, shared_bytes=shared_kib * KIB, shared_bytes_per_block=shared_kib * KIB,
        shared_unit=256, reserved_shared_bytes=0,
    )


LIMITS: dict[str, Limits] = {
    "7.0": _old_row(64, 32, 96), "7.2": _old_row(64, 32, 96), "7.5": _old_row(32, 16, 64),
    "8.0": _row(64, 32, 164), "8.6": _row(48, 16, 100), "8.7": _row(48, 16, 164), "8.9": _row(48, 24, 100),
    "9.0": _row(64, 32, 228),
    "10.0": _row(64, 32, 228), "10.1": _row(48, 24, 228), "10.3": _row(64, 32, 228), "11.0": _row(48, 24, 228),
    "12.0": _row(48, 24, 100), "12.1": _row(48, 24, 100),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupancy:
    """Resident blocks of one kernel at one block size.

    Attributes:
        blocks: Blocks on a multiprocessor; 0 when the kernel cannot be launched so.
        fraction: Resident warps over the most that fit, 0 to 1.
        limiter: `registers`, `shared memory`, `warps` or `blocks`: what allows no more.
        threads: The block size.
    """

    blocks: int
    fraction: float
    limiter: str
    threads: int


def limits_of(sm: str) -> Limits:
    """The limits of a compute capability such as `9.0`.

    Raises:
        ConfigError: It is not in the table.
    """
    if sm not in LIMITS:
        raise ConfigError(f"compute capability {sm!r} is not known", hint="use one of " + ", ".join(LIMITS))
    return LIMITS[sm]


def occupancy(sm: str, *, registers: int, shared_bytes: int, threads: int) -> Occupancy:
    """Resident blocks for a kernel.

    Args:
        sm: Compute capability, such as `9.0`.
        registers: Per thread, as ptxas reports.
        shared_bytes: Of a block, static and dynamic together.
        threads: Of a block.

    Raises:
        ConfigError: `sm` is not known.
    """
    limits = limits_of(sm)
    warps = -(-threads // WARP)
    allowed = {
        "registers": _by_registers(registers, warps),
        "shared memory": _by_shared(limits, shared_bytes),
        "warps": limits.warps // warps if 0 < threads <= MAX_BLOCK_THREADS else 0,
        "blocks": limits.blocks,
    }
    limiter = min(allowed, key=lambda name: allowed[name])
    blocks = allowed[limiter]
    return Occupancy(blocks=blocks, fraction=blocks * warps / limits.warps, limiter=limiter, threads=threads)


def best_occupancy(sm: str, *, registers: int, shared_bytes: int, max_threads: int = MAX_BLOCK_THREADS) -> Occupancy:
    """The highest occupancy over block sizes that are powers of two: a bound where the launch is not known."""
    sizes = [size for size in (32, 64, 128, 256, 512, 1024) if size <= max_threads]
    found = [occupancy(sm, registers=registers, shared_bytes=shared_bytes, threads=size) for size in sizes]
    return max(found, key=lambda one: one.fraction)


def _by_registers(registers: int, warps: int) -> int:
    if registers == 0:
        return REGISTERS_PER_SM
    per_warp = _round_up(registers * WARP, REGISTER_UNIT)
    # A launch is checked as if each sub-partition took equally many warps.
    if registers > MAX_REGISTERS_PER_THREAD or per_warp * _round_up(warps, SUB_PARTITIONS) > REGISTERS_PER_SM:
        return 0
    warps_per_partition = REGISTERS_PER_SM // SUB_PARTITIONS // per_warp
    return warps_per_partition * SUB_PARTITIONS // max(1, warps)


def _by_shared(limits: Limits, shared_bytes: int) -> int:
    taken = _round_up(shared_bytes + limits.reserved_shared_bytes, limits.shared_unit)
    if taken > limits.shared_bytes_per_block + limits.reserved_shared_bytes:
        return 0
    return limits.shared_bytes // taken if taken else limits.blocks


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
