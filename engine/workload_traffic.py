"""Compulsory traffic: the bytes of arguments that any implementation must read, and of results it must write.

A lower bound, never a guess upward: it decides what is physically impossible. A value's need is a
number of elements, walked from the outputs back to the arguments. Where an operator reads only part
of its input (a slice, an embedding, a strided window), only that part is needed; where we can not
tell which part, the smallest possible part counts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from contracts.contract import Argument, Contract
from contracts.graph import Graph, Node, Ref
from contracts.tensors import TensorSpec
from engine.workload_costs import Call, is_view, node_cost, operator_name

LOOKUPS = {"embedding": ("weight", "indices"), "index_select": ("self", "index"), "gather": ("self", "index"),
           "take": ("self", "index"), "take_along_dim": ("self", "indices"), "index": ("self", "indices"),
           "embedding_bag": ("weight", "indices"), "_embedding_bag": ("weight", "indices")}
JOINS = frozenset({"cat", "concat", "concatenate", "stack", "hstack", "vstack", "dstack"})
# The result's values do not depend on these arguments' elements, only on their layout.
LAYOUT_ONLY = frozenset({"zeros_like", "ones_like", "full_like", "empty_like", "rand_like", "randn_like", "new_zeros",
                         "new_ones", "new_full", "new_empty", "sym_size", "expand_as", "view_as", "type_as"})


def compulsory_bytes(contract: Contract, *, certain: bool = True) -> tuple[int, int]:
    """Bytes that must be read and bytes that must be written, for the example variant.

    With `certain`, part of a result needs the same part of its inputs at least, whatever the operator:
    nothing can do with less. Without, only operators that work element by element keep parts, and all
    others need their inputs whole (one token of an attention needs all weights): what a real
    implementation reads at the least.

    Without a graph (the reference is CUDA text) nobody knows which inputs are read in full: none is
    certain, else all count, and mutable arguments as written too.
    """
    graph = contract.graph
    arguments = {a.name: a for a in contract.tensor_arguments}
    layouts = contract.example.tensors
    if graph is None and certain:
        return 0, sum(spec.size_bytes for spec in contract.outputs)
    if graph is None:
        read = sum(_layout(a, layouts).size_bytes for a in arguments.values())
        written = sum(spec.size_bytes for spec in contract.outputs)
        return read, written + sum(_layout(a, layouts).size_bytes for a in arguments.values() if a.mutable)
    needs = needed_elements(contract, graph, certain=certain)
    read = sum(needs.get(name, 0) * graph.values[name].item_bytes for name in graph.inputs if name in graph.values)
    return read, _written_bytes(graph)


def needed_elements(contract: Contract, graph: Graph, *, certain: bool = True) -> dict[str, int]:
    """Elements of every value that the outputs need, by value name; absent means none."""
    by_graph_name = dict(zip(graph.inputs, contract.tensor_arguments, strict=False))
    needs: dict[str, int] = {}

    def require(name: str, count: int) -> None:
        spec = graph.values.get(name)
        if spec is not None:
            distinct = spec.size_bytes // spec.item_bytes
            needs[name] = max(needs.get(name, 0), min(count, distinct))

    for name in _results(graph):
        require(name, graph.values[name].numel if name in graph.values else 0)
    for node in reversed(graph.nodes):
        made = [name for name in node.outputs if name is not None and needs.get(name, 0) > 0]
        if made:
            full = max(made, key=lambda name: needs[name])
            for name, count in _node_needs(node, graph, needs[full], full, by_graph_name, certain).items():
                require(name, count)
    return needs


def _node_needs(
    node: Node, graph: Graph, count: int, out: str, arguments: Mapping[str, Argument], certain: bool
) -> dict[str, int]:
    """Least elements of each used value, when `count` elements of `out` are needed."""
    name = operator_name(node)
    used = [ref for ref in dict.fromkeys(node.refs()) if ref in graph.values]
    out_spec = graph.values[out]
    distinct = max(out_spec.size_bytes // out_spec.item_bytes, 1)
    if name in LAYOUT_ONLY:
        keep = node.args.get("self")
        return {keep.name: count} if isinstance(keep, Ref) and name in ("expand_as", "view_as", "type_as") else {}
    if is_view(node, graph):
        first = next((v.name for v in node.args.values() if isinstance(v, Ref)), None)
        return {first: count} if first is not None else {}
    if name in LOOKUPS:
        return _lookup_needs(node, graph, count, arguments)
    if name in JOINS:
        sizes = {ref: graph.values[ref].numel for ref in used}
        missing = out_spec.numel - count
        return {ref: max(0, size - missing) for ref, size in sizes.items()}
    keeps_parts = certain or node_cost(node, graph).family in ("pointwise", "copy")
    part = min(1.0, count / distinct) if keeps_parts else 1.0
    needs = {ref: math.floor(part * graph.values[ref].numel) for ref in used}
    source = Call(node, graph).spec("input", "self")
    first = next(iter(used), None)
    if first is not None and source is not None:
        needs[first] = math.floor(needs[first] * _window_part(node, graph, source))
    if name in ("scatter", "index_put", "index_copy", "slice_scatter", "select_scatter", "diagonal_scatter",
                "index_fill", "masked_fill", "where", "masked_scatter", "tril", "triu", "constant_pad_nd", "pad"):
        # Some elements of the input may be overwritten or dropped unread.
        other = sum(graph.values[ref].numel for ref in used[1:]) if name not in ("tril", "triu") else 0
        for ref in used[:1]:
            kept = needs[ref] // 2 if name in ("tril", "triu") else needs[ref] - other
            needs[ref] = max(0, min(kept, needs[ref]))
        if name in ("where", "pad", "constant_pad_nd"):
            condition = node.args.get("condition")
            keep = condition.name if isinstance(condition, Ref) else ""
            needs.update({ref: 0 for ref in used if name == "where" and ref != keep})
    return needs


def _window_part(node: Node, graph: Graph, source: TensorSpec) -> float:
    """The part of the input that windows touch, where their stride is larger than the window."""
    if operator_name(node) not in ("conv1d", "conv2d", "conv3d", "convolution", "max_pool1d", "max_pool2d",
                                   "max_pool3d", "avg_pool1d", "avg_pool2d", "avg_pool3d"):
        return 1.0
    call = Call(node, graph)
    dims = max(len(source.shape) - 2, 1)
    weight = call.spec("weight")
    window = list(weight.shape[2:]) if weight is not None else _spread(call.value("kernel_size", default=1), dims)
    stride = _spread(call.value("stride", default=1), dims) or window
    return math.prod(min(1.0, k / s) for k, s in zip(window, stride, strict=False) if s)


def _spread(value: object, dims: int) -> list[int]:
    items = [v for v in value if isinstance(v, int)] if isinstance(value, tuple) else [value]
    return items * dims if len(items) == 1 else items  # type: ignore[return-value]


def _lookup_needs(node: Node, graph: Graph, count: int, arguments: Mapping[str, Argument]) -> dict[str, int]:
    """A table's rows by index: the number of distinct rows that uniform draws would touch."""
    table_name, index_name = LOOKUPS[operator_name(node)]
    table_ref = node.args.get(table_name)
    if not isinstance(table_ref, Ref):
        return {}
    table = graph.values[table_ref.name]
    index_refs = [ref for ref in node.refs() if ref != table_ref.name and ref in graph.values
                  and not graph.values[ref].is_floating]
    dim = node.args.get("dim")
    axis = dim % max(len(table.shape), 1) if isinstance(dim, int) else 0
    rows = table.shape[axis] if table.shape else 1
    draws = max((graph.values[ref].numel for ref in index_refs), default=0)
    if operator_name(node) in ("gather", "take", "take_along_dim", "index"):
        # Every index names single elements (or unknown slices): no more than were asked for.
        touched = _distinct(table.numel, min(draws, count))
    else:
        spans = [a.high - a.low + 1 for ref in index_refs
                 if (a := arguments.get(ref)) is not None and a.low is not None and a.high is not None]
        # A bag or a row is needed whole; `index_name` says how many were drawn.
        touched = math.floor(_distinct(min([rows, *spans]), draws) * table.numel / max(rows, 1))
        touched = min(touched, max(count, 1)) if index_name == "index" else touched
    return {table_ref.name: touched, **{ref: graph.values[ref].numel for ref in index_refs}}


def _distinct(population: int, draws: int) -> int:
    """Expected number of different values in `draws` uniform draws."""
    if population <= 1:
        return min(population, draws)
    return math.floor(-population * math.expm1(draws * math.log1p(-1 / population)))


def _results(graph: Graph) -> list[str]:
    outputs = [value.name for value in graph.outputs if isinstance(value, Ref)]
    return list(dict.fromkeys([*outputs, *graph.mutations.values()]))


def _written_bytes(graph: Graph) -> int:
    """Each distinct result once. A view of an argument costs nothing; two views of one value count once."""
    roots: dict[str, int] = {}
    for name in _results(graph):
        spec = graph.values.get(name)
        if spec is None:
            continue
        root = _root(name, graph)
        if root in graph.inputs and root == name:
            continue
        if root in graph.inputs and name not in graph.mutations.values():
            continue
        roots[root] = max(roots.get(root, 0), spec.size_bytes)
    return sum(roots.values())


def _root(name: str, graph: Graph) -> str:
    """The value whose storage `name` is a view of."""
    node = graph.producer(name)
    while node is not None and is_view(node, graph):
        first = next((v.name for v in node.args.values() if isinstance(v, Ref)), None)
        if first is None:
            return name
        name, node = first, graph.producer(first)
    return name


def _layout(argument: Argument, layouts: Mapping[str, TensorSpec]) -> TensorSpec:
    spec = layouts.get(argument.name, argument.tensor)
    assert spec is not None
    return spec
