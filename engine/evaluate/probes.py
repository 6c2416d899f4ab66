"""Probes beside the trials: what a candidate keeps between calls, how it bears odd inputs, and what it does unasked.

Each runs after the trials, on a candidate that has given right answers so far, and books one named check.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from contracts.errors import WorkerError
from engine.evaluate import trials, watch

if TYPE_CHECKING:
    from engine.evaluate.verify import Verifier

QUIET_S, SECOND_LOOK_S, BUSY_SHARE = 0.1, 0.4, 0.1
LOAD_S = 0.2
LEAST_DRAWS = 4
UNLIKE_SHARE = 0.75


async def one_element_changed(verifier: Verifier) -> None:
    """A draw that the candidate sees, and then that draw with one element changed, several times."""
    ledger, limits = verifier.ledger, verifier.limits
    wanted, least = trials.changes(verifier.contract, limits)
    seed = verifier.next_seed() >> 8
    drawn = await verifier.draw({"variant": 0, "family": "randn", "set": 0, "phase": 0})
    verifier.families.append("randn")
    expected = await verifier.expect(seed=seed, remember=True)
    await verifier.judged(drawn["arguments"], expected, seed=seed, zero_mean=True, fresh=True)
    begin, done, blind = time.perf_counter(), 0, 0
    for one in wanted:
        spent = verifier.worked_s + time.perf_counter() - begin
        enough = done >= limits.perturbations or (done >= least and spent > limits.search_s)
        if ledger.rejected or enough or blind >= limits.perturbations:
            break
        changed = await verifier.judge.call(
            "change", timeout_s=limits.judge_s, seed=verifier.next_seed(), argument=one.argument, where=one.where)
        # The same random numbers: what is drawn in the call must not be what shows.
        expected = {"shows": False}
        if changed["changed"]:
            try:
                expected = await verifier.expect(seed=seed)
            except WorkerError:
                # One value of the example's range need not suit the others, as in a positive definite matrix.
                if not verifier.confined:
                    raise
        if expected["shows"] is False:
            blind += 1
            continue
        verifier.families.append("one element changed")
        await verifier.judged(drawn["arguments"], expected, seed=seed, zero_mean=True, check="one element changed",
                              count_threads=True)
        done += 1
    if done and not ledger.rejected:
        ledger.ok("one element changed", f"{done} changes" + (f", {blind} more do not show" if blind else ""))
    elif not done:
        why = "no single element shows in the output" if blind else "there is no argument to change"
        ledger.skip("one element changed", why)


async def repeats(verifier: Verifier) -> None:
    """The same inputs again and again, every second time while another process keeps the device busy."""
    ledger, limits = verifier.ledger, verifier.limits
    seed = verifier.next_seed() >> 8
    expected = await verifier.expect(seed=seed)
    first: list[str] = []
    same = True
    for number in range(limits.repeats):
        loaded = number % 2 == 1 and not verifier.emulated
        name = "under load" if loaded else "repeatability"
        load = asyncio.ensure_future(verifier.judge.call(
            "busy", timeout_s=limits.judge_s, seconds=LOAD_S)) if loaded else None
        try:
            reply = await verifier.ask("call", arguments=verifier.last["arguments"], outputs=expected["outputs"],
                                       seed=seed)
        finally:
            if load is not None:
                await load
        if not verifier.returned(reply, expected["outputs"]):
            return
        found = await verifier.check(zero_mean=True)
        first = first or found["sums"]
        same = same and first == found["sums"]
        holds = all(r[ledger.precision] is not False for r in found["results"])
        verifier.book(found, name)
        ledger.require(name, holds, "the same inputs gave a result outside the error budget")
    ledger.metrics["bitwise_repeatable"] = float(same)
    if verifier.emulated:
        ledger.skip("under load", "the CPU runs one thread after another; every second call runs them backwards")


async def held_outputs(verifier: Verifier) -> None:
    """Results of earlier calls are still what they were."""
    ledger = verifier.ledger
    for index, held in enumerate(verifier.held):
        await verifier.ask("recopy", index=index, outputs=held["outputs"])
        sums = await verifier.judge.call("sums", timeout_s=verifier.limits.judge_s, outputs=held["outputs"])
        ledger.require("held outputs", sums["sums"] == held["sums"], "a later call changed an earlier call's output")
    if len(verifier.held) < 2:
        ledger.skip("held outputs", "outputs too large to hold several")
    await verifier.ask("drop")


async def misaligned_views(verifier: Verifier) -> None:
    """Inputs that begin one element behind an aligned address: a right answer, or a refusal."""
    trial = trials.misaligned(verifier.contract)
    if trial is None:
        verifier.ledger.skip("misaligned views", "the inputs are too large for a second copy")
        return
    verifier.during = trial.check
    await verifier.trial(trial)
    verifier.during = "runs"


async def quiet(verifier: Verifier) -> None:
    """Nothing runs in the candidate's process while nothing is asked of it: it would slow the reference down."""
    busy = 0.0
    for seconds in (QUIET_S, SECOND_LOOK_S):
        before = watch.busy_seconds(verifier.pid)
        await asyncio.sleep(seconds)
        after = watch.busy_seconds(verifier.pid)
        if before is None or after is None:
            verifier.ledger.skip("quiet", "the process's CPU time cannot be read here")
            return
        busy = (after - before) / seconds
        if busy <= BUSY_SHARE:
            verifier.ledger.ok("quiet")
            return
    verifier.ledger.fail("quiet", f"it wanted a core for {100 * busy:.0f} % of the time between calls")


def one_does_the_work_of_several(blocks: Sequence[Sequence[float]]) -> str:
    """Why the calls of timed blocks are not alike, or nothing.

    Arguments of a whole block lie ready before it begins, so that one call could do the work of all, and the median
    of the others would then be that of looking up a result. An interruption falls on a call by chance, not in most
    blocks.

    Args:
        blocks: Microseconds of each call, block by block.
    """
    shares = []
    for times in blocks:
        if len(times) > 1:
            most = sorted(times, reverse=True)[:max(1, len(times) // 4)]
            shares.append(sum(most) / sum(times))
    share = median(shares) if shares else 0.0
    if share < UNLIKE_SHARE:
        return ""
    return f"a quarter of the timed calls took {100 * share:.0f} % of the time: they do the work of the others"


def bias(verifier: Verifier, found: dict[str, list[dict[str, Any]]]) -> None:
    """Errors of one sign in every independent draw, and larger than rounding explains."""
    draws = min((len(results) for results in found.values()), default=0)
    if draws < LEAST_DRAWS:
        verifier.ledger.skip("bias", f"only {draws} independent draws")
        return
    worst = 0.0
    for name, results in found.items():
        for kind, words in (("lean", "of its size"), ("bias", "upwards or downwards")):
            values = [result[kind] for result in results]
            if min(values) < 0 < max(values):
                continue
            least = min(abs(value) for value in values)
            worst = max(worst, least)
            verifier.ledger.require(
                "bias", least <= 1.0,
                f"{name}: the error has one sign ({words}) in all of {len(values)} draws, {least:.3g} times what "
                "rounding explains")
    verifier.ledger.ok("bias")
    verifier.ledger.metrics["bias"] = worst
