"""The driver of paired timing, with stand-ins for judge and candidate: order of blocks, repeats, clocks, strangers."""

import asyncio
import os
import sys
import time
from pathlib import Path

import pytest

from contracts.contract import Argument, Contract, Variant
from contracts.tensors import TensorSpec
from engine import nvml, processes
from engine.evaluate import gpu_lock, measure, timing
from engine.evaluate.checks import Ledger
from engine.evaluate.local import EMULATED_LIMITS
from engine.evaluate.measure import Effort, Timer
from engine.evaluate.trials import Limits
from engine.records import Device
from tests.fake_nvml import CARD, device, library, say  # noqa: F401 - fixtures.

# ruff: noqa: F811 - fixtures come by import.

SPEC = TensorSpec.contiguous("float32", (4, 8))
CONTRACT = Contract(
    name="scale", entry="scale", output_tree=0, arguments=(Argument(name="x", role="input", tensor=SPEC),),
    variants=(Variant(name="example", tensors={"x": SPEC}, outputs=(SPEC,)),))
EFFORT = Effort(budget_s=60.0, blocks=8, audits=2)


class Machine:
    """Judge and verifier at once; `time_us(side, number)` is what a block takes when `number` of the candidate's ran."""

    empty_us = 0.0

    def __init__(self, time_us, in_a_row_us=None):
        self.in_a_row_us = in_a_row_us
        self.ledger, self.time_us, self.order, self.numbers = Ledger("match"), time_us, "", {"r": 0, "c": 0}

    def block(self, side, calls):
        self.order += side
        self.numbers[side] += 1
        return [self.time_us(side, self.numbers["c"])] * calls

    async def call(self, kind, *, timeout_s, **fields):
        if kind == "time":
            return {"times_us": self.block("r", len(fields["order"])), "empty_us": self.empty_us}
        if kind == "plain":
            return await self.plain("r", fields["count"])
        return {"fill_sets": {"sets": [[]] * 12}, "audit": {"outputs": []},
                "check": {"results": [], "untouched": True, "guards": True}}[kind]

    async def plain(self, side, count):
        """Calls in a row: as slow as the host issues them, unless `in_a_row_us` says otherwise."""
        if self.in_a_row_us is None:
            return {"issue_us": 1e6, "error": ""}
        time.sleep(self.in_a_row_us[side] * count * 1e-6)  # noqa: ASYNC251 - the parent's clock is what is tested.
        return {"issue_us": 1.0, "error": ""}

    pid = None

    async def ask(self, kind, **fields):
        if kind == "block":
            return {"times_us": self.block("c", len(fields["order"])), "error": ""}
        return await self.plain("c", fields.get("count", 0))


async def timed(time_us, gpu=None):
    machine = Machine(time_us)
    found = await Timer(machine, machine, CONTRACT, Device(kind="cuda", name="H200", sm="9.0"), gpu=gpu).run(EFFORT)
    assert not machine.ledger.rejected, machine.ledger.failures
    return found, machine.order


async def test_blocks_come_as_quads():
    found, order = await timed(lambda side, _number: 100.0 if side == "r" else 80.0)
    assert order.endswith("rccr" * 4)
    assert found.speedup == pytest.approx(1.25)
    assert found.clocks == ()
    assert found.strangers == ()


async def test_what_events_cost_is_taken_off_both_sides_alike(monkeypatch):
    monkeypatch.setattr(Machine, "empty_us", 2.0)
    same, _order = await timed(lambda _side, _number: 10.0)
    half, _order = await timed(lambda side, _number: 10.0 if side == "r" else 6.0)
    assert (same.speedup, same.median_us) == (1.0, 8.0)
    assert half.speedup == pytest.approx(2.0)
    assert timing.without(2.0, [3.0, 1.0]) == [1.0, timing.LEAST_US]


async def test_a_glance_is_six_blocks_and_says_so():
    machine = Machine(lambda side, _number: 100.0 if side == "r" else 140.0)
    found = await Timer(machine, machine, CONTRACT, Device(kind="cuda", name="H200", sm="9.0")).glance()
    assert found.speedup == pytest.approx(100.0 / 140.0)
    assert found.notes == ("timed briefly, by six pairs of blocks",)
    assert len(found.candidate_us) == 6
    assert machine.order.endswith("rccr" * 3)


async def test_the_reference_is_warmed_until_it_settles(monkeypatch):
    monkeypatch.setattr(measure, "WARM_S", 60.0)
    machine = Machine(lambda _side, _number: 100.0 * (1 + 1 / len(machine.order)))  # Gets faster, ever more slowly.
    await Timer(machine, machine, CONTRACT, Device(kind="cuda", name="H200", sm="9.0")).run(EFFORT)
    warm = machine.order[:-len("rccr" * 4)]
    assert warm.rstrip("r").count("c") in (1, 2, 3)
    assert len(warm) - len(warm.rstrip("r")) >= 4
    assert timing.settled([100.0, 101.0, 100.5])
    assert not timing.settled([100.0, 101.0, 104.0])
    assert not timing.settled([100.0, 100.0])


async def test_an_unsteady_period_is_taken_again_and_told():
    # Grows over the first period, then holds still.
    found, order = await timed(lambda _side, number: 100.0 * 1.08 ** min(number, 9))
    assert order.endswith("rccr" * 8)
    assert any(note.startswith("timed twice: at first the same kernel took +") for note in found.notes)
    assert not any("not steady" in note for note in found.notes)
    assert found.ci95[0] < 1.0 < found.ci95[1]


async def test_a_card_that_stays_unsteady_claims_little():
    found, _order = await timed(lambda _side, number: 100.0 * 1.08**number)
    assert any(note.startswith("the GPU was not steady") for note in found.notes)
    assert found.minimum_detectable > 0.015


async def test_clocks_and_strangers_are_in_the_result(say):
    stranger = await asyncio.create_subprocess_exec("sleep", "600")
    try:
        say(CARD.replace("reasons 0", "reasons 4") + f"process {stranger.pid} 1000\nprocess {os.getpid()} 1000\n")
        found, _order = await timed(lambda _side, _number: 100.0, nvml.find_gpu(device()))
    finally:
        stranger.kill()
        await stranger.wait()
    assert len(found.clocks) == 8
    assert (found.clocks[0].sm_mhz, found.clocks[0].temperature_c) == (1980, 41)
    assert "clocks were held back (power cap) in 100% of the blocks" in found.notes
    assert any(f"{stranger.pid} sleep" in note for note in found.notes)
    assert f"{stranger.pid} sleep" in found.strangers


async def test_our_own_workers_and_the_unseen_are_no_strangers(say, tmp_path, monkeypatch):
    main = tmp_path / "worker" / "main.py"
    main.parent.mkdir()
    main.write_text("import sys, time\nfor line in sys.stdin:\n    time.sleep(60)\n")
    monkeypatch.setattr(processes, "WORKER_MAIN", main)
    worker = processes.Worker("echo", python=sys.executable)
    asking = asyncio.create_task(worker.call("hello", timeout_s=60))
    while worker.pid is None or b"main.py" not in Path(f"/proc/{worker.pid}/cmdline").read_bytes():  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    try:
        say(CARD + f"process {worker.pid} 1000\nprocess 4194000 1000\n")
        assert gpu_lock.strangers(nvml.find_gpu(device())) == ()
    finally:
        asking.cancel()
        await worker.close()


@pytest.mark.parametrize(("in_a_row_us", "reason"), [
    ({"c": 1050.0, "r": 1000.0}, None),
    ({"c": 1500.0, "r": 1000.0}, "work runs outside the events"),
    ({"c": 1500.0, "r": 1480.0}, None),  # A card held back by its power, say: the reference is as much slower.
    ({"c": 2600.0, "r": 2600.0}, "work runs outside the events"),  # So much is not believed of any disturbance.
])
async def test_the_parents_clock_allows_for_what_slows_the_reference_too(in_a_row_us, reason):
    machine = Machine(lambda _side, _number: 1000.0, in_a_row_us)
    found = await Timer(machine, machine, CONTRACT, Device(kind="cuda", name="H200", sm="9.0")).run(EFFORT)
    assert (reason in machine.ledger.reason()) if reason else not machine.ledger.rejected
    assert found is None if reason else found.wall_us == pytest.approx(in_a_row_us["c"], rel=0.15)


async def test_a_process_that_works_while_the_reference_is_timed_is_allowed_nothing_for_it(monkeypatch):
    machine = Machine(lambda _side, _number: 1000.0, {"c": 1500.0, "r": 1480.0})
    monkeypatch.setattr(measure.watch, "busy_seconds", lambda _pid: time.perf_counter())  # One thread, all the time.
    assert await Timer(machine, machine, CONTRACT, Device(kind="cuda", name="H200", sm="9.0")).run(EFFORT) is None
    assert "work runs outside the events" in machine.ledger.reason()


@pytest.mark.parametrize(("reference_s", "limit_s"), [(0.002, 15.0), (0.1, 30.0), (5.0, 60.0)])
def test_an_endless_call_costs_what_the_reference_explains(reference_s, limit_s):
    assert EMULATED_LIMITS.call_limit_s(reference_s) == pytest.approx(limit_s)
    assert Limits(call_s=3.0).call_limit_s(reference_s) == 3.0
