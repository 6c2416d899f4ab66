"""Share of the module's time per operator, measured on the GPU and laid over the operator graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from contracts import codec
from contracts.contract import Contract
from contracts.errors import HieraError
from contracts.graph import Graph, Node
from engine.evaluate import gpu_lock
from engine.processes import Worker
from engine.records import Device, Share, WorkloadProfile
from engine.workload import live_nodes

CALLS = 3
MEMORY_PART = 0.2
# Below this part of the time an operator is not worth a search (requirement: hot spots first).
WORTH = 0.05


async def measure_shares(
    worker: Worker, *, contract: Contract, folder: str | Path, device: Device, workload: WorkloadProfile,
    timeout_s: float = 60.0,
) -> tuple[WorkloadProfile, str]:
    """The profile with measured shares and launches, and a sentence where they stay estimated (else empty).

    A process of its own: a profiler that was once on in the judge would slow the judge's launches, and
    with them the times that speed-ups are claimed against. Only the measured calls hold the GPU.

    Args:
        worker: A process of role `shares`, perhaps warm; it has ended afterwards.
        contract: What the folder's reference does.
        folder: Contract folder with groundtruth.py.
        device: Where to run.
        workload: The profile with estimated shares, kept where nothing can be measured.
        timeout_s: Limit for each of the two steps, loading and measuring.
    """
    why = _why_not(contract, device)
    try:
        if why or contract.graph is None:
            return workload, f"shares of time are estimated: {why}"
        await worker.call("open", timeout_s=timeout_s, contract=codec.to_data(contract), folder=str(folder),
                          device=f"cuda:{device.index}")
        async with gpu_lock.exclusive(device.index):
            found = await worker.call("measure", timeout_s=timeout_s, calls=CALLS)
    except HieraError as error:
        return workload, f"shares of time are estimated: {error.problem}"
    finally:
        await worker.close()
    shares = lay_over(found["operators"], contract.graph)
    if not shares:
        return workload, "shares of time are estimated: the profiler saw no kernel"
    return replace(workload, shares=shares, launches=found["launches"] or workload.launches), ""


def _why_not(contract: Contract, device: Device) -> str:
    if device.kind != "cuda":
        return "no GPU is used"
    if contract.reference == "cuda" or contract.graph is None:
        return "the reference has no operator graph"
    layouts = (*contract.example.tensors.values(), *contract.outputs)
    if sum(layout.size_bytes for layout in layouts) > device.memory_bytes * MEMORY_PART:
        # The judge holds the same tensors at the same time.
        return "the tensors are too large to be held twice on this GPU"
    return ""


def lay_over(operators: Sequence[dict[str, Any]], graph: Graph) -> tuple[Share, ...]:
    """Operator calls in running order, matched to the graph's nodes in theirs. Largest share first.

    What eager runs and the graph does not hold (or holds under another name) keeps its own name and
    an empty node, so that the shares still sum to 1.
    """
    total_us = sum(call["us"] for call in operators)
    if total_us <= 0:
        return ()
    live = live_nodes(graph)
    nodes = [node for node in graph.nodes if node.name in live]
    places = _matches([_plain(call["op"]) for call in operators], nodes)
    times: dict[tuple[str, str], float] = {}
    for place, call in enumerate(operators):
        node = places.get(place)
        key = (node.name, node.op) if node is not None else ("", f"aten.{_plain(call['op'])}")
        times[key] = times.get(key, 0.0) + call["us"]
    shares = [Share(node=node, op=op, share=us / total_us, us=us, how="measured")
              for (node, op), us in times.items() if us > 0]
    return tuple(sorted(shares, key=lambda share: -share.share))


def worth_it(shares: Sequence[Share], threshold: float = WORTH) -> tuple[tuple[Share, ...], tuple[Share, ...]]:
    """Operators worth a search, and those below the threshold that can be left to the library."""
    return (tuple(share for share in shares if share.share >= threshold),
            tuple(share for share in shares if share.share < threshold))


def _matches(names: list[str], nodes: list[Node]) -> dict[int, Node]:
    """Place in the run to node: the longest common subsequence by operator name."""
    graph_names = [_plain(node.base) for node in nodes]
    matcher = SequenceMatcher(a=names, b=graph_names, autojunk=False)
    return {block.a + i: nodes[block.b + i] for block in matcher.get_matching_blocks() for i in range(block.size)}


def _plain(name: str) -> str:
    # In-place and copying forms of an operator are one operator here.
    plain = name.rstrip("_")
    return {"_unsafe_view": "view", "reshape": "view", "_to_copy": "to"}.get(plain, plain)
