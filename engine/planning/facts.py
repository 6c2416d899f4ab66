"""The facts that rubric rows speak about, gathered from contract, workload and evidence.

Pure: the same inputs give the same facts. A fact that is not known is None, and no row applies to it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

from contracts.contract import Contract
from contracts.graph import Node
from engine.planning.conditions import Fact
from engine.records import Evaluation, WorkloadProfile

FACTS: Mapping[str, str] = {
    "bound": "what limits the work: memory, compute or latency (measured where counters exist)",
    "limiter": "stable code of the measured bottleneck of the best candidate, such as dram-bandwidth",
    "intensity": "FLOPs per byte that must move",
    "launches": "kernels an eager run launches",
    "roof_us": "time of an ideal implementation, microseconds",
    "roof_ratio": "best time so far over the roof",
    "speedup": "best speed-up so far over the reference",
    "registers": "most registers a thread of the best candidate's kernels uses",
    "spill_bytes": "most bytes a thread of the best candidate's kernels spills",
    "occupancy": "lowest occupancy of the best candidate's kernels, 0 to 1",
    "shared_bytes": "most static shared memory of the best candidate's kernels",
    "ops": "operators that compute something (views do not count)",
    "library_ops": "operators that libraries serve: matrix products, convolutions, attention, recurrent",
    "library_share": "their share of the module's time, 0 to 1",
    "heaviest": "family of the heaviest operator",
    "families": "set of operator families in the graph",
    "scale": "operator (1-2 operators), fused (up to 12), model (more)",
    "stencil": "true where every convolution is depthwise or has one channel",
    "dtype": "dtype of the first floating-point output, else of the first output",
    "output_elements": "elements of all outputs together",
    "variants": "shape variants of the contract",
    "reference": "module, function or cuda: what the reference is",
    "round": "round being planned, counted from 1",
    "stagnant": "rounds in a row that brought no new best",
    "device": "cuda or none",
    "share.rowwise": "share of reductions, norms, softmax, scans and losses",
    "share.multipass": "share of norms, softmax and scans, which visit a row more than once",
    "share.streaming": "share of elementwise operators and copies",
    "share.reuse": "share of matrix products, convolutions, attention and pooling",
    "share.matrix": "share of matrix products, convolutions and attention",
    "space.tried": "candidates evaluated in this space",
    "space.accepted": "candidates of this space that were accepted, or only left as slower than the best",
    "space.is_best": "true where this space holds the best result",
    "space.is_current": "true for the last round's space",
    "space.behind": "best time in this space over the best of all",
    "space.writable": "false where the agent found that the space cannot express the contract",
    "direction.tried": "evaluated candidates of this direction under the same bottleneck",
    "direction.gain": "largest ratio parent's time / child's time of this direction under the same bottleneck",
    "direction.moves": "choices of this direction that are still untried",
}

LIBRARY = ("matmul", "conv", "attention", "recurrent")
GROUPS: Mapping[str, tuple[str, ...]] = {
    "share.rowwise": ("reduction", "norm", "softmax", "scan", "loss"),
    "share.multipass": ("norm", "softmax", "scan"),
    "share.streaming": ("elementwise", "movement"),
    "share.reuse": ("matmul", "conv", "attention", "pool"),
    "share.matrix": ("matmul", "conv", "attention"),
}


def task_facts(
    contract: Contract, workload: WorkloadProfile, families: Mapping[str, str], *, device: str = "cuda"
) -> dict[str, Fact]:
    """Facts of the task itself, the same in every space and round."""
    shares = family_shares(contract, workload, families)
    counts = family_counts(contract, families)
    ops = sum(n for family, n in counts.items() if family != "view")
    outputs = contract.outputs
    facts: dict[str, Fact] = {
        "bound": workload.bound,
        "intensity": workload.intensity if workload.arithmetic_known and math.isfinite(workload.intensity) else None,
        "launches": workload.launches,
        "roof_us": workload.roof_us,
        "ops": ops if contract.graph else None,
        "library_ops": sum(counts[f] for f in LIBRARY) if contract.graph else None,
        "library_share": sum(shares.get(f, 0.0) for f in LIBRARY) if shares else None,
        "heaviest": max(shares, key=lambda f: (shares[f], f)) if shares else None,
        "families": frozenset(counts) - {"view"} if contract.graph else None,
        "scale": ("operator" if ops <= 2 else "fused" if ops <= 12 else "model") if contract.graph else None,
        "stencil": is_stencil(contract, families),
        "dtype": next((t.dtype for t in outputs if t.is_floating), outputs[0].dtype if outputs else None),
        "output_elements": sum(t.numel for t in outputs),
        "variants": len(contract.variants),
        "reference": contract.reference,
        "device": device,
    }
    if shares:
        facts |= {f"share.{family}": shares.get(family, 0.0) for family in {*families.values(), "other"}}
        facts |= {name: sum(shares.get(f, 0.0) for f in group) for name, group in GROUPS.items()}
    return facts


def evidence_facts(best: Evaluation | None, workload: WorkloadProfile) -> dict[str, Fact]:
    """Facts about the best candidate so far; measured ones replace those of the task."""
    facts: dict[str, Fact] = {}
    if best is None:
        return facts
    if best.build and best.build.kernels:
        kernels = best.build.kernels
        occupancies = [k.occupancy for k in kernels if k.occupancy is not None]
        facts |= {
            "registers": max(k.registers for k in kernels),
            "spill_bytes": max(k.spill_bytes for k in kernels),
            "shared_bytes": max(k.shared_bytes for k in kernels),
            "occupancy": min(occupancies) if occupancies else None,
        }
    time_us = best.timing.median_us if best.timing else None
    if time_us is not None and workload.roof_us > 0:
        facts["roof_ratio"] = time_us / workload.roof_us
    if best.timing:
        facts["speedup"] = best.timing.speedup
    if best.counters and best.counters.status == "measured":
        if best.counters.limiter:
            facts["limiter"] = best.counters.limiter
        if best.counters.bound:
            facts["bound"] = best.counters.bound
    return facts


def family(node: Node, families: Mapping[str, str]) -> str:
    """The operator family of a node; an in-place name counts as its plain one."""
    base = node.base
    return families.get(base) or families.get(base.rstrip("_")) or "other"


def family_counts(contract: Contract, families: Mapping[str, str]) -> Counter[str]:
    """Nodes per family."""
    nodes = contract.graph.nodes if contract.graph else ()
    return Counter(family(node, families) for node in nodes)


def family_shares(contract: Contract, workload: WorkloadProfile, families: Mapping[str, str]) -> dict[str, float]:
    """Share of the module's time per family, summing to 1; empty where nothing is known."""
    nodes = {node.name: node for node in (contract.graph.nodes if contract.graph else ())}
    shares: dict[str, float] = {}
    for share in workload.shares:
        node = nodes.get(share.node)
        base = share.op.split(".")[1] if "." in share.op else share.op
        kind = family(node, families) if node else families.get(base, "other")
        shares[kind] = shares.get(kind, 0.0) + share.share
    if not shares:
        counts = family_counts(contract, families)
        shares = {kind: float(n) for kind, n in counts.items() if kind != "view"}
    total = sum(shares.values())
    return {kind: value / total for kind, value in shares.items()} if total > 0 else {}


def is_stencil(contract: Contract, families: Mapping[str, str]) -> bool | None:
    """True where there are convolutions and all are depthwise or single-channel; None without a graph."""
    graph = contract.graph
    if graph is None:
        return None
    convolutions = [node for node in graph.nodes if family(node, families) == "conv"]
    return bool(convolutions) and all(_depthwise(node, graph.values) for node in convolutions)


def _depthwise(node: Node, values: Mapping[str, object]) -> bool:
    weight = node.args.get("weight")
    spec = values.get(getattr(weight, "name", ""))
    shape = getattr(spec, "shape", ())
    # A weight of shape [channels, 1, ...] mixes no channels; with one group it is a single-channel stencil.
    return len(shape) >= 3 and shape[1] == 1 and (node.args.get("groups", 1) == shape[0] or shape[0] == 1)
