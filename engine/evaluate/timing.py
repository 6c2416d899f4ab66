"""Is a candidate faster? Pure decisions over samples: intervals, gates and floors. Nothing here measures."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from statistics import median

from engine.records import Device, Timing

RESAMPLES = 2000
SMALLEST_CLAIM = 0.01
# The parent's clock may exceed the events by this much before work must have been hidden from them.
WALL_FACTOR, WALL_SLACK_US = 1.25, 5.0
FLOOR_SHARE = 0.95


def summarise(
    reference_us: Sequence[float],
    candidate_us: Sequence[float],
    *,
    compiled_us: Sequence[float] = (),
    wall_us: float | None = None,
    warm_us: float | None = None,
    clock: str = "cuda events, cold L2",
    notes: Sequence[str] = (),
) -> Timing:
    """What paired blocks say. Lists hold one median a block, in order, microseconds a call.

    Raises:
        ValueError: There are no pairs, or a time is not positive.
    """
    if not candidate_us or len(reference_us) != len(candidate_us):
        raise ValueError(f"{len(reference_us)} reference blocks and {len(candidate_us)} candidate blocks make no pairs")
    if min(*reference_us, *candidate_us) <= 0:
        raise ValueError("a time that is not positive cannot be true")
    ratios = [r / c for r, c in zip(reference_us, candidate_us, strict=True)]
    low, high = bootstrap(ratios, median)
    speedup = median(ratios)
    versus: float | None = None
    versus_ci: tuple[float, float] | None = None
    if len(compiled_us) == len(candidate_us):
        against = [r / c for r, c in zip(compiled_us, candidate_us, strict=True)]
        versus, versus_ci = median(against), bootstrap(against, median)
    return Timing(
        candidate_us=tuple(candidate_us), reference_us=tuple(reference_us), speedup=speedup, ci95=(low, high),
        minimum_detectable=max(SMALLEST_CLAIM, (high - low) / 2 / speedup), wall_us=wall_us, warm_us=warm_us,
        speedup_vs_compile=versus, compile_ci95=versus_ci, clock=clock, notes=tuple(notes),
    )


def bootstrap(
    values: Sequence[float], statistic: Callable[[Sequence[float]], float], resamples: int = RESAMPLES
) -> tuple[float, float]:
    """The 95 % percentile interval of a statistic. The same values always give the same interval."""
    generator = random.Random(20407)  # A resampling, not a secret.
    found = sorted(statistic(generator.choices(values, k=len(values))) for _ in range(resamples))
    return found[int(0.025 * resamples)], found[int(0.975 * resamples) - 1]


def claims_faster(timing: Timing, factor: float = 1.0) -> bool:
    """True when the interval lies above `factor` and the gain is one the run could see."""
    return timing.ci95[0] > factor and timing.speedup >= factor * (1 + timing.minimum_detectable)


def hidden_work(wall_us: float, event_us: float, issue_us: float) -> str | None:
    """Why the parent's clock says that the events missed work, or None.

    Args:
        wall_us: Parent's slope a call, all streams and threads included.
        event_us: Median by events on the current stream.
        issue_us: Host time to issue a call.
    """
    bound = WALL_FACTOR * max(event_us, issue_us) + WALL_SLACK_US
    if wall_us <= bound:
        return None
    return f"{wall_us:.1f} us a call by the parent's clock, {event_us:.1f} us by events: work runs outside the events"


def hard_floor_us(bytes_in: int, bytes_out: int, device: Device) -> float:
    """Microseconds below which no kernel can have read and written this much, with outputs still in L2."""
    if not device.dram_bytes_per_s:
        return 0.0
    # The flush is itself mostly L2-resident data of no use, so inputs are cold; outputs may stay dirty.
    return max(0, bytes_in + bytes_out - device.l2_bytes) / device.dram_bytes_per_s * 1e6


def implausible(median_us: float, floor_us: float) -> str | None:
    """Why a time cannot be true, or None."""
    if median_us < FLOOR_SHARE * floor_us:
        return f"{median_us:.2f} us is less than the {floor_us:.2f} us that moving the tensors takes at least"
    return None


def block_plan(
    reference_us: float, candidate_us: float, *, sets: int, budget_s: float, most_blocks: int, overhead_us: float
) -> tuple[int, int]:
    """(blocks, calls a block) that fit the budget: many short blocks rather than few long ones.

    Args:
        reference_us: First estimate of a reference call.
        candidate_us: First estimate of a candidate call.
        sets: Argument sets with fresh values; a block never uses one twice.
        budget_s: Wall time to spend.
        most_blocks: No more than this.
        overhead_us: Per block, for messages and fresh values.
    """
    flush_us = 300.0
    calls = max(1, min(sets, 10))
    pair_us = calls * (reference_us + candidate_us + 2 * flush_us) + overhead_us
    blocks = int(budget_s * 1e6 / pair_us)
    while blocks < 8 and calls > 1:
        calls -= 1
        pair_us = calls * (reference_us + candidate_us + 2 * flush_us) + overhead_us
        blocks = int(budget_s * 1e6 / pair_us)
    return max(5, min(blocks, most_blocks)), calls
