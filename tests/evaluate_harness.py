"""Contracts and builds for the evaluator's tests: one extension with many entries, judged one by one."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

from contracts.contract import Argument, Contract, Variant
from contracts.tensors import TensorSpec
from engine.evaluate.build import Builder
from engine.evaluate.emulate import build_emulated
from engine.evaluate.local import LocalEvaluator, Settings
from engine.evaluate.measure import Effort
from engine.evaluate.verify import Limits
from engine.records import Build, Candidate, Device, Evaluation
from engine.toolchain import find_toolchain

DATA = Path(__file__).parent / "data" / "evaluate"
NO_GPU = Device(kind="none", name="none", sm="9.0")
# On a slow machine nothing may be cut, and no honest call may look like a hang.
FAST = Settings(limits=Limits(search_s=300.0, call_s=60.0, perturbations=4, repeats=2))


def spec(dtype: str, *shape: int) -> TensorSpec:
    return TensorSpec.contiguous(dtype, shape)


def softmax_contract(rows: int = 6, columns: int = 520) -> tuple[Contract, str]:
    x, small = spec("float32", rows, columns), spec("float32", 1, columns)
    contract = Contract(
        name="softmax", entry="honest", arguments=(Argument(name="x", role="input", tensor=x, path="x"),), output_tree=0,
        variants=(Variant(name="example", tensors={"x": x}, outputs=(x,)),
                  Variant(name="batch 1", tensors={"x": small}, outputs=(small,))))
    return contract, f"""
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=1)
def get_inputs():
    return [torch.rand({rows}, {columns})]
def get_init_inputs():
    return []
"""


def norm_contract() -> tuple[Contract, str]:
    x, f, n, top = spec("float32", 16, 12), spec("float32", 12), spec("int64"), spec("int64", 16)
    arguments = (
        Argument(name="x", role="input", tensor=x, path="x"),
        Argument(name="w", role="parameter", tensor=f, path="norm.weight"),
        Argument(name="b", role="parameter", tensor=f, path="norm.bias"),
        Argument(name="mean", role="buffer", tensor=f, path="norm.running_mean", mutable=True),
        Argument(name="variance", role="buffer", tensor=f, path="norm.running_var", mutable=True),
        Argument(name="count", role="buffer", tensor=n, path="norm.num_batches_tracked", mutable=True),
    )
    tensors = {a.name: a.tensor for a in arguments}
    contract = Contract(
        name="norm", entry="honest", arguments=arguments, output_tree={"tuple": [0, 1]}, mode="train",
        variants=(Variant(name="example", tensors=tensors, outputs=(x, top)),))
    return contract, """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(12)
    def forward(self, x):
        y = self.norm(x)
        return y, y.argmax(1)
def get_inputs():
    return [torch.randn(16, 12)]
def get_init_inputs():
    return []
"""


def write_many(folder: Path, groundtruth: str, source: str) -> list[str]:
    """A contract folder whose extension exports every host function of `source`. Returns their names."""
    folder.mkdir(parents=True, exist_ok=True)
    found = re.findall(r"^(?:Tensor|Two) (\w+)\(([^)]*)\) \{", source, re.M)
    tensor = "torch::Tensor"
    lines = ["#include <torch/extension.h>"]
    for name, arguments in found:
        result = tensor if re.search(rf"^Tensor {name}\(", source, re.M) else f"std::tuple<{tensor}, {tensor}>"
        lines.append(f"{result} {name}({arguments.replace('Tensor', tensor)});")
    lines.append("PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {")
    lines += [f'  m.def("{name}", &{name});' for name, _ in found] + ["}"]
    (folder / "cpp_source.cpp").write_text("\n".join(lines) + "\n")
    (folder / "groundtruth.py").write_text(groundtruth)
    (folder / "cuda_source.cu").write_text(source)
    return [name for name, _ in found]


class Bench:
    """An open evaluator and one build with many entries."""

    def __init__(self, evaluator: LocalEvaluator, contract: Contract, build: Build) -> None:
        self.evaluator, self.contract, self.build = evaluator, contract, build

    @classmethod
    async def make(cls, folder: Path, contract: Contract, groundtruth: str, source: str,
                   settings: Settings = FAST) -> Bench:
        write_many(folder, groundtruth, source)
        # Without nvcc: these tests are about verdicts, not about compilers.
        toolchain = replace(await find_toolchain(sys.executable), nvcc=None)
        builder = Builder(toolchain, folder.parent / "cache")
        evaluator = LocalEvaluator(toolchain, NO_GPU, contract, folder, builder, settings=settings)
        await evaluator.prepare()
        build = await build_emulated(builder, folder, source)
        assert isinstance(build, Build), build
        return cls(evaluator, contract, build)

    async def judge(self, entry: str, effort: Effort | None = None, *, call_s: float | None = None) -> Evaluation:
        """The verdict on one entry.

        Args:
            entry: Name of the host function.
            effort: Timing, where it is timed too.
            call_s: Longest a call may take, where it is to be shorter than usual.
        """
        self.evaluator.session.contract = replace(self.contract, entry=entry)
        candidate = Candidate(id=entry, source="", space="cuda_libs_torch")
        limits = replace(FAST.limits, call_s=call_s) if call_s is not None else None
        return await self.evaluator._judged(self.contract, candidate, self.build, effort, limits=limits)


def failed(evaluation: Evaluation) -> set[str]:
    assert evaluation.verification is not None, evaluation
    return {c.name for c in evaluation.verification.checks if c.status == "fail"}
