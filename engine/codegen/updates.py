"""What the call leaves in its arguments: counters, running statistics, anything the graph mutates."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from contracts.graph import Graph, Node, Ref
from contracts.tensors import TensorSpec
from engine.codegen import cpp
from engine.codegen.aliasing import alias_roots

# Above this size a copy fills the device by itself.
_SMALL_NUMEL = 1 << 14


@dataclass(slots=True)
class Counters:
    """Integer arguments that the call advances by a constant.

    Attributes:
        nodes: Names of the `add` nodes that need not be computed.
        steps: Argument to step.
    """

    nodes: set[str] = field(default_factory=set)
    steps: dict[str, int] = field(default_factory=dict)

    def removed_from(self, graph: Graph) -> Graph:
        """The graph without the counters' nodes and mutations."""
        return dataclasses.replace(
            graph, nodes=tuple(node for node in graph.nodes if node.name not in self.nodes),
            mutations={a: v for a, v in graph.mutations.items() if a not in self.steps},
        )


def find_counters(graph: Graph) -> Counters:
    """Mutations of the form `n = n + step` whose new value nothing else reads."""
    found = Counters()
    outputs = {value.name for value in graph.outputs if isinstance(value, Ref)}
    uses = Counter(name for node in graph.nodes for name in set(node.refs()))
    producers = {name: node for node in graph.nodes for name in node.outputs}
    for argument, value in graph.mutations.items():
        node = producers.get(value)
        if node is None or value in outputs or argument in outputs or uses[value] or uses[argument] != 1:
            continue
        if not _adds_constant(node, argument):
            continue
        spec = graph.values[argument]
        if spec.dtype == "int64" and spec.numel == 1:
            step = node.args["other"]
            alpha = node.args.get("alpha", 1)
            assert isinstance(step, int)
            assert isinstance(alpha, int)
            found.nodes.add(node.name)
            found.steps[argument] = step * alpha
    return found


def update_lines(
    graph: Graph, counters: Counters, names: Callable[[str], str], layouts: Mapping[str, TensorSpec]
) -> list[str]:
    """Statements that bring the arguments up to date; they use `stream`."""
    # What an update reads of an argument that another one writes is kept first: updates may run at the same time.
    roots, kept = alias_roots(graph), {}
    for value in graph.mutations.values():
        if roots.get(value, value) in graph.mutations and graph.mutations.get(value) != value:
            kept[value] = names(f"{value}_before")
    lines = [
        f"const at::Tensor {before} = fresh_copy({names(value)}, {cpp.sizes(layouts[value].stride)});"
        for value, before in kept.items()
    ]
    for step in sorted(set(counters.steps.values())):
        those = ", ".join(names(argument) for argument, own in counters.steps.items() if own == step)
        lines.append(f"advance_counters({{{those}}}, {step}, stream);")
    small, large = [], []
    for argument, value in graph.mutations.items():
        if argument in counters.steps or names(argument) == names(value):
            continue
        old, new = layouts[argument], layouts[value]
        together = (
            old.dtype == new.dtype == "float32" and old.is_contiguous and new.is_contiguous
            and old.numel <= _SMALL_NUMEL
        )
        (small if together else large).append((names(argument), kept.get(value) or names(value)))
    if len(small) > 1:
        pairs = ", ".join(f"{{{target}, {source}}}" for target, source in small)
        lines.append(f"update_arguments({{{pairs}}}, stream);")
    else:
        large += small
    return lines + [f"copy_into({target}, {source});" for target, source in large]


def _adds_constant(node: Node, argument: str) -> bool:
    return (
        node.op in ("aten.add.Tensor", "aten.add.Scalar") and node.args.get("self") == Ref(argument)
        and isinstance(node.args.get("other"), int) and isinstance(node.args.get("alpha", 1), int)
    )
