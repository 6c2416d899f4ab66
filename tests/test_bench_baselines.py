"""Baselines and KernelBench's protocol, by the real worker on the CPU."""

import asyncio
import fcntl
import importlib.util
import json
import select
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from contracts.errors import HieraError
from engine.bench import protocol
from engine.bench.baselines import BaselineFile, measure
from engine.bench.protocol import Place, Protocol
from engine.bench.tasks import BenchTask
from engine.evaluate import gpu_lock
from engine.processes import WORKER_MAIN
from engine.records import Build

CODE = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scale = nn.Parameter(torch.randn(width))

    def forward(self, x):
        return torch.relu(x * self.scale)

def get_inputs():
    return [torch.rand(64, 32)]

def get_init_inputs():
    return [32]
"""
DEMO = """
import torch
from torch.utils.cpp_extension import load_inline
import importlib.util
from pathlib import Path

spec = importlib.util.spec_from_file_location("reference", Path(__file__).with_name("groundtruth.py"))
reference = importlib.util.module_from_spec(spec)
spec.loader.exec_module(reference)

class ModelNew(reference.Model):
    def forward(self, x):
        assert Path(__file__).with_name("cuda_source.cu").read_text() == "// source"
        assert load_inline(name="never built").bisect_right([1, 2, 3], 2) == 2
        return {expression}
"""
FACTS = {"device": "a CPU", "torch": "2"}
TASK = BenchTask(level=1, id=2, name="scaled_relu", code=CODE)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "task.py"
    path.write_text(CODE)
    return path


@pytest.fixture
def place():
    return Place(python=sys.executable, device="cpu", environment={})


async def measured(file, place, out, forms, tasks=(TASK,)):
    queue = asyncio.Queue()
    for task in tasks:
        queue.put_nowait((task, file))
    kept, said = BaselineFile(out), []
    await measure(queue, place, FACTS, kept, forms=forms, provenance={"commit": "abc"}, on_line=said.append)
    return kept, said


async def test_baselines_are_measured_once_and_kept(file, place, tmp_path):
    out = tmp_path / "o.baselines.jsonl"

    kept, said = await measured(file, place, out, ("eager", "graph"))

    rows = [json.loads(line) for line in out.read_text().splitlines()]
    eager, graph = rows
    assert (eager["form"], eager["valid"], eager["runs"], eager["warmups"]) == ("eager", True, 100, 3)
    assert 0 < eager["min_us"] <= eager["median_us"] <= eager["max_us"]
    assert (eager["device"], eager["torch"], eager["commit"], eager["code_sha256"]) == ("a CPU", "2", "abc", TASK.sha256)
    assert graph["median_us"] is None, "there is no CUDA graph on a CPU"
    assert graph["note"]
    assert "1/2 baselines: eager" in said[0]

    # A form that failed is tried once more, for it may have lacked memory; then it is a finding.
    await measured(file, place, out, ("eager", "graph"))
    assert len(out.read_text().splitlines()) == 3
    kept, said = await measured(file, place, out, ("eager", "graph"))
    assert len(out.read_text().splitlines()) == 3
    assert said == []
    assert kept.missing(TASK, FACTS, ("eager", "compile")) == ["compile"]
    assert kept.missing(TASK, {**FACTS, "torch": "3"}, ("eager",)) == ["eager"]
    other = BenchTask(level=1, id=2, name="scaled_relu", code=CODE + "\n")
    assert kept.missing(other, FACTS, ("eager",)) == ["eager"]


async def test_baselines_of_an_earlier_sitting_are_used_and_a_torn_line_is_not(file, place, tmp_path):
    earlier, out = tmp_path / "earlier.jsonl", tmp_path / "o.jsonl"
    await measured(file, place, earlier, ("eager",))
    out.write_text('{"level": 1, "id"')
    kept = BaselineFile(out, [earlier])
    assert kept.missing(TASK, FACTS, ("eager",)) == []
    assert out.read_text() == ""


async def test_a_task_that_cannot_run_costs_its_own_baselines_only(place, tmp_path, file):
    broken = tmp_path / "broken.py"
    broken.write_text("raise SystemError('no')")
    queue = asyncio.Queue()
    queue.put_nowait((BenchTask(level=1, id=4, name="broken", code="x"), broken))
    queue.put_nowait((TASK, file))
    kept = BaselineFile(tmp_path / "o.jsonl")
    await measure(queue, place, FACTS, kept, forms=("eager",), provenance={}, on_line=lambda _line: None)
    rows = {row["id"]: row for row in kept.rows.values()}
    assert "SystemError: no" in rows[4]["note"]
    assert rows[2]["median_us"] > 0


@pytest.mark.parametrize(("expression", "valid"), [
    ("torch.relu(x * self.scale)", True), ("torch.relu(x * self.scale) + 1e-6", True),
    ("torch.relu(x * self.scale) + 1e-2", False), ("torch.relu(x * self.scale)[:, :1]", False),
    ("torch.relu(x * self.scale) * float('nan')", False), ("torch.relu(x * self.scale).double()", False)])
async def test_kernelbenchs_verdict_on_a_candidate(file, place, tmp_path, expression, valid):
    (tmp_path / "groundtruth.py").write_text(CODE)
    (tmp_path / "torch_demo.py").write_text(DEMO.format(expression=expression))
    # Any extension module shows that the built one is loaded and nothing is compiled.
    built = importlib.util.find_spec("_bisect").origin
    if not built or not built.endswith(".so"):
        pytest.skip("this Python has no _bisect of its own file")
    measuring = Protocol(place, file)
    try:
        await measuring.open()
        await measuring.candidate(tmp_path, "// source", Build(seconds=0.0, tier="light", extension=built, module="_bisect"))
        verdict = await measuring.validate("candidate")
        assert verdict["valid"] is valid
        assert verdict["trials"] == (protocol.TRIALS if valid else 1)
        row = await measuring.times("candidate")
        assert row["runs"] == 100
        assert row["speedup"] == pytest.approx(row["eager_median_us"] / row["median_us"])
    finally:
        await measuring.close()


async def test_slow_references_get_fewer_runs(file, place, tmp_path, monkeypatch):
    monkeypatch.setattr(protocol, "BUDGET_S", 1e-6)
    measuring = Protocol(place, file)
    try:
        await measuring.open()
        assert (await measuring.times("eager"))["runs"] == protocol.FEWEST
        with pytest.raises(HieraError):
            await measuring.times("never made")
    finally:
        await measuring.close()


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_torch_compile_is_a_baseline(file, place, tmp_path):
    kept, _ = await measured(file, Place(python=sys.executable, device="cpu", nice=5, environment={
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor")}), tmp_path / "o.jsonl", ("compile",))
    (row,) = kept.rows.values()
    assert row["note"] is None
    assert (row["valid"], row["runs"]) == (True, 100)
    assert row["compile_s"] > 0


def test_autotuning_waits_while_another_process_times(tmp_path):
    """The worker's side of the GPU's lock, in a process of its own, around what inductor calls to benchmark."""
    locks = [gpu_lock.path_of(0, kind, tmp_path) for kind in ("gate", "lock")]
    script = tmp_path / "tune.py"
    script.write_text(textwrap.dedent(f"""
        import importlib.util, sys
        spec = importlib.util.spec_from_file_location("worker_main", {str(WORKER_MAIN)!r})
        main = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(main)
        main.load_package({str(WORKER_MAIN.parent)!r})
        import torch
        torch.cuda.synchronize = lambda *_: None
        import torch._inductor.runtime.benchmarking as benchmarking

        class Fake:
            def benchmark_gpu(self, what):
                return self.inner(what)
            def inner(self, what):
                return f"tuned {{what}}"

        benchmarking.Fake = Fake
        from _hiera_worker import kernelbench
        kernelbench._share_the_gpu({[str(path) for path in locks]!r})
        print("ready", flush=True)
        sys.stdin.readline()
        print(Fake().benchmark_gpu("a"), flush=True)
        print(Fake().benchmark_gpu("b"), flush=True)
    """))
    with locks[1].open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        child = subprocess.Popen([sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            assert child.stdout.readline() == "ready\n"
            child.stdin.write("go\n")
            child.stdin.flush()
            assert select.select([child.stdout], [], [], 1.0)[0] == [], "it tuned while somebody timed"
            fcntl.flock(held, fcntl.LOCK_UN)
            assert child.stdout.read() == "tuned a\ntuned b\n"
            assert child.wait(timeout=60) == 0
        finally:
            child.kill()
            child.wait()
    # Nothing is held afterwards.
    with Path(locks[1]).open("w") as free:
        fcntl.flock(free, fcntl.LOCK_EX | fcntl.LOCK_NB)
