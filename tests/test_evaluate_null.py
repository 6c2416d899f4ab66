"""The task's own null test: what says nothing is told, and depth alone makes no task say nothing."""

import asyncio
import contextlib
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from contracts.contract import Argument, Contract, Variant
from contracts.errors import HieraError, InputError, WorkerTimeoutError
from engine.evaluate.baseline import Baselines
from engine.evaluate.build import Builder
from engine.evaluate.local import LocalEvaluator
from engine.evaluate.session import Session
from engine.evaluate.timing import summarise as timing_of
from engine.evaluate.verify import StoppedError
from engine.extract_cu import extract_cu
from engine.records import Build, Device
from engine.toolchain import find_toolchain
from tests.evaluate_harness import NO_GPU, softmax_contract, spec

LAYERS, WIDTH = 20, 32
DEEP = f"""
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear({WIDTH}, {WIDTH}) for _ in range({LAYERS}))
    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return RESULT
def get_inputs():
    return [torch.randn(16, {WIDTH})]
def get_init_inputs():
    return []
"""


def deep_contract() -> Contract:
    x = spec("float32", 16, WIDTH)
    arguments = [Argument(name="x", role="input", tensor=x, path="x")]
    for number in range(LAYERS):
        for name, tensor in (("weight", spec("float32", WIDTH, WIDTH)), ("bias", spec("float32", WIDTH))):
            arguments.append(Argument(name=f"{name}{number}", role="parameter", tensor=tensor,
                                      path=f"layers.{number}.{name}"))
    return Contract(name="deep", entry="deep", arguments=tuple(arguments), output_tree=0, variants=(
        Variant(name="example", tensors={a.name: a.tensor for a in arguments}, outputs=(x,)),))


async def opened(folder, result):
    (folder / "groundtruth.py").write_text(DEEP.replace("RESULT", result))
    session = Session(await find_toolchain(sys.executable), deep_contract(), folder, "cpu", budget_bytes=lambda: 1 << 26)
    try:
        await session.open()
        before = session.opened, session.trivial
        await session.reopen()
        carrying = session.weights_carry
        return before[1], carrying
    finally:
        await session.close()


@pytest.mark.parametrize(("result", "trivial", "carries"), [
    # PyTorch's initialiser shrinks a signal to 1/sqrt(6) a layer: after 20 of them only biases are left.
    ("x", (), True),
    # Nothing helps a task that is a constant by its text: its weights stay as the user's are.
    ("x * 0 + 1", ("a constant", "another seed's output"), False),
    # What depends on weights alone says something: every trial draws them too.
    ("x * 0 + self.layers[0].weight.abs().sum() * torch.ones(1)", (), False),
    # Here the inputs do count, and drown: who leaves them out is not to be accepted.
    ("x * 1e-12 + self.layers[0].weight.abs().sum() * torch.ones(1)", ("a constant", "another seed's output"), False),
])
def test_depth_is_no_reason_to_say_nothing(tmp_path, result, trivial, carries):
    found, carrying = asyncio.run(opened(tmp_path, result))
    assert set(found) == set(trivial)
    assert carrying is carries


async def test_the_kernel_of_the_timing_benchmark_can_be_accepted(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent / "bench"))
    import same_vs_same

    (tmp_path / "steps.cu").write_text(same_vs_same.KERNEL.replace("STEPS", "4"))
    toolchain = replace(await find_toolchain(sys.executable), nvcc=None)
    own = await extract_cu(tmp_path / "steps.cu", None, out=tmp_path / "contract", python=toolchain.python)
    evaluator = LocalEvaluator(toolchain, NO_GPU, own.contract, own.folder, Builder(toolchain, tmp_path / "cache"))
    try:
        await evaluator.prepare()
        assert evaluator.session.trivial == ()
    finally:
        await evaluator.close()


def test_the_usual_way_of_the_speed_benchmark_binds_what_a_source_declares(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent / "bench"))
    import evaluator
    from evaluator_corpus import Source

    (tmp_path / "cpp_source.cpp").write_text("torch::Tensor scale_forward(torch::Tensor x);\n")
    monkeypatch.setattr(evaluator.subprocess, "run", lambda *_a, **_k: subprocess.CompletedProcess([], 0, '{"seconds": 1}'))
    source = Source(name="scale", text="", space="cuda", folder=tmp_path, written_by="codegen")
    assert evaluator.peer([source], tmp_path, cuda=True)[0]["seconds"] == 1
    assert json.loads((tmp_path / "peer-0" / "told.json").read_text())["functions"] == ["scale_forward"]


async def test_one_refusal_does_not_end_the_timing_benchmark_and_many_do(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent / "bench"))
    import same_vs_same

    async def nothing(*_arguments, **_fields):
        return None, None

    class Stand:
        """Evaluator, session, builder, verifier and timer at once: timings by number end as `refused` says."""

        count, refused, judge = 0, {}, object()
        session = property(lambda self: self)
        build = candidate = end = nothing

        def run(self, effort=None):
            return self.time() if effort else nothing()

        async def time(self):
            Stand.count += 1
            if Stand.count in Stand.refused:
                raise Stand.refused[Stand.count]
            return timing_of([100.0] * 8, [100.0] * 8)

    monkeypatch.setattr(same_vs_same, "Verifier", lambda *_, **__: Stand())
    monkeypatch.setattr(same_vs_same, "Timer", lambda *_: Stand())
    monkeypatch.setattr(same_vs_same, "find_gpu", lambda _device: None)
    monkeypatch.setattr(same_vs_same.gpu_lock, "exclusive", lambda _index: contextlib.nullcontext())
    what = Stand(), Stand(), Device(kind="cuda", name="GPU", sm="9.0"), softmax_contract()[0], None, ""

    Stand.refused = {1: StoppedError(), 12: StoppedError()}
    found = await same_vs_same.timed(*what, 20, 60.0)
    summary = same_vs_same.summary(found)
    assert (summary["pairs"], summary["refused"], summary["claimed_faster"]) == (18, ["its process ended"] * 2, 0)
    Stand.count, Stand.refused = 0, {1: StoppedError(), 2: StoppedError()}
    with pytest.raises(SystemExit, match="its process ended"):
        await same_vs_same.timed(*what, 20, 60.0)


PROBABILITIES = """
import torch
class Model(torch.nn.Module):
    def forward(self, x, y):
        return torch.nn.functional.binary_cross_entropy(x, y)
def get_inputs():
    return [torch.rand(16, 20), torch.rand(16, 20)]
def get_init_inputs():
    return []
"""


async def test_a_module_that_refuses_other_values_is_tested_with_values_like_its_examples(tmp_path):
    (tmp_path / "groundtruth.py").write_text(PROBABILITIES)
    arguments = tuple(Argument(name=name, role="input", tensor=spec("float32", 16, 20), path=name) for name in "xy")
    contract = Contract(name="loss", entry="loss", arguments=arguments, output_tree=0, variants=(
        Variant(name="example", tensors={a.name: a.tensor for a in arguments}, outputs=(spec("float32"),)),))
    session = Session(await find_toolchain(sys.executable), contract, tmp_path, "cpu", budget_bytes=lambda: 1 << 26)
    shown = []
    try:
        await session.open()
        common = {"timeout_s": 60, "variant": 0, "set": 0, "phase": 0, "seed": 5, "fixed_seed": 6}
        drawn = await session.judge.call("draw", family="randn", **common)
        await session.judge.call("expect", timeout_s=60, seed=7, remember=True, conditioned=True)
        for seed, where in enumerate(("inside", "last", "swap", "anywhere", "last", "last")):
            await session.judge.call("change", timeout_s=60, seed=seed, argument="xy"[seed % 2], where=where)
            shown.append((await session.judge.call("expect", timeout_s=60, seed=7))["shows"])
        with pytest.raises(InputError, match="refuses values unlike its example's"):
            await session.judge.call("draw", family="needle", **common)
    finally:
        await session.close()

    assert session.confined
    assert drawn["confined"]
    assert not session.trivial
    assert len(shown) == 6


async def test_a_judge_that_is_gone_is_opened_anew_and_times_nothing_before(tmp_path):
    (tmp_path / "groundtruth.py").write_text(DEEP.replace("RESULT", "x"))
    session = Session(await find_toolchain(sys.executable), deep_contract(), tmp_path, "cpu", budget_bytes=lambda: 1 << 26)
    try:
        await session.ready()
        assert session.judge is None, "nothing was opened yet"
        await session.open_judge()
        assert session.is_open
        with pytest.raises(WorkerTimeoutError):
            await session.judge.call("canary", timeout_s=0)
        # A request starts a process again, but none that knows the contract.
        with pytest.raises(HieraError):
            await session.judge.call("time", timeout_s=60, which="eager", order=[0], seed=0)
        assert not session.is_open
        baselines = Baselines(session, await find_toolchain(sys.executable), tmp_path, NO_GPU, "default")
        baselines._other, baselines._best = session, "compile"
        assert baselines.compiled() is None
        await session.ready()
        assert session.is_open
        assert baselines.compiled() == (session.judge, "compile")
        await session._drop()  # As after an opening that failed.
        await session.ready()
        assert session.is_open
        await session.close()
        await session.ready()
        assert session.judge is None
    finally:
        await session.close()


async def test_a_candidate_finds_nothing_that_an_earlier_one_left_in_the_shared_memory(tmp_path):
    contract, groundtruth = softmax_contract()
    (tmp_path / "groundtruth.py").write_text(groundtruth)
    session = Session(await find_toolchain(sys.executable), contract, tmp_path, "cpu", budget_bytes=lambda: 1 << 20)
    try:
        await session.open()
        slabs = [Path(session.opened[name]["path"]) for name in ("arguments", "outputs")]
        for slab in slabs:
            slab.write_bytes(b"what the last one saw ".ljust(slab.stat().st_size, b"."))
        with pytest.raises(HieraError):  # There is no such file: everything before it is loaded has happened.
            await session.candidate(Build(seconds=1.0, tier="light", extension=str(tmp_path / "no.so"), module="no"))
        left = [set(memoryview(slab.read_bytes()).cast("I")) for slab in slabs]
    finally:
        await session.close()

    assert left == [{0x7FFB7FFB}] * 2
