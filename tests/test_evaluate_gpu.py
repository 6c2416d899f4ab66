"""Ways to cheat that only a GPU shows, and honest use of streams, graphs and stream-ordered memory."""

import asyncio
import re
import sys
from dataclasses import replace

import pytest

from engine.devices import find_device
from engine.evaluate.build import Builder
from engine.evaluate.local import LocalEvaluator
from engine.records import Build
from engine.toolchain import find_toolchain
from tests.cheat_run import HANGS, TIMED, problem
from tests.cheat_tasks import contract_of, entries
from tests.evaluate_harness import DATA, FAST, Bench, write_many

ENTRIES = {str(entry): entry for entry in entries("gpu.cu")}
gpu = [pytest.mark.gpu, pytest.mark.timeout(300)]


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    """One build for all entries: they are functions of one source."""
    return tmp_path_factory.mktemp("cache")


async def judged(folder, cache, entry, *, best=None, **measures):
    """One entry on the GPU; beside a best of a search that is `best` times faster than the reference, where given."""
    contract, groundtruth = contract_of(entry.task)
    source = (DATA / "gpu.cu").read_text()
    write_many(folder, groundtruth, source)
    toolchain = await find_toolchain(sys.executable)
    device = await find_device()
    builder = Builder(toolchain, cache)
    evaluator = LocalEvaluator(toolchain, device, contract, folder, builder, settings=replace(FAST, compile_baseline="off"))
    try:
        await evaluator.prepare()
        build = await builder.build(folder, source, space="cuda_libs_torch", sm=device.sm)
        assert isinstance(build, Build), build
        if best is not None:
            evaluator._pace.best = evaluator._pace.strict = best
            measures["effort"] = FAST.search
        return await Bench(evaluator, contract, build).judge(entry.name, **measures)
    finally:
        await evaluator.close()


@pytest.mark.parametrize("name", [pytest.param(name, marks=gpu) for name in ENTRIES])
def test_gpu_entry(tmp_path, cache, name):
    entry = ENTRIES[name]
    call_s = HANGS.get(entry.name, 10.0 if entry.checks == {"runs"} else None)
    verdict = asyncio.run(judged(tmp_path / "folder", cache, entry, effort=TIMED if entry.timed else None, call_s=call_s))
    assert problem(entry, verdict) == ""
    if entry.name == "by_the_host":
        assert verdict.timing.speedup < 1


@pytest.mark.gpu
@pytest.mark.timeout(300)
def test_an_honest_kernel_is_left_where_the_best_is_far_ahead(tmp_path, cache):
    entry = next(entry for entry in ENTRIES.values() if not entry.checks)
    left = asyncio.run(judged(tmp_path / "left", cache, entry, best=1000.0))
    whole = asyncio.run(judged(tmp_path / "whole", cache, entry, best=0.001))
    assert left.slower, left.failure
    assert whole.failure is None
    assert 0.5 < left.timing.speedup / whole.timing.speedup < 2
    assert left.stage_s["verify"] < whole.stage_s["verify"]


def test_every_entry_says_what_it_is():
    defined = re.findall(r"^Tensor (\w+)\([^)]*\) \{", (DATA / "gpu.cu").read_text(), re.M)
    assert defined == [entry.name for entry in ENTRIES.values()]
    assert {row for entry in ENTRIES.values() for row in entry.rows} >= {15, 35, 39, 44, 51, 52, 57, 58, 59, 60, 65}
