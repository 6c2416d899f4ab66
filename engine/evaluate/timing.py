"""Is a candidate faster? Pure decisions over samples: intervals, gates and floors. Nothing here measures.

Blocks come in pairs, reference first in one and candidate first in the next, so that two pairs make a quad `R C C R`.
The mean of a quad's two log ratios is free of a linear drift of the clock and of what being first costs; quads are
what the interval is made of. Their location is the Hodges-Lehmann estimate, the median of the means of all pairs of
quads: as efficient as a mean, and one block that was disturbed does not move it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from statistics import NormalDist, median, stdev

from engine.records import ClockSample, Device, Timing

RESAMPLES = 1000
SMALLEST_CLAIM = 0.01
# Below this many quads a bootstrap sees too few different resamples to know a 95 % interval.
FEW_QUADS = 6
# Fewer of one side against itself say nothing about noise.
LEAST_QUADS = 4
# Two-sided 95 % points of Student's t for 1, 2, ... degrees of freedom.
STUDENT = (12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
           2.120, 2.110, 2.101, 2.093, 2.086)
# One side may grow by this much from block to block on the whole, and the clock of a block differ by this much from the
# usual one: more, and the period is thrown away.
MOST_DRIFT, CLOCK_BAND = 0.01, 0.05
SETTLED = 0.02  # Three warm-up blocks in a row within this.
# The parent's clock may exceed the events by this much before work must have been hidden from them.
WALL_FACTOR, WALL_SLACK_US = 1.25, 5.0
# What slows the reference too, such as a power cap or a busy host, is allowed for up to this.
MOST_SLOWED = 1.6
FLOOR_SHARE = 0.95
LEAST_BLOCKS = 6
LEAST_US = 1e-3


def summarise(
    reference_us: Sequence[float],
    candidate_us: Sequence[float],
    *,
    compiled_us: Sequence[float] = (),
    wall_us: float | None = None,
    warm_us: float | None = None,
    clock: str = "cuda events, cold L2",
    notes: Sequence[str] = (),
    clocks: Sequence[ClockSample] = (),
    strangers: Sequence[str] = (),
) -> Timing:
    """What paired blocks say. Lists hold one median a block, in order, microseconds a call.

    Raises:
        ValueError: There are fewer than two quads, or a time is not positive.
    """
    if len(candidate_us) < 4 or len(reference_us) != len(candidate_us):
        raise ValueError(f"{len(reference_us)} reference blocks and {len(candidate_us)} candidate blocks make no pairs")
    if min(*reference_us, *candidate_us) <= 0:
        raise ValueError("a time that is not positive cannot be true")
    kept = usable_quads(len(candidate_us) // 2, clocks)
    speedup, interval = ratio(reference_us, candidate_us, kept)
    noise = same_vs_same(reference_us, candidate_us)
    drifted = abs(drift(reference_us, candidate_us))
    least = max(SMALLEST_CLAIM, noise or 0.0, drifted if drifted > MOST_DRIFT else 0.0)
    versus = versus_ci = None
    if len(compiled_us) == len(candidate_us):
        versus, found = ratio(compiled_us, candidate_us, kept)
        versus_ci = _no_narrower(versus, found, least)
    return Timing(
        candidate_us=tuple(candidate_us), reference_us=tuple(reference_us), speedup=speedup,
        ci95=_no_narrower(speedup, interval, least),
        minimum_detectable=max(least, (interval[1] - interval[0]) / 2 / speedup), same_vs_same=noise, wall_us=wall_us,
        warm_us=warm_us, speedup_vs_compile=versus, compile_ci95=versus_ci, clock=clock, notes=tuple(notes),
        clocks=tuple(clocks), strangers=tuple(strangers),
    )


def without(empty_us: float, samples_us: Sequence[float]) -> list[float]:
    """The samples less what two events cost, and never nothing."""
    return [max(sample - empty_us, LEAST_US) for sample in samples_us]


def _no_narrower(point: float, interval: tuple[float, float], least: float) -> tuple[float, float]:
    """The interval, at least as wide as the smallest difference the run can see.

    So an interval above 1 says both: the samples agree, and the gain is one that this run can tell from none.
    """
    return min(interval[0], point / (1 + least)), max(interval[1], point * (1 + least))


def ratio(
    above_us: Sequence[float], below_us: Sequence[float], kept: Sequence[int] | None = None
) -> tuple[float, tuple[float, float]]:
    """The ratio of two sides by quads, and its 95 % interval. `kept` names the quads to use; all where None."""
    logs = [math.log(a / b) for a, b in zip(above_us, below_us, strict=True)]
    quads = [(logs[2 * i] + logs[2 * i + 1]) / 2 for i in (range(len(logs) // 2) if kept is None else kept)]
    low, high = interval95(quads)
    return math.exp(middle(quads)), (math.exp(low), math.exp(high))


def middle(values: Sequence[float]) -> float:
    """The Hodges-Lehmann estimate of location."""
    return median([(a + b) / 2 for i, a in enumerate(values) for b in values[i:]])


def interval95(values: Sequence[float]) -> tuple[float, float]:
    """A 95 % interval of the location: by Student for a few values, else by bootstrap. The same each time.

    The bootstrap takes its percentiles further out than 2.5 and 97.5, as far as a small sample's own scatter is too
    small (Hesterberg's expanded percentiles).
    """
    count = len(values)
    point = middle(values)
    student = STUDENT[min(count - 1, len(STUDENT)) - 1]
    if count < FEW_QUADS:
        half = student * stdev(values) / math.sqrt(count)
        return point - half, point + half
    generator = random.Random(20407)  # A resampling, not a secret.
    found = sorted(middle(generator.choices(values, k=count)) for _ in range(RESAMPLES))
    tail = NormalDist().cdf(-student * math.sqrt(count / (count - 1)))
    outside = int(tail * RESAMPLES)
    return min(found[outside], point), max(found[RESAMPLES - 1 - outside], point)


def same_vs_same(reference_us: Sequence[float], candidate_us: Sequence[float]) -> float | None:
    """Half the interval of one side against itself: what looks like a difference here where there is none.

    In `R C C R R C C R` two candidate blocks are neighbours, then two reference blocks: the same kernel twice. What
    being second costs and a linear drift cancel between the two, as they do in a quad. None where there are too few.
    """
    sides = (candidate_us, reference_us)  # The candidate is last in the first pair and first in the second.
    steps = [math.log(sides[i % 2][i + 1] / sides[i % 2][i]) for i in range(len(candidate_us) - 1)]
    quads = [(a - b) / 2 for a, b in zip(steps[::2], steps[1::2], strict=False)]
    if len(quads) < LEAST_QUADS:
        return None
    low, high = interval95(quads)
    return (high - low) / 2


def drift(reference_us: Sequence[float], candidate_us: Sequence[float]) -> float:
    """By what part a side grows from one block to the next, on the whole. Blocks of the same place are compared."""
    steps = [math.log(side[i + 2] / side[i]) for side in (reference_us, candidate_us) for i in range(len(side) - 2)]
    return middle(steps) / 4  # Two pairs, four blocks.


def usable_quads(count: int, clocks: Sequence[ClockSample]) -> list[int]:
    """Quads whose pairs ran at the clock that most pairs had; all, where the clock is unknown or few would be left."""
    known = [sample.sm_mhz for sample in clocks if sample.sm_mhz]
    if len(known) < 2 * count:
        return list(range(count))
    usual = median(known)
    kept = [i for i in range(count) if all(abs(known[2 * i + j] / usual - 1) <= CLOCK_BAND for j in (0, 1))]
    return kept if len(kept) >= max(2, (count + 1) // 2) else list(range(count))


def unsteady(reference_us: Sequence[float], candidate_us: Sequence[float], clocks: Sequence[ClockSample]) -> str | None:
    """Why a period of timing cannot be trusted and is to be taken again, or None."""
    if abs(drifted := drift(reference_us, candidate_us)) > MOST_DRIFT:
        return f"the same kernel took {drifted:+.1%} from one block to the next"
    known = [sample.sm_mhz for sample in clocks if sample.sm_mhz]
    count = len(candidate_us) // 2
    if len(known) < 2 * count:
        return None
    usual = median(known)
    off = sum(any(abs(mhz / usual - 1) > CLOCK_BAND for mhz in known[2 * i:2 * i + 2]) for i in range(count))
    if off > count // 2:
        return f"the clock ran from {min(known)} to {max(known)} MHz"
    return None


def clock_notes(clocks: Sequence[ClockSample]) -> list[str]:
    """Sentences about what held the clock back, for the user."""
    notes = []
    for reason in dict.fromkeys(reason for sample in clocks for reason in sample.throttled):
        share = sum(reason in sample.throttled for sample in clocks) / len(clocks)
        notes.append(f"clocks were held back ({reason}) in {share:.0%} of the blocks")
    known = [sample.sm_mhz for sample in clocks if sample.sm_mhz]
    usual = median(known) if known else 0
    off = sum(abs(mhz / usual - 1) > CLOCK_BAND for mhz in known)
    if off:
        notes.append(f"the clock ran from {min(known)} to {max(known)} MHz; {off} of {len(known)} pairs of blocks are "
                     "off the usual one")
    return notes


def settled(seen_us: Sequence[float]) -> bool:
    """True when the last three blocks agree."""
    return len(seen_us) >= 3 and max(seen_us[-3:]) <= (1 + SETTLED) * min(seen_us[-3:])


def hidden_work(wall_us: float, event_us: float, issue_us: float, slowed: float = 1.0) -> str | None:
    """Why the parent's clock says that the events missed work, or None.

    Args:
        wall_us: Parent's slope a call, all streams and threads included.
        event_us: Median by events on the current stream.
        issue_us: Host time to issue a call.
        slowed: By what factor the same clock found the reference slower than its events, just now.
    """
    bound = WALL_FACTOR * min(max(slowed, 1.0), MOST_SLOWED) * max(event_us, issue_us) + WALL_SLACK_US
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
    """(blocks, calls a block) that fit the budget: many short blocks rather than few long ones, and an even number.

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
    return max(LEAST_BLOCKS, min(blocks, most_blocks) // 2 * 2), calls
