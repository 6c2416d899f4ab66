"""Timing decisions on simulated samples: noise is not a gain, a small real gain is found, floors and gates hold."""

import asyncio
import random
from statistics import median

import pytest

from engine.evaluate import gpu_lock, timing
from engine.records import ClockSample, Device
from tests.timing_noise import CALM, SCENES, Noise, blocks

H200 = Device(kind="cuda", name="H200", sm="9.0", l2_bytes=60 << 20, dram_bytes_per_s=4.8e12)


PAIRS = 200
WHOLE = ("calm", "all of it")  # The other scenes get half as many.


def claims(noise, *, gain=1.0, pairs=PAIRS, count=20):
    """How many of `pairs` timings of the same two kernels claim that the candidate is faster."""
    generator = random.Random(f"{noise} {gain}")
    found = [timing.summarise(*blocks(generator, noise, gain=gain, count=count)) for _ in range(pairs)]
    return sum(run.ci95[0] > 1.0 for run in found), found


@pytest.mark.timeout(900)
@pytest.mark.parametrize("scene", SCENES)
def test_a_kernel_is_not_faster_than_itself(scene):
    pairs = PAIRS if scene in WHOLE else PAIRS // 2
    claimed, found = claims(SCENES[scene], pairs=pairs)
    assert claimed <= 0.03 * pairs
    assert sum(run.ci95[1] < 1.0 for run in found) <= 0.03 * pairs


@pytest.mark.timeout(900)
@pytest.mark.parametrize("scene", SCENES)
def test_two_percent_at_one_percent_noise_is_found(scene):
    pairs = 100 if scene in WHOLE else 50
    claimed, found = claims(SCENES[scene], gain=1.02, pairs=pairs)
    assert claimed >= 0.8 * pairs
    assert median(run.speedup for run in found) == pytest.approx(1.02, abs=0.004)


@pytest.mark.timeout(900)
def test_few_blocks_claim_no_more():
    claimed, found = claims(SCENES["all of it"], count=6)  # By Student's t, which costs nothing.
    assert claimed <= 0.03 * PAIRS
    assert all(run.same_vs_same is None for run in found)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("count", [6, 10, 20])
def test_intervals_hold_the_truth_as_often_as_they_say(count):
    generator = random.Random(11)
    # Without the smallest claim, which would hide an interval that is too narrow.
    found = [timing.ratio(*blocks(generator, Noise(call=0.03, memory=0.5), count=count))[1] for _ in range(PAIRS)]
    missed = sum(not low <= 1.0 <= high for low, high in found)
    assert missed <= 0.08 * PAIRS


def test_noise_and_drift_are_told_and_nothing_smaller_is_claimed():
    rough = timing.summarise(*blocks(random.Random(3), Noise(call=0.05, memory=0.9)))
    assert rough.same_vs_same > 0.01
    assert rough.minimum_detectable >= rough.same_vs_same
    assert rough.ci95[1] / rough.speedup >= 1 + rough.same_vs_same
    falling = [100.0 * 1.05**number for number in range(8)]
    run = timing.summarise(falling, falling)
    assert run.minimum_detectable > timing.SMALLEST_CLAIM
    assert "from one block to the next" in timing.unsteady(falling, falling, ())
    assert timing.unsteady(*blocks(random.Random(3), CALM), ()) is None


def sample(mhz, *throttled):
    return ClockSample(sm_mhz=mhz, throttled=throttled)


def test_pairs_at_another_clock_do_not_count():
    reference, candidate = [100.0] * 12, [90.0] * 12
    candidate[4:6] = 130.0, 130.0  # While the card ran slower, in these two pairs only.
    clocks = [sample(1980)] * 4 + [sample(1400)] * 2 + [sample(1980)] * 6
    assert timing.usable_quads(6, clocks) == [0, 1, 3, 4, 5]
    run = timing.summarise(reference, candidate, clocks=clocks)
    assert run.speedup == pytest.approx(100 / 90)
    assert run.clocks == tuple(clocks)
    assert timing.clock_notes(clocks) == [
        "the clock ran from 1400 to 1980 MHz; 2 of 12 pairs of blocks are off the usual one"]
    assert timing.unsteady(reference, candidate, clocks) is None


def test_a_clock_that_never_settles_is_told():
    clocks = [sample(1980 if number % 3 else 1200, "power cap") for number in range(12)]
    level = [100.0] * 12
    assert timing.unsteady(level, level, clocks) == "the clock ran from 1200 to 1980 MHz"
    assert timing.usable_quads(6, clocks) == list(range(6)), "too few would be left"
    assert timing.clock_notes(clocks)[0] == "clocks were held back (power cap) in 100% of the blocks"


def test_unknown_clocks_throw_nothing_away():
    assert timing.usable_quads(3, [ClockSample()] * 6) == [0, 1, 2]
    assert timing.clock_notes([ClockSample()] * 6) == []


def test_interval_and_compile_baseline():
    reference, candidate = blocks(random.Random(9), CALM, gain=2.0)
    run = timing.summarise(reference, candidate, compiled_us=[c * 1.5 for c in candidate])
    assert 1.9 < run.ci95[0] < run.speedup < run.ci95[1] < 2.1
    assert run.speedup_vs_compile == pytest.approx(1.5)
    assert run.compile_ci95[0] == pytest.approx(1.5 / 1.01, rel=0.01), "no narrower than what the run can see"


def test_the_same_samples_give_the_same_interval():
    samples = blocks(random.Random(4), CALM)
    assert timing.summarise(*samples) == timing.summarise(*samples)


def test_one_disturbed_block_moves_nothing():
    reference, candidate = blocks(random.Random(5), CALM)
    before = timing.summarise(reference, candidate)
    candidate[7] *= 30
    after = timing.summarise(reference, candidate)
    assert after.speedup == pytest.approx(before.speedup, rel=0.005)


@pytest.mark.parametrize("candidate", [[], [1.0], [1.0, 1.0], [0.0, 1.0, 1.0, 1.0]])
def test_no_pairs_or_no_time_is_refused(candidate):
    with pytest.raises(ValueError, match=r"pairs|positive"):
        timing.summarise([1.0] * len(candidate), candidate)


def test_faster_than_memory_allows():
    floor = timing.hard_floor_us(1 << 30, 1 << 30, H200)
    assert 400 < floor < 460
    assert timing.implausible(floor * 0.9, floor)
    assert timing.implausible(floor, floor) is None
    assert timing.hard_floor_us(1 << 20, 1 << 20, H200) == 0


def test_hidden_work():
    assert timing.hidden_work(wall_us=100, event_us=10, issue_us=8)
    assert timing.hidden_work(wall_us=40, event_us=10, issue_us=38) is None
    assert timing.hidden_work(wall_us=1500, event_us=1000, issue_us=8)
    assert timing.hidden_work(wall_us=1500, event_us=1000, issue_us=8, slowed=1.3) is None
    assert timing.hidden_work(wall_us=2100, event_us=1000, issue_us=8, slowed=50)
    assert timing.hidden_work(wall_us=1300, event_us=1000, issue_us=8, slowed=0.5)


@pytest.mark.parametrize(("time_us", "sets"), [(5, 12), (500, 12), (20_000, 2), (300_000, 1)])
def test_blocks_fit_the_budget(time_us, sets):
    count, calls = timing.block_plan(time_us, time_us, sets=sets, budget_s=3.0, most_blocks=20, overhead_us=5000)
    assert 6 <= count <= 20
    assert count % 2 == 0
    assert 1 <= calls <= sets


def test_gpu_lock_excludes(tmp_path):
    order = []

    async def hold(name, seconds):
        async with gpu_lock.exclusive(0, folder=tmp_path):
            order.append(f"{name} in")
            await asyncio.sleep(seconds)
            order.append(f"{name} out")

    async def both():
        await asyncio.gather(hold("a", 0.2), hold("b", 0.0))

    asyncio.run(both())
    assert order in (["a in", "a out", "b in", "b out"], ["b in", "b out", "a in", "a out"])


def test_a_toolkit_without_a_librarys_headers_is_no_fault_of_the_candidate():
    from engine.evaluate.host_build import lacks_library
    from engine.records import Failure

    missing = Failure(stage="build", reason="cuda_source.cu:15: cublas_v2.h: No such file or directory")
    own = Failure(stage="build", reason="cuda_source.cu:3: my_header.h: No such file or directory")

    assert lacks_library(missing)
    assert not lacks_library(own)
