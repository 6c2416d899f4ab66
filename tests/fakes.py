"""Stand-ins for the parts around the loop: a contract without torch, and an evaluator that judges by text."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from contracts.contract import Argument, Contract, Variant
from contracts.graph import Graph, Node, Ref
from contracts.tensors import TensorSpec
from engine.records import (
    MANDATORY,
    Baseline,
    Build,
    Candidate,
    Check,
    Counters,
    Device,
    Evaluation,
    Failure,
    KernelFacts,
    Timing,
    Verification,
    WorkloadProfile,
)
from engine.services import Task

GPU = Device(kind="cuda", name="Test GPU", sm="9.0", driver="1", sm_count=132, copy_bytes_per_s=4e12)
NO_GPU = replace(GPU, kind="none", driver="")
WORKLOAD = WorkloadProfile(bytes=1 << 24, flops=1 << 22, launches=3, intensity=0.25, bound="memory", floor_us=4.0,
                           roof_us=5.0)


def contract_of(ops: Sequence[str], shape: tuple[int, ...] = (1024, 4096), *, name: str = "Chain",
                args: Mapping[str, Mapping[str, object]] | None = None, extra: Mapping[str, TensorSpec] | None = None,
                ) -> Contract:
    """A contract whose graph is a chain of operators `aten.<op>.default` over one tensor."""
    spec = TensorSpec.contiguous("float32", shape)
    extra = dict(extra or {})
    values = {"x": spec, **extra}
    nodes, previous = [], "x"
    for number, op in enumerate(ops):
        out = f"v{number}"
        own = dict((args or {}).get(op, {}))
        nodes.append(Node(name=out, op=f"aten.{op}.default", args={"self": Ref(previous), **own}, outputs=(out,)))
        values[out], previous = spec, out
    graph = Graph(inputs=("x", *extra), nodes=tuple(nodes), outputs=(Ref(previous),), mutations={}, values=values)
    arguments = (Argument(name="x", role="input", tensor=spec, path="x"),
                 *(Argument(name=key, role="parameter", tensor=value, path=key) for key, value in extra.items()))
    return Contract(name=name, entry=f"{name.lower()}_forward", arguments=arguments, output_tree=0,
                    variants=(Variant(name="example", tensors={"x": spec, **extra}, outputs=(spec,), graph=graph),))


def accepted(where: str = "gpu") -> Verification:
    return Verification(match=True, strict=True, kernelbench=True, where=where,
                        checks=tuple(Check(name=name, status="pass") for name in sorted(MANDATORY)))


def evaluation_of(candidate: Candidate, *, us: float | None = None, limiter: str = "", reference_us: float = 100.0,
                  kernels: tuple[KernelFacts, ...] = (), told_to: float = 0.03) -> Evaluation:
    """An accepted evaluation with a time, if one is given."""
    timing = Timing(candidate_us=(us,), reference_us=(reference_us,), speedup=reference_us / us,
                    ci95=(reference_us / us * 0.99, reference_us / us * 1.01), minimum_detectable=told_to) if us else None
    counters = Counters(status="measured", tool="fake", bound="memory", limiter=limiter) if limiter else None
    return Evaluation(candidate_id=candidate.id, stage="timed" if us else "verified",
                      build=Build(seconds=0.1, tier="light", kernels=kernels), verification=accepted(), timing=timing,
                      counters=counters)


class FakeEvaluator:
    """Judges by directives in the source: `// us 12`, `// wrong`, `// unbuildable`, `// sleep 1`, `// unconfirmed`.

    `// again 14` is what timing it again finds.
    """

    def __init__(self, log: Path | None = None, *, gpu: bool = True) -> None:
        self.judged: list[str] = []
        self.retimed: list[str] = []
        self.profiled_ids: list[str] = []
        self.running = 0
        self.most_running = 0
        self.closed = False
        self.log, self.gpu = log, gpu

    async def baseline(self) -> Baseline:
        return Baseline(eager_us=100.0) if self.gpu else Baseline()

    async def evaluate(self, contract: Contract, candidate: Candidate) -> Evaluation:
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            sleep = re.search(r"// sleep ([\d.]+)", candidate.source)
            await asyncio.sleep(float(sleep[1]) if sleep else 0.01)
        finally:
            self.running -= 1
        self.judged.append(candidate.id)
        if self.log is not None:
            with self.log.open("a") as file:
                file.write(candidate.id + "\n")
        if "// unbuildable" in candidate.source:
            return Evaluation(candidate_id=candidate.id, stage="screened",
                              failure=Failure(stage="build", reason="cuda_source.cu:1: no such type"))
        if "// wrong" in candidate.source:
            return Evaluation(candidate_id=candidate.id, stage="built",
                              failure=Failure(stage="verify", reason="check numeric: 7 of 8 elements differ"))
        us = re.search(r"// us ([\d.]+)", candidate.source)
        if self.gpu:
            return evaluation_of(candidate, us=float(us[1]) if us else 50.0,
                                 told_to=0.01 if "// told well" in candidate.source else 0.03)
        return Evaluation(candidate_id=candidate.id, stage="verified", estimate_us=float(us[1]) if us else 50.0,
                          verification=accepted("cpu emulation at reduced size"))

    async def profiled(self, contract: Contract, candidate: Candidate, evaluation: Evaluation) -> Evaluation:
        self.profiled_ids.append(candidate.id)
        counters = Counters(status="measured", tool="fake", bound="memory", limiter="dram-bandwidth")
        return replace(evaluation, counters=counters, stage="profiled")

    async def retime(self, contract: Contract, candidates: Sequence[tuple[Candidate, Evaluation]]) -> list[Evaluation]:
        self.retimed += [candidate.id for candidate, _ in candidates]
        found = [(candidate, evaluation, re.search(r"// again ([\d.]+)", candidate.source))
                 for candidate, evaluation in candidates]
        return [evaluation_of(candidate, us=float(again[1])) if again else evaluation
                for candidate, evaluation, again in found]

    async def confirm(self, contract: Contract, candidate: Candidate, evaluation: Evaluation) -> Evaluation:
        if "// unconfirmed" in candidate.source:
            return replace(evaluation, confirmed=False, failure=Failure(stage="confirm", reason="other numbers"))
        return replace(evaluation, confirmed=True, stage="confirmed")

    def identity(self) -> dict[str, object]:
        return {"toolchain": "fake"}

    async def close(self) -> None:
        self.closed = True


class FakeServices:
    """A fixed contract on a fixed device."""

    def __init__(self, contract: Contract, evaluator: FakeEvaluator, *, device: Device = GPU,
                 workload: WorkloadProfile = WORKLOAD, source: str | None = None,
                 reduced: Contract | None = None) -> None:
        self.contract, self.fake, self.gpu, self.profile = contract, evaluator, device, workload
        self.source, self.reduced = source, reduced
        self.closed = False

    async def device(self, job: object) -> Device:
        return self.gpu

    async def task(self, job: object, folder: Path, device: Device) -> Task:
        return Task(contract=self.contract, reduced=self.reduced, folder=folder, source=self.source)

    def workload(self, contract: Contract, device: Device) -> WorkloadProfile:
        return self.profile

    async def shares(self, job: object, task: Task, device: Device,
                     workload: WorkloadProfile) -> tuple[WorkloadProfile, str]:
        return workload, ""

    async def evaluator(self, job: object, task: Task, device: Device, workload: WorkloadProfile,
                        on_note: Callable[[str], None]) -> FakeEvaluator:
        return self.fake

    async def close(self) -> None:
        self.closed = True
