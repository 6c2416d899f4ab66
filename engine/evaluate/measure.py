"""Drives paired timing: reference in the judge, candidate in its own process, never both at once."""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from contracts.contract import Contract
from contracts.errors import WorkerError
from engine.evaluate import gpu_lock, timing, watch
from engine.evaluate.checks import Ledger
from engine.evaluate.probes import BUSY_SHARE
from engine.evaluate.verify import Verifier, seeds
from engine.nvml import Gpu
from engine.processes import Worker
from engine.records import ClockSample, Device, Timing
from engine.workload_traffic import compulsory_bytes

JUDGE_S = 300.0
# The parent's clock: calls of the short run, and of the long one, which takes about so many microseconds.
FEW_CALLS, MANY_US, MOST_CALLS, TRIES = 8, 30_000.0, 1000, 5
WARM_S = 0.3  # The card is warm from verification: this is for clocks that still climb.


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much timing a candidate gets.

    Attributes:
        budget_s: Wall time for the blocks.
        blocks: Pairs of blocks at most.
        audits: Blocks of which one call is checked afterwards.
    """

    budget_s: float = 0.9
    blocks: int = 16
    audits: int = 2


SEARCH = Effort()
GLANCE = Effort(budget_s=0.3, blocks=timing.LEAST_BLOCKS, audits=0)
WINNER = Effort(budget_s=3.0, blocks=40, audits=4)


@dataclass(slots=True)
class Period:
    """What the blocks of one stretch of time gave: a median a block, and the card's state beside each pair."""

    reference: list[float] = field(default_factory=list)
    candidate: list[float] = field(default_factory=list)
    compiled: list[float] = field(default_factory=list)
    clocks: list[ClockSample] = field(default_factory=list)
    strangers: tuple[str, ...] = ()

    def take_off(self, empty_us: float) -> None:
        """Take what the events themselves cost off every side, the same of each."""
        self.reference, self.candidate, self.compiled = (
            timing.without(empty_us, side) for side in (self.reference, self.candidate, self.compiled))


@dataclass(frozen=True, slots=True)
class Slope:
    """What many calls in a row took: microseconds a call by the parent's clock, and to issue one."""

    wall_us: float
    issue_us: float


class Timer:
    """Times one candidate against the reference.

    Args:
        judge: Open judge, which is also the reference.
        verifier: The candidate's verifier: its process and the audits.
        contract: What is timed: the example variant.
        device: For floors.
        compiled: A second judge that holds a compiled reference, and its name; None where there is none, or not yet:
            what is set before `run` counts.
        gpu: The card, for its clocks and for strangers on it; None where the driver tells nothing.
    """

    def __init__(self, judge: Worker, verifier: Verifier, contract: Contract, device: Device,
                 compiled: tuple[Worker, str] | None = None, gpu: Gpu | None = None) -> None:
        self._judge, self._verifier, self._contract = judge, verifier, contract
        self._device, self.compiled, self._gpu = device, compiled, gpu
        self._ledger: Ledger = verifier.ledger
        self._seeds = seeds()
        self._empty_us: list[float] = []

    async def glance(self) -> Timing | None:
        """A few blocks and nothing else: is a candidate worth more? None when a check rejected it.

        Raises what `run` raises.
        """
        period, _ = await self._steady(GLANCE, again=False)
        await self._verifier.ask("drop", timed=True)  # The memory is needed by the calls to come.
        if period is None:
            return None
        return timing.summarise(period.reference, period.candidate, clocks=period.clocks, strangers=period.strangers,
                                notes=["timed briefly, by six pairs of blocks"])

    async def run(self, effort: Effort) -> Timing | None:
        """Blocks, audits, the parent's own clock and the floor. None when a check rejected the candidate.

        Raises:
            StoppedError: The candidate's process ended.
            WorkerError: The judge failed.
        """
        period, notes = await self._steady(effort, again=True)
        if period is None:
            return None
        event_us = median(period.candidate)
        wall_us = await self._wall(period)
        floor = timing.hard_floor_us(*compulsory_bytes(self._contract), self._device)
        unlikely = timing.implausible(event_us, floor)
        self._ledger.require("plausible time", unlikely is None, unlikely or "")
        if self._ledger.rejected:
            return None
        if wall_us is not None and abs(wall_us - event_us) > 0.2 * event_us:
            notes.append(f"{wall_us:.1f} us a call in a row without cold caches, {event_us:.1f} us each by events")
        notes += timing.clock_notes(period.clocks)
        if period.strangers:
            notes.append("other processes had the GPU open while it was timed: " + ", ".join(period.strangers))
        return timing.summarise(
            period.reference, period.candidate, compiled_us=period.compiled, wall_us=wall_us, notes=notes,
            clocks=period.clocks, strangers=period.strangers)

    async def _steady(self, effort: Effort, *, again: bool) -> tuple[Period | None, list[str]]:
        """A period of blocks on sets of its own, taken once more where it was not steady, if `again`."""
        filled = await self._fill(next(self._seeds), fixed=True)
        sets = filled["sets"]
        await self._verifier.ask("sets", sets=sets)
        order, notes = list(range(len(sets))), list[str]()
        reference_us, candidate_us = await self._warm(order, effort.budget_s / 8)
        overhead_us = 4000.0 + await self._refill_us()
        blocks, calls = timing.block_plan(
            reference_us, candidate_us, sets=len(sets), budget_s=effort.budget_s, most_blocks=effort.blocks,
            overhead_us=overhead_us)
        period = await self._period(blocks, calls, order, effort.audits)
        if again and period is not None and (why := _unsteady(period)):
            notes.append(f"timed twice: at first {why}")
            period = await self._period(blocks, calls, order, effort.audits)
            if period is not None and (why := _unsteady(period)):
                notes.append(f"the GPU was not steady: {why}")
        if period is not None:
            period.take_off(median(self._empty_us))
        return period, notes

    async def _period(self, blocks: int, calls: int, order: list[int], audits: int) -> Period | None:
        """Blocks in pairs, the reference first in one and the candidate first in the next. None when rejected."""
        audited = set(random.SystemRandom().sample(range(blocks), min(audits, blocks)))
        found = Period()
        for number in range(blocks):
            chosen = random.SystemRandom().sample(order, calls)
            await self._fill(next(self._seeds), fixed=False)
            seed = next(self._seeds) >> 8
            if number % 2 == 0:
                found.reference.append(await self._reference("eager", chosen, seed))
                found.candidate.append(await self._candidate(chosen, seed))
            else:
                found.candidate.append(await self._candidate(chosen, seed))
                found.reference.append(await self._reference("eager", chosen, seed))
            if self._gpu is not None:
                found.clocks.append(self._gpu.clocks())
            if self.compiled is not None:
                worker, which = self.compiled
                found.compiled.append((await _time(worker, which, chosen, seed))[0])
            if number in audited:
                await self._audit(chosen, seed)
                if self._ledger.rejected:
                    return None
        if self._gpu is not None:
            found.strangers = gpu_lock.strangers(self._gpu)
        return found

    async def _fill(self, seed: int, *, fixed: bool) -> dict[str, Any]:
        return await self._judge.call("fill_sets", timeout_s=JUDGE_S, family="example", seed=seed >> 8,
                                      fixed_seed=next(self._seeds), fixed=fixed, poison=fixed)

    async def _refill_us(self) -> float:
        begin = time.perf_counter()
        await self._fill(next(self._seeds), fixed=False)
        return (time.perf_counter() - begin) * 1e6

    async def _warm(self, order: list[int], block_s: float) -> tuple[float, float]:
        """Warm the candidate a random number of times, the reference until it settles. First estimates, in us.

        Calls that take long are made fewer times: a block takes `block_s` or so, two calls at least.
        """
        seed = next(self._seeds) >> 8
        first_us = await self._reference("eager", order[:2], seed)
        order = order[:max(2, int(block_s * 1e6 / first_us))]
        await self._reference("eager", order, seed)
        for _ in range(random.SystemRandom().randint(1, 3)):
            reply = await self._verifier.ask("block", order=order, seed=seed, keep=True)
        begin, seen = time.perf_counter(), []
        while not timing.settled(seen) and (not seen or time.perf_counter() - begin < WARM_S):
            seen.append(await self._reference("eager", order[:3], seed))
        return seen[-1], median(reply["times_us"])

    async def _reference(self, which: str, order: list[int], seed: int) -> float:
        reference_us, empty_us = await _time(self._judge, which, order, seed)
        self._empty_us.append(empty_us)
        return reference_us

    async def _candidate(self, order: list[int], seed: int) -> float:
        reply = await self._verifier.ask("block", order=order, seed=seed, keep=True)
        self._ledger.require("cuda errors", not reply["error"], f"pending after timed calls: {reply['error']}")
        return median(reply["times_us"])

    async def _audit(self, order: list[int], seed: int) -> None:
        """Check one timed call that nobody could know beforehand."""
        if self._contract.mode == "eval" and any(a.mutable for a in self._contract.arguments):
            self._ledger.skip("timed calls audited", "every call changes the state the next one starts from")
            return
        index = 0 if self._contract.random else random.SystemRandom().randrange(len(order))
        expected = await self._judge.call("audit", timeout_s=JUDGE_S, set=order[index], seed=seed)
        await self._verifier.ask("recopy", index=index, timed=True, outputs=expected["outputs"])
        found = await self._judge.call("check", timeout_s=JUDGE_S, zero_mean=False)
        wrong = [r for r in found["results"] if r[self._ledger.precision] is False]
        self._ledger.require("timed calls audited", not wrong, wrong[0]["why"] if wrong else "")
        self._ledger.require("inputs untouched", found["untouched"], "an argument changed during timed calls")
        self._ledger.require("guard bands", found["guards"], "memory beside an argument was written in timed calls")
        if wrong:
            self._ledger.verdict(self._ledger.precision, holds=False)

    async def _wall(self, period: Period) -> float | None:
        """The parent's slope of time over calls, and the gate on it.

        Anything that disturbs makes a slope steeper, so the least of a few tries counts. Where all are too steep, the
        reference is run likewise: a card that is held back by its power, or a busy host, slows both. A candidate whose
        process works meanwhile could be what slows it, and is allowed nothing for it.
        """
        event_us = median(period.candidate)
        clock = await self._slope(lambda count: self._verifier.ask("plain", count=count), event_us, event_us)
        hidden = timing.hidden_work(clock.wall_us, event_us, clock.issue_us)
        if hidden is not None:
            seed = next(self._seeds) >> 8
            await self._reference("eager", [0], seed)
            reference_us = median(period.reference)
            begin, before = time.perf_counter(), watch.busy_seconds(self._verifier.pid)
            plain = await self._slope(lambda count: self._judge.call(
                "plain", timeout_s=JUDGE_S, which="eager", count=count), reference_us, reference_us)
            after = watch.busy_seconds(self._verifier.pid)
            worked = before is not None and after is not None and (
                after - before > BUSY_SHARE * (time.perf_counter() - begin))
            slowed = 1.0 if worked else plain.wall_us / max(reference_us, plain.issue_us)
            hidden = timing.hidden_work(clock.wall_us, event_us, clock.issue_us, slowed)
        self._ledger.require("wall clock", hidden is None, hidden or "")
        return clock.wall_us or None

    async def _slope(self, plain: Callable[[int], Awaitable[dict[str, Any]]], call_us: float, event_us: float) -> Slope:
        """The least slope of `TRIES`, or the first that hides nothing."""
        many = int(min(max(MANY_US / max(call_us, 1.0), FEW_CALLS * 2), MOST_CALLS))
        few = min(FEW_CALLS, many // 4)
        await plain(few)
        found: list[Slope] = []
        for _ in range(TRIES):
            begin = time.perf_counter()
            await plain(few)
            middle = time.perf_counter()
            reply = await plain(many)
            wall_us = (time.perf_counter() - middle - (middle - begin)) / (many - few) * 1e6
            found.append(Slope(max(wall_us, 0.0), reply["issue_us"]))
            if timing.hidden_work(found[-1].wall_us, event_us, found[-1].issue_us) is None:
                break
        return min(found, key=lambda slope: slope.wall_us)


def _unsteady(period: Period) -> str | None:
    return timing.unsteady(period.reference, period.candidate, period.clocks)


async def _time(worker: Worker, which: str, order: list[int], seed: int) -> tuple[float, float]:
    """Median of a block of the judge's, and what its events cost, in microseconds."""
    reply = await worker.call("time", timeout_s=JUDGE_S, which=which, order=order, seed=seed)
    times = reply["times_us"]
    if not times:
        raise WorkerError("the reference was not timed", hint="this is a fault of ours")
    return median(times), reply["empty_us"]
