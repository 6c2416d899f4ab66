"""Rewrites of the graph that a recipe asks for, before regions are planned: biases, attention, memory formats."""

from __future__ import annotations

import dataclasses
from collections.abc import Set as AbstractSet

from contracts.graph import Graph, Node, Ref
from contracts.tensors import TensorSpec
from engine.codegen import Recipe, Tunable
from engine.codegen.decompose import decompose
from engine.codegen.regions import plan_regions
from engine.records import Device

_CONVOLUTIONS = (
    "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "convolution",
)


def fuses(recipe: Recipe) -> bool:
    """False when the recipe wants every operator as an ATen call."""
    return recipe.space != "cuda_libs_torch" or recipe.choices.get("fusion", "all") != "none"


def prepare(graph: Graph, recipe: Recipe, device: Device, left_to_calls: AbstractSet[str] = frozenset()) -> Graph:
    """The graph that regions are planned on and calls are written from."""
    if recipe.space != "cuda_libs_torch":
        graph = decompose(graph)
    if not fuses(recipe):
        return graph
    if recipe.space == "cuda":
        # Own products add the bias where they store: nothing to gain from another pass.
        return graph
    if recipe.choices.get("bias", "fused") == "library":
        return graph
    return _split_worthwhile(graph, recipe, device, left_to_calls)


def program_tunables(graph: Graph, recipe: Recipe) -> list[Tunable]:
    """The choices this module makes, where they change the source."""
    found = []
    if recipe.space == "cuda_libs_torch" and graph.nodes:
        found.append(Tunable(
            key="fusion", direction="C", values=("all", "none"), weight=0.5,
            meaning="own fused kernels between the heavy operators, or one ATen call for every operator",
        ))
    if recipe.space != "cuda" and any(
        node.name.endswith("_bias") or _bias_name(node, graph) for node in graph.nodes
    ):
        found.append(Tunable(
            key="bias", direction="R", values=("fused", "library"), weight=0.3,
            meaning="biases added by the fused kernel that reads the result, or by the library call",
        ))
    return found


def _split_worthwhile(graph: Graph, recipe: Recipe, device: Device, left_to_calls: AbstractSet[str]) -> Graph:
    """Take biases out of library calls where a fused kernel reads the result anyway (or cuBLAS could not add them)."""
    wanted = {node.name: node.base for node in graph.nodes if _bias_name(node, graph) is not None}
    if not wanted:
        return graph
    split = split_biases(graph, set(wanted))
    regions = plan_regions(
        split, choices=recipe.choices, device=device, fusible=lambda node: node.name not in left_to_calls
    )
    worthwhile = {name for name, base in wanted.items() if recipe.space == "cuda_libs" and base == "linear"}
    for region in regions:
        names = {node.name for node in region.nodes}
        added = {name.removesuffix("_bias") for name in names if name.endswith("_bias")} & wanted.keys()
        own = {f"{name}{end}" for name in added for end in ("_bias", "_bias_view")}
        if names - own:
            worthwhile |= added
    return split_biases(graph, worthwhile) if worthwhile != wanted.keys() else split


def split_biases(graph: Graph, names: set[str]) -> Graph:
    """The graph in which the named linear and convolution nodes leave their bias to an `add` after them."""
    nodes: list[Node] = []
    values = dict(graph.values)
    for node in graph.nodes:
        bias = _bias_name(node, graph) if node.name in names else None
        if bias is None:
            nodes.append(node)
            continue
        out = node.out
        spec = values[out]
        raw = f"{out}_unbiased"
        values[raw] = spec
        nodes.append(dataclasses.replace(
            node, args={**node.args, "bias": None}, outputs=tuple(raw if o == out else o for o in node.outputs)
        ))
        operand = bias
        if node.base in _CONVOLUTIONS:
            trailing = len(values[_source(node, "weight")].shape) - 2
            operand = f"{out}_bias_view"
            shape = (values[bias].shape[0], *(1,) * trailing)
            values[operand] = TensorSpec.contiguous(values[bias].dtype, shape)
            nodes.append(Node(
                name=f"{node.name}_bias_view", op="aten.view.default", args={"self": Ref(bias), "size": shape},
                outputs=(operand,), module=node.module, source=node.source,
            ))
        nodes.append(Node(
            name=f"{node.name}_bias", op="aten.add.Tensor",
            args={"self": Ref(raw), "other": Ref(operand), "alpha": 1}, outputs=(out,), module=node.module,
            source=node.source,
        ))
    return dataclasses.replace(graph, nodes=tuple(nodes), values=values)


def _bias_name(node: Node, graph: Graph) -> str | None:
    """The bias that could be added after the node: only where rounding in between does not lose accuracy."""
    if node.base != "linear" and node.base not in _CONVOLUTIONS:
        return None
    bias = node.args.get("bias")
    if not isinstance(bias, Ref) or graph.values[node.out].dtype not in ("float32", "float64"):
        return None
    spec = graph.values[bias.name]
    return bias.name if spec.is_contiguous and len(spec.shape) == 1 else None


def _source(node: Node, argument: str) -> str:
    value = node.args[argument]
    assert isinstance(value, Ref)
    return value.name
