"""Contract and device to `WorkloadProfile`: what the work costs at least, whatever the implementation.

It knows nothing of implementation spaces, so what it says stays true when the space changes.
"""

from __future__ import annotations

from dataclasses import dataclass

from contracts.contract import Contract
from contracts.graph import Graph, Node
from engine.records import Bound, Device, Share, WorkloadProfile
from engine.workload_costs import Call, Cost, node_cost, output_dtype
from engine.workload_traffic import compulsory_bytes

# CUDA events resolve about this much; no kernel can be seen to take less (verification.md, 3.3).
EVENT_RESOLUTION_US = 0.5
# One grid-wide dependency (a time step of a recurrence) at the least.
SERIAL_STEP_US = 1.0
ARITHMETIC_BY_DTYPE = {"float64": "fp64", "complex128": "fp64", "float16": "fp16", "bfloat16": "bf16"}
CONVOLUTION_FLAGS = ("cudnn.allow_tf32", "cudnn_allow_tf32", "backends.cudnn.allow_tf32")
MATMUL_FLAGS = ("cuda.matmul.allow_tf32", "matmul.allow_tf32", "cuda_matmul_allow_tf32",
                "backends.cuda.matmul.allow_tf32")


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorTime:
    """An eager run of one operator on the device's roofline."""

    node: Node
    cost: Cost
    arithmetic: str
    us: float


def profile_workload(contract: Contract, device: Device) -> WorkloadProfile:
    """Compulsory bytes, FLOPs, launches, bound, floor and roof of the contract's example on `device`.

    `floor_us` is the DRAM peak over the bytes that the L2 cache cannot hide (a result below it is
    physically implausible); `roof_us` is the slower of all bytes at copy bandwidth and all FLOPs at the
    peak that the precision policy allows, and never less than an empty kernel.
    """
    certain_bytes = sum(compulsory_bytes(contract))
    read_bytes, written_bytes = compulsory_bytes(contract, certain=False)
    total_bytes = read_bytes + written_bytes
    operators = operator_times(contract, device)
    flops = sum(op.cost.matrix_flops + op.cost.vector_flops for op in operators)
    compute_us, arithmetic = _compute_us(operators, device)
    memory_us = 1e6 * total_bytes / device.copy_bytes_per_s
    serial_us = SERIAL_STEP_US * max((op.cost.serial_steps for op in operators), default=1)
    # Results that are still dirty in L2 when the last kernel ends have cost no DRAM time yet.
    uncredited = max(0, certain_bytes - min(device.l2_bytes, written_bytes))
    return WorkloadProfile(
        bytes=total_bytes,
        flops=flops,
        launches=max(1, sum(op.cost.launches for op in operators)),
        intensity=flops / total_bytes if total_bytes else 0.0,
        bound=_bound(memory_us, compute_us, max(device.launch_us, serial_us)),
        floor_us=max(1e6 * uncredited / device.dram_bytes_per_s, EVENT_RESOLUTION_US),
        roof_us=max(memory_us, compute_us, device.launch_us),
        shares=shares(operators),
        arithmetic=arithmetic,
    )


def operator_times(contract: Contract, device: Device) -> tuple[OperatorTime, ...]:
    """Every operator that launches work, with the time of an ideal kernel for it alone, in graph order."""
    graph = contract.graph
    if graph is None:
        return ()
    live = live_nodes(graph)
    found = []
    for node in graph.nodes:
        cost = node_cost(node, graph)
        if node.name not in live or not cost.launches:
            continue
        arithmetic = arithmetic_of(contract, node, graph, cost)
        found.append(OperatorTime(node=node, cost=cost, arithmetic=arithmetic,
                                  us=_operator_us(Call(node, graph), cost, arithmetic, device)))
    return tuple(found)


def shares(operators: tuple[OperatorTime, ...]) -> tuple[Share, ...]:
    """Estimated part of the module's time by operator, largest first."""
    total_us = sum(op.us for op in operators)
    found = [Share(node=op.node.name, op=op.node.op, share=op.us / total_us if total_us else 0.0, us=None)
             for op in operators]
    return tuple(sorted(found, key=lambda share: -share.share))


def arithmetic_of(contract: Contract, node: Node, graph: Graph, cost: Cost) -> str:
    """The key of `Device.flops_per_s` whose peak the operator may use under the precision policy.

    fp32 products may use TF32 only where the user's own run did and the policy is not `strict`.
    """
    dtype = output_dtype(node, graph)
    if not cost.matrix_flops or not cost.tensor_cores:
        # Vector units compute half types at the fp32 rate.
        return "fp64" if dtype in ("float64", "complex128") else "fp32"
    if dtype in ARITHMETIC_BY_DTYPE:
        return ARITHMETIC_BY_DTYPE[dtype]
    flags = CONVOLUTION_FLAGS if cost.family in ("conv", "rnn") else MATMUL_FLAGS
    allowed = any(contract.flags.get(flag) is True for flag in flags)
    return "tf32" if allowed and contract.precision != "strict" else "fp32"


def live_nodes(graph: Graph) -> set[str]:
    """Names of the nodes that an output or a mutation depends on."""
    wanted = {value.name for value in graph.outputs if hasattr(value, "name")} | set(graph.mutations.values())
    live: set[str] = set()
    for node in reversed(graph.nodes):
        if wanted.intersection(name for name in node.outputs if name is not None):
            live.add(node.name)
            wanted.update(node.refs())
    return live


def _operator_us(call: Call, cost: Cost, arithmetic: str, device: Device) -> float:
    moved = sum(spec.size_bytes for spec in call.inputs) + sum(spec.size_bytes for spec in call.outputs)
    if cost.family in ("gather", "create"):
        # Lookups read about as much as they write, not the whole table.
        moved = min(moved, 3 * sum(spec.size_bytes for spec in call.outputs))
    if cost.family == "norm" or (cost.launches > 1 and cost.family in ("loss", "conv")):
        # Eager passes: one more write and read of the intermediate for every further launch.
        moved += 2 * (cost.launches - 1) * sum(spec.size_bytes for spec in call.outputs[:1])
    memory_us = 1e6 * moved / device.copy_bytes_per_s
    matrix_us = 1e6 * cost.matrix_flops / device.flops_per_s[arithmetic] if cost.matrix_flops else 0.0
    vector_us = 1e6 * cost.vector_flops / device.flops_per_s["fp64" if arithmetic == "fp64" else "fp32"]
    return max(memory_us, matrix_us, vector_us, SERIAL_STEP_US * cost.serial_steps) + device.launch_us * cost.launches


def _compute_us(operators: tuple[OperatorTime, ...], device: Device) -> tuple[float, str]:
    """Time of all arithmetic, tensor and vector units side by side, and the key that takes most of it."""
    matrix_us: dict[str, float] = {}
    vector_us: dict[str, float] = {}
    for op in operators:
        peak = device.flops_per_s[op.arithmetic]
        if op.cost.matrix_flops:
            matrix_us[op.arithmetic] = matrix_us.get(op.arithmetic, 0.0) + 1e6 * op.cost.matrix_flops / peak
        unit = "fp64" if op.arithmetic == "fp64" else "fp32"
        vector_us[unit] = vector_us.get(unit, 0.0) + 1e6 * op.cost.vector_flops / device.flops_per_s[unit]
    times = {**vector_us, **{key: matrix_us[key] + vector_us.get(key, 0.0) * (key in ("fp32", "fp64"))
                             for key in matrix_us}}
    if not times:
        return 0.0, "fp32"
    key = max(times, key=lambda name: times[name])
    return max(sum(matrix_us.values()), times[key]), key


def _bound(memory_us: float, compute_us: float, latency_us: float) -> Bound:
    if latency_us >= max(memory_us, compute_us):
        return "latency"
    return "memory" if memory_us >= compute_us else "compute"
