"""Rewrites of the graph that a recipe asks for, before regions are planned: biases, attention, memory formats."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from contracts.graph import Graph, Node, Ref
from contracts.tensors import TensorSpec
from engine.codegen import Recipe, Tunable
from engine.codegen.aten_calls import is_random
from engine.codegen.decompose import decompose
from engine.codegen.regions import Region, plan_regions
from engine.codegen.shifted_sums import join_shifted_sums
from engine.codegen.streams import steps_of
from engine.records import Device

_CONVOLUTIONS = (
    "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "convolution",
)

_JOINS = frozenset({"cat", "concat", "concatenate", "stack"})
MOST_JOINED = 8  # Tensors that a kernel joins by asking where each element comes from.


def fuses(recipe: Recipe) -> bool:
    """False when the recipe wants every operator as an ATen call."""
    return recipe.space != "cuda_libs_torch" or recipe.choices.get("fusion", "all") != "none"


def prepare(
    graph: Graph, recipe: Recipe, device: Device, left_to_calls: AbstractSet[str] = frozenset()
) -> tuple[Graph, tuple[Region, ...]]:
    """The graph that calls are written from, and the regions of it that become own kernels.

    Args:
        graph: The simplified graph.
        recipe: Space and choices.
        device: The GPU to write for.
        left_to_calls: Nodes that turned out to have no own kernel.
    """
    if recipe.space != "cuda_libs_torch":
        graph = decompose(graph)
    if not fuses(recipe):
        return graph, ()
    graph = join_shifted_sums(graph, left_to_calls)
    calls = _wide_joins(graph) if recipe.space == "cuda_libs_torch" else set()

    def planned(graph: Graph) -> tuple[Region, ...]:
        return plan_regions(
            graph, choices=recipe.choices, device=device,
            fusible=lambda node: not is_random(node) and node.name not in left_to_calls and node.name not in calls,
        )

    # Own products add the bias where they store: nothing to gain from another pass.
    wanted = set() if recipe.space == "cuda" or recipe.choices.get("bias", "fused") == "library" else {
        node.name for node in graph.nodes if _bias_name(node, graph) is not None
    }
    if not wanted:
        return graph, planned(graph)
    split = split_biases(graph, wanted)
    regions = planned(split)
    kept = _worthwhile(regions, wanted)
    if recipe.space == "cuda_libs":
        kept |= {node.name for node in graph.nodes if node.name in wanted and node.base == "linear"}
    if kept == wanted:
        return split, regions
    # The rest keep their bias; the regions that would only have added one are not needed.
    final = split_biases(graph, kept)
    left = {node.name for node in final.nodes}
    return final, tuple(
        dataclasses.replace(region, graph=final) for region in regions  # type: ignore[type-var]
        if any(node.name in left for node in region.nodes)
    )


def _wide_joins(graph: Graph) -> set[str]:
    """Concatenations of so many tensors that a kernel that asks for each would be mostly questions."""
    return {
        node.name for node in graph.nodes
        if node.base in _JOINS and isinstance(items := node.args.get("tensors"), tuple) and len(items) > MOST_JOINED
    }


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
    steps = steps_of(graph) if fuses(recipe) else ()
    if len(steps) > 1:
        found.append(Tunable(
            key="steps", direction="R", values=steps, weight=1.0,
            meaning="windows of equal geometry that one kernel takes after each other, rows between them on the chip",
        ))
    return found


def _worthwhile(regions: Sequence[Region], wanted: set[str]) -> set[str]:
    """The biases that a kernel adds on the way, because it reads the result anyway."""
    found: set[str] = set()
    for region in regions:
        names = {node.name for node in region.nodes}
        added = {name.removesuffix("_bias") for name in names if name.endswith("_bias")} & wanted
        if names - {f"{name}{end}" for name in added for end in ("_bias", "_bias_view")}:
            found |= added
    return found


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
