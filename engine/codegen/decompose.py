"""Operators as simpler ones, for spaces without ATen: attention as products and a softmax, wide joins in steps."""

from __future__ import annotations

import dataclasses
import math

from contracts.graph import Arg, Const, Graph, Node, Ref
from contracts.tensors import TensorSpec

_JOINS = frozenset({"cat", "concat", "concatenate", "stack"})
_JOINED_AT_ONCE = 48  # Pointers that one kernel takes comfortably.


def decompose(graph: Graph) -> Graph:
    """The graph with attention and wide joins written out."""
    builder = _Builder(graph)
    for node in graph.nodes:
        if node.op == "aten.scaled_dot_product_attention.default" and not node.args["dropout_p"]:
            _attention(builder, node)
        elif node.base in _JOINS and len(_items(node)) > _JOINED_AT_ONCE:
            _join(builder, node)
        else:
            builder.nodes.append(node)
    return dataclasses.replace(graph, nodes=tuple(builder.nodes), values=builder.values)


class _Builder:
    def __init__(self, graph: Graph) -> None:
        self.nodes: list[Node] = []
        self.values: dict[str, TensorSpec] = dict(graph.values)

    def add(self, like: Node, suffix: str, op: str, args: dict[str, Arg], spec: TensorSpec, out: str = "") -> str:
        """Append a node; gives the name of its value."""
        name = f"{like.name}_{suffix}"
        out = out or name
        self.values[out] = spec
        self.nodes.append(
            Node(name=name, op=op, args=args, outputs=(out,), module=like.module, source=like.source)
        )
        return out


def _attention(builder: _Builder, node: Node) -> None:
    """softmax(scale * Q K^T + mask) V, the definition that torch documents."""
    q, k, v = (_name(node.args[key]) for key in ("query", "key", "value"))
    mask, values = node.args["attn_mask"], builder.values
    query, keys = values[q], values[k]
    dtype, scale = query.dtype, node.args["scale"]
    if node.args.get("enable_gqa") and values[k].shape[-3] != query.shape[-3]:
        k, v = (_repeated(builder, node, name, query.shape[-3], suffix) for name, suffix in ((k, "keys"), (v, "items")))
        keys = values[k]
    factor = scale if isinstance(scale, (int, float)) else 1 / math.sqrt(query.shape[-1])
    rank = len(keys.shape)
    flipped = TensorSpec(
        dtype=keys.dtype, shape=(*keys.shape[:-2], keys.shape[-1], keys.shape[-2]),
        stride=(*keys.stride[:-2], keys.stride[-1], keys.stride[-2]),
    )
    turned = builder.add(
        node, "turned", "aten.transpose.int", {"self": Ref(k), "dim0": rank - 2, "dim1": rank - 1}, flipped
    )
    batch = values[node.out].shape[:-2]
    square = TensorSpec.contiguous(dtype, (*batch, query.shape[-2], keys.shape[-2]))
    score = builder.add(node, "scores", "aten.matmul.default", {"self": Ref(q), "other": Ref(turned)}, square)
    score = builder.add(node, "scaled", "aten.mul.Tensor", {"self": Ref(score), "other": factor}, square)
    if node.args["is_causal"]:
        plain = TensorSpec.contiguous("bool", square.shape[-2:])
        ones = builder.add(node, "ones", "aten.full.default", {
            "size": plain.shape, "fill_value": True, "dtype": Const("dtype", "bool"), "layout": None, "device": None,
            "pin_memory": False}, plain)
        above = builder.add(node, "above", "aten.triu.default", {"self": Ref(ones), "diagonal": 1}, plain)
        score = builder.add(node, "causal", "aten.masked_fill.Scalar", {
            "self": Ref(score), "mask": Ref(above), "value": -math.inf}, square)
    if isinstance(mask, Ref):
        if values[mask.name].dtype == "bool":
            hidden = builder.add(node, "hidden", "aten.logical_not.default", {"self": mask}, values[mask.name])
            score = builder.add(node, "masked", "aten.masked_fill.Scalar", {
                "self": Ref(score), "mask": Ref(hidden), "value": -math.inf}, square)
        else:
            score = builder.add(
                node, "masked", "aten.add.Tensor", {"self": Ref(score), "other": mask, "alpha": 1}, square)
    weights = builder.add(node, "weights", "aten.softmax.int", {
        "self": Ref(score), "dim": len(square.shape) - 1, "dtype": None}, square)
    builder.add(
        node, "attended", "aten.matmul.default", {"self": Ref(weights), "other": Ref(v)}, values[node.out], node.out)


def _items(node: Node) -> tuple[Arg, ...]:
    items = node.args.get("tensors")
    return items if isinstance(items, tuple) and all(isinstance(item, Ref) for item in items) else ()


def _join(builder: _Builder, node: Node) -> None:
    """Groups of tensors joined first, then the groups."""
    whole = builder.values[node.out]
    dim = node.args.get("dim", 0)
    dim = (dim if isinstance(dim, int) else 0) % len(whole.shape)
    items: list[str] = [_name(item) for item in _items(node)]
    op, level = node.op, 0
    while len(items) > _JOINED_AT_ONCE:
        groups = [items[at : at + _JOINED_AT_ONCE] for at in range(0, len(items), _JOINED_AT_ONCE)]
        stacks = op.split(".")[1] == "stack"
        items = []
        for position, group in enumerate(groups):
            size = len(group) if stacks else sum(builder.values[name].shape[dim] for name in group)
            shape = (*whole.shape[:dim], size, *whole.shape[dim + 1 :])
            items.append(builder.add(
                node, f"part_{level}_{position}", op, {"tensors": tuple(Ref(name) for name in group), "dim": dim},
                TensorSpec.contiguous(whole.dtype, shape)))
        op, level = "aten.cat.default", level + 1
    builder.add(node, "joined", op, {"tensors": tuple(Ref(name) for name in items), "dim": dim}, whole, node.out)


def _repeated(builder: _Builder, node: Node, name: str, heads: int, suffix: str) -> str:
    """Every head of `name` as often as grouped queries share it."""
    spec = builder.values[name]
    own = spec.shape[-3]
    before, after = spec.shape[:-3], spec.shape[-2:]
    spread = (*before, own, heads // own, *after)
    unsqueezed = TensorSpec(
        dtype=spec.dtype, shape=(*before, own, 1, *after),
        stride=(*spec.stride[:-2], spec.stride[-2], *spec.stride[-2:]),
    )
    wider = builder.add(node, f"{suffix}_wide", "aten.unsqueeze.default", {
        "self": Ref(name), "dim": len(before) + 1}, unsqueezed)
    stride = (*spec.stride[:-2], 0, *spec.stride[-2:])
    repeated = builder.add(node, f"{suffix}_spread", "aten.expand.default", {
        "self": Ref(wider), "size": spread, "implicit": False},
        TensorSpec(dtype=spec.dtype, shape=spread, stride=stride))
    return builder.add(node, suffix, "aten.reshape.default", {
        "self": Ref(repeated), "shape": (*before, heads, *after)},
        TensorSpec.contiguous(spec.dtype, (*before, heads, *after)))


def _name(value: Arg) -> str:
    assert isinstance(value, Ref)
    return value.name
