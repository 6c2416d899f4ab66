"""Timing decisions on simulated samples: noise is not a gain, a small real gain is found, floors and gates hold."""

import asyncio
import random
from statistics import median

import pytest

from engine.evaluate import gpu_lock, timing
from engine.records import Device

H200 = Device(kind="cuda", name="H200", sm="9.0", l2_bytes=60 << 20, dram_bytes_per_s=4.8e12)


def blocks(generator, gain=1.0, noise=0.01, drift=0.03, count=20, calls=10):
    """Interleaved block medians of a reference of 100 us and a candidate `gain` times faster, on a drifting clock."""
    reference, candidate = [], []
    step = 0
    for number in range(count):
        pair = {}
        for side in ("rc" if number % 2 == 0 else "cr"):
            scale = 100.0 / (gain if side == "c" else 1.0)
            samples = []
            for _ in range(calls):
                slow = 1.5 if generator.random() < 0.02 else 1.0
                samples.append(scale * (1 + drift * step / (2 * count * calls)) * generator.lognormvariate(0, noise) * slow)
                step += 1
            pair[side] = median(samples)
        reference.append(pair["r"])
        candidate.append(pair["c"])
    return reference, candidate


@pytest.mark.parametrize(("noise", "drift"), [(0.01, 0.0), (0.01, 0.1), (0.03, 0.03)])
def test_identical_candidates_are_not_called_faster(noise, drift):
    generator = random.Random(7)
    runs = [timing.summarise(*blocks(generator, noise=noise, drift=drift)) for _ in range(100)]
    assert sum(timing.claims_faster(run) for run in runs) <= 3


def test_two_percent_at_one_percent_noise_is_found():
    generator = random.Random(8)
    runs = [timing.summarise(*blocks(generator, gain=1.02)) for _ in range(50)]
    assert sum(timing.claims_faster(run) for run in runs) >= 40
    assert median(run.speedup for run in runs) == pytest.approx(1.02, abs=0.004)


def test_interval_and_compile_baseline():
    reference, candidate = blocks(random.Random(9), gain=2.0)
    run = timing.summarise(reference, candidate, compiled_us=[c * 1.5 for c in candidate])
    assert run.ci95[0] <= run.speedup <= run.ci95[1]
    assert run.speedup_vs_compile == pytest.approx(1.5)
    assert timing.claims_faster(run)
    assert not timing.claims_faster(run, factor=2.1)


@pytest.mark.parametrize("candidate", [[], [1.0], [0.0, 1.0]])
def test_no_pairs_or_no_time_is_refused(candidate):
    with pytest.raises(ValueError, match=r"pairs|positive"):
        timing.summarise([1.0, 1.0], candidate)


def test_faster_than_memory_allows():
    floor = timing.hard_floor_us(1 << 30, 1 << 30, H200)
    assert 400 < floor < 460
    assert timing.implausible(floor * 0.9, floor)
    assert timing.implausible(floor, floor) is None
    assert timing.hard_floor_us(1 << 20, 1 << 20, H200) == 0


def test_hidden_work():
    assert timing.hidden_work(wall_us=100, event_us=10, issue_us=8)
    assert timing.hidden_work(wall_us=40, event_us=10, issue_us=38) is None


@pytest.mark.parametrize(("time_us", "sets"), [(5, 12), (500, 12), (20_000, 2), (300_000, 1)])
def test_blocks_fit_the_budget(time_us, sets):
    count, calls = timing.block_plan(time_us, time_us, sets=sets, budget_s=3.0, most_blocks=20, overhead_us=5000)
    assert 5 <= count <= 20
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
    from engine.evaluate.local import _lacks_library
    from engine.records import Failure

    missing = Failure(stage="build", reason="cuda_source.cu:15: cublas_v2.h: No such file or directory")
    own = Failure(stage="build", reason="cuda_source.cu:3: my_header.h: No such file or directory")

    assert _lacks_library(missing)
    assert not _lacks_library(own)
