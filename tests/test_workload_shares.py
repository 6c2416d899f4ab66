"""Measured shares: the profiler's operators laid over the graph."""

import sys
from dataclasses import replace

import pytest

from contracts import codec
from contracts.graph import Graph, Node, Ref
from contracts.tensors import TensorSpec
from engine.devices import target_device
from engine.evaluate import shares
from engine.processes import Worker
from engine.records import Share
from engine.workload import profile_workload
from tests.test_workload_costs import contract_of

SPEC = TensorSpec.contiguous("float32", (4, 4))


def graph_of(*ops):
    nodes, last = [], "x"
    for number, op in enumerate(ops):
        nodes.append(Node(name=f"{op}_{number}", op=f"aten.{op}.default", args={"self": Ref(last)},
                          outputs=(f"v{number}",)))
        last = f"v{number}"
    values = dict.fromkeys(("x", *(f"v{n}" for n in range(len(ops)))), SPEC)
    return Graph(inputs=("x",), nodes=tuple(nodes), outputs=(Ref(last),), mutations={}, values=values)


def test_operators_go_to_their_nodes_in_order():
    graph = graph_of("conv2d", "relu", "conv2d", "relu")
    calls = [{"op": "conv2d", "us": 60.0}, {"op": "relu_", "us": 10.0}, {"op": "conv2d", "us": 20.0},
             {"op": "copy_", "us": 4.0}, {"op": "relu", "us": 6.0}]
    found = shares.lay_over(calls, graph)
    assert [(share.node, round(share.share, 2)) for share in found] == [
        ("conv2d_0", 0.6), ("conv2d_2", 0.2), ("relu_1", 0.1), ("relu_3", 0.06), ("", 0.04)]
    assert sum(share.share for share in found) == pytest.approx(1)
    assert {share.how for share in found} == {"measured"}


def test_nothing_seen_is_nothing_claimed():
    assert shares.lay_over([{"op": "relu", "us": 0.0}], graph_of("relu")) == ()


def test_operators_below_the_threshold_are_named():
    worth, rest = shares.worth_it([Share(node="a", op="o", share=0.97), Share(node="b", op="o", share=0.03)])
    assert ([s.node for s in worth], [s.node for s in rest]) == (["a"], ["b"])


async def test_without_a_gpu_they_stay_estimated_and_say_so(tmp_path):
    torch = pytest.importorskip("torch")
    contract = contract_of(torch.nn.ReLU(), torch.randn(8, 8))
    workload = profile_workload(contract, target_device())
    same, why = await shares.measure_shares(Worker("shares"), contract=contract, folder=tmp_path,
                                            device=target_device(), workload=workload)
    assert same == workload
    assert "estimated" in why


def test_tensors_that_fit_only_once_are_not_loaded_twice():
    torch = pytest.importorskip("torch")
    contract = contract_of(torch.nn.ReLU(), torch.randn(512, 512))
    small = replace(target_device(), kind="cuda", memory_bytes=4 << 20)
    assert "too large" in shares._why_not(contract, small)
    assert shares._why_not(contract, replace(small, memory_bytes=80 << 30)) == ""


async def test_the_worker_profiles_the_reference(tmp_path):
    torch = pytest.importorskip("torch")
    (tmp_path / "groundtruth.py").write_text(
        "import torch\nfrom torch import nn\n"
        "class Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.l = nn.Linear(64, 64)\n"
        "    def forward(self, x):\n        return torch.relu(self.l(x)).sum(-1)\n"
        "def get_inputs():\n    return [torch.randn(32, 64)]\ndef get_init_inputs():\n    return []\n")

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.l = torch.nn.Linear(64, 64)

        def forward(self, x):
            return torch.relu(self.l(x)).sum(-1)

    contract = contract_of(Model(), torch.randn(32, 64))
    data = codec.to_data(contract)
    for argument in data["arguments"]:
        if argument["name"].startswith("p_"):
            argument["role"] = "parameter"
    worker = Worker("shares", python=sys.executable)
    try:
        await worker.call("warm", timeout_s=60, device="cpu")
        await worker.call("open", timeout_s=60, contract=data, folder=str(tmp_path), device="cpu")
        found = await worker.call("measure", timeout_s=60, calls=2)
    finally:
        await worker.close()
    assert [call["op"] for call in found["operators"]] == ["linear", "relu", "sum"]
    assert all(call["us"] > 0 for call in found["operators"])
    laid = shares.lay_over(found["operators"], contract.graph)
    assert {share.op for share in laid} == {"aten.linear.default", "aten.relu.default", "aten.sum.dim_IntList"}
