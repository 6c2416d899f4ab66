"""Graph to smaller graph with the same results: no-ops go, equal calls merge, unused calls go."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from contracts.graph import Arg, Const, Graph, Node, Ref
from contracts.tensors import TensorSpec
from engine.codegen.aten_calls import IGNORED, is_random
from engine.codegen.cpp import words

_RENAMED = {
    "aten._unsafe_view.default": "aten.view.default",
    "aten.multiply.Tensor": "aten.mul.Tensor", "aten.multiply.Scalar": "aten.mul.Scalar",
    "aten.subtract.Tensor": "aten.sub.Tensor", "aten.subtract.Scalar": "aten.sub.Scalar",
    "aten.divide.Tensor": "aten.div.Tensor", "aten.true_divide.Tensor": "aten.div.Tensor",
    "aten.max.other": "aten.maximum.default", "aten.min.other": "aten.minimum.default",
}
_ALWAYS_SAME = words("detach alias lift_fresh lift_fresh_copy detach_copy alias_copy positive")
_SAME_IF_LAYOUT = words(
    """clone contiguous view reshape expand _to_copy to squeeze unsqueeze permute transpose flatten slice type_as
    broadcast_to expand_as view_as resolve_conj resolve_neg"""
)
_KEEPS_ORDER = words("view reshape unsqueeze squeeze flatten unflatten select")
_MAX_NODE_PASSES = 8


def simplify(graph: Graph) -> Graph:
    """The graph without no-ops, repeats and calls that nothing needs.

    Random calls stay, in their order: the generator's state is part of the result.
    """
    for _ in range(_MAX_NODE_PASSES):
        smaller = _drop_unused(_merge_equal(_drop_no_ops(graph)))
        if smaller.nodes == graph.nodes:
            return smaller
        graph = smaller
    return graph


def _drop_no_ops(graph: Graph) -> Graph:
    replaced: dict[str, str] = {}
    viewed: dict[str, str] = {}  # From a view of all elements in their order to what it shows.
    nodes = []
    for original in graph.nodes:
        if original.base in IGNORED:
            continue
        node = _with_refs(original, replaced)
        node = dataclasses.replace(node, op=_RENAMED.get(node.op, node.op))
        same = _same_as(node, graph.values) or _back_again(node, graph.values, viewed)
        if same is not None:
            replaced.update(same)
            continue
        nodes.append(node)
    return _rebuild(graph, nodes, replaced)


def _same_as(node: Node, values: Mapping[str, TensorSpec]) -> dict[str, str] | None:
    """Output to the input that it equals, where the whole node only passes its input on."""
    first = next(iter(node.args.values()), None)
    if node.base == "broadcast_tensors" and isinstance(first, tuple):
        pairs = [(o, a) for o, a in zip(node.outputs, first, strict=True) if o is not None]
        if all(isinstance(a, Ref) and values[o].shape == values[a.name].shape for o, a in pairs):
            return {o: a.name for o, a in pairs if isinstance(a, Ref)}
        return None
    used = [name for name in node.outputs if name is not None]
    if not isinstance(first, Ref) or len(used) != 1 or first.name not in values:
        return None
    if node.base in _ALWAYS_SAME or _idle_dropout(node):
        return {used[0]: first.name}
    if node.base in _SAME_IF_LAYOUT and node.op != "aten.view.dtype" and values[used[0]] == values[first.name]:
        return {used[0]: first.name}
    return None


def _back_again(node: Node, values: Mapping[str, TensorSpec], viewed: dict[str, str]) -> dict[str, str] | None:
    """Output to the value that it shows as it was, where views took dimensions away and gave them back."""
    source = next(iter(node.args.values()), None)
    if node.base not in _KEEPS_ORDER or node.op == "aten.view.dtype" or not isinstance(source, Ref):
        return None
    if values[node.out].numel != values[source.name].numel:
        return None
    viewed[node.out] = name = source.name
    while name in viewed:
        name = viewed[name]
        if values[name] == values[node.out]:
            return {node.out: name}
    return None


def _idle_dropout(node: Node) -> bool:
    if node.base in ("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout"):
        return node.args.get("train") is False or node.args.get("p") == 0
    if node.base == "native_dropout":
        return node.args.get("train") is False and all(name is None for name in node.outputs[1:])
    return False


def _merge_equal(graph: Graph) -> Graph:
    seen: dict[object, Node] = {}
    replaced: dict[str, str] = {}
    nodes = []
    for original in graph.nodes:
        node = _with_refs(original, replaced)
        key = (node.op, tuple((name, _hashable(value)) for name, value in node.args.items()))
        twin = None if is_random(node) else seen.get(key)
        if twin is None:
            seen[key] = node
            nodes.append(node)
            continue
        # The twin may lack an output that only this call used.
        merged = tuple(a if a is not None else b for a, b in zip(twin.outputs, node.outputs, strict=True))
        if merged != twin.outputs:
            better = dataclasses.replace(twin, outputs=merged)
            nodes[nodes.index(twin)] = better
            seen[key] = better
        replaced.update(
            {own: kept for own, kept in zip(node.outputs, merged, strict=True) if own is not None and own != kept}
        )
    return _rebuild(graph, nodes, replaced)


def _drop_unused(graph: Graph) -> Graph:
    live = {value.name for value in graph.outputs if isinstance(value, Ref)} | set(graph.mutations.values())
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        used = tuple(name if name in live else None for name in node.outputs)
        if any(used) or is_random(node):
            kept.append(dataclasses.replace(node, outputs=used if any(used) else node.outputs))
            live.update(node.refs())
    return _rebuild(graph, kept[::-1], {})


def _rebuild(graph: Graph, nodes: list[Node], replaced: Mapping[str, str]) -> Graph:
    def final(name: str) -> str:
        while name in replaced:
            name = replaced[name]
        return name

    return dataclasses.replace(
        graph, nodes=tuple(nodes), outputs=tuple(_map(value, final) for value in graph.outputs),
        mutations={argument: final(value) for argument, value in graph.mutations.items()},
    )


def _with_refs(node: Node, replaced: Mapping[str, str]) -> Node:
    if not replaced or not any(name in replaced for name in node.refs()):
        return node

    def final(name: str) -> str:
        while name in replaced:
            name = replaced[name]
        return name

    return dataclasses.replace(node, args={key: _map(value, final) for key, value in node.args.items()})


def _map(value: Arg, rename: Callable[[str], str]) -> Arg:
    if isinstance(value, Ref):
        return Ref(rename(value.name))
    if isinstance(value, tuple):
        return tuple(_map(item, rename) for item in value)
    return value


def _hashable(value: Arg) -> object:
    """A key that keeps 1, 1.0 and True apart."""
    if isinstance(value, tuple):
        return tuple(_hashable(item) for item in value)
    if isinstance(value, (Ref, Const)) or value is None or isinstance(value, str):
        return value
    return (type(value).__name__, repr(value))
