"""Fused regions: which nodes of the operator graph become own kernels, and the text of those kernels.

How the program writer uses this module:

1. `plan_regions` groups nodes. Every value that some region *materialises* is in that region's `outputs`.
   Every node whose live outputs no region materialises is left to the writer ("extern").
   Views (`reshape`, `permute`, `slice`, ...) and cheap factories are repeated inside the regions that use them, so
   a node must be written by the caller only if one of its outputs is *live*: a graph output, a mutation, an input
   of a region, or an argument of another written extern node (`extern_nodes` computes exactly that).
2. Regions and extern nodes are placed in order of their values: `Region.inputs` must exist before it
   (`schedule` gives such an order).
3. The caller allocates `Region.output_specs(...)`, and temporaries of `RegionCode`, then pastes
   `helper_text(...)` and `device_code` at file scope and `host_code` into the host function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from contracts.graph import Graph, Node, Ref
from contracts.tensors import TensorSpec
from engine.codegen import Tunable
from engine.records import Device

Choices = Mapping[str, int | str | bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Temporary:
    """Device memory that a region's kernels share between them.

    Attributes:
        name: C++ identifier. The host code uses it as an `at::Tensor` of one dimension.
        dtype: Element type by torch's name.
        numel: Elements; contents need not be initialised.
    """

    name: str
    dtype: str
    numel: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelText:
    """One kernel as text.

    Attributes:
        name: Its name.
        text: Comment, signature and body.
        identifiers: Names that are the kernel's own: parameters and variables.
    """

    name: str
    text: str
    identifiers: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionCode:
    """The text of one region.

    Attributes:
        kernels: Own kernels in launch order, for file scope after the helpers.
        helpers: Names of snippets for `helpers.helper_text`.
        host_code: Lines for the host function. They use the names given to `emit`, the temporaries, and a
            `cudaStream_t stream`.
        temporaries: Tensors to allocate before `host_code`.
        tunables: Choices that this region could have made otherwise.
        notes: Sentences about what was done.
    """

    kernels: tuple[KernelText, ...]
    helpers: frozenset[str]
    host_code: tuple[str, ...]
    temporaries: tuple[Temporary, ...] = ()
    tunables: tuple[Tunable, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def device_code(self) -> str:
        """The text of all kernels."""
        return "\n\n".join(kernel.text for kernel in self.kernels) + "\n"


class Region(Protocol):
    """Nodes that become one or more own kernels.

    Attributes:
        name: C++ identifier, unique in the plan; kernel names and tunable keys start with it.
        kind: Kernel family, such as `pointwise` or `rows`.
        nodes: Graph nodes computed inside, in graph order (views may occur in several regions).
        inputs: Values read, in order of first use.
        outputs: Values written, in graph order.
    """

    name: str
    kind: str
    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def output_specs(self, layouts: Mapping[str, TensorSpec]) -> Mapping[str, TensorSpec]:
        """Layout in which the caller allocates each output, given the layouts of the inputs.

        An output that `layouts` already names keeps that layout.
        """
        ...

    def emit(
        self,
        names: Mapping[str, str],
        *,
        layouts: Mapping[str, TensorSpec],
        choices: Choices,
        device: Device,
    ) -> RegionCode:
        """Write the kernels.

        Args:
            names: C++ expression of the `at::Tensor` of every input and output value.
            layouts: Real layout of every input and output value.
            choices: Values of tunables that differ from the default; unknown keys are ignored.
            device: The GPU to choose defaults for.
        """
        ...


def plan_regions(
    graph: Graph,
    *,
    fusible: Callable[[Node], bool] | None = None,
    choices: Choices | None = None,
    device: Device,
) -> tuple[Region, ...]:
    """Group nodes into regions that can be placed one after the other.

    Args:
        graph: The operator graph.
        fusible: Called for each node; where it answers False the node stays extern. None: all may be fused.
        choices: Recipe choices; `fuse` = False keeps one node a region.
        device: The GPU the kernels are for.

    Returns:
        Regions in an order in which each can run once extern nodes run as early as possible.
    """
    from engine.codegen.partition import partition

    return partition(graph, fusible=fusible, choices=choices or {}, device=device)


def extern_nodes(graph: Graph, regions: Sequence[Region]) -> tuple[Node, ...]:
    """Nodes the caller must write itself, in graph order: those with a live output that no region materialises."""
    made = {name for region in regions for name in region.outputs}
    live = {arg.name for arg in graph.outputs if isinstance(arg, Ref)} | set(graph.mutations.values())
    for region in regions:
        live.update(region.inputs)
    extern = []
    for node in reversed(graph.nodes):
        missing = [name for name in node.outputs if name is not None and name in live and name not in made]
        if missing:
            extern.append(node)
            live.update(node.refs())
    return tuple(reversed(extern))


def schedule(graph: Graph, regions: Sequence[Region]) -> Iterator[Region | Node]:
    """Regions and extern nodes in an order in which every value is made before its use.

    Raises:
        AssertionError: The regions are not convex, which `plan_regions` never returns.
    """
    ready = set(graph.inputs)
    waiting: list[Region | Node] = [*extern_nodes(graph, regions), *regions]
    position = {node.name: index for index, node in enumerate(graph.nodes)}
    waiting.sort(key=lambda item: position[item.name] if isinstance(item, Node) else position[item.nodes[-1].name])
    while waiting:
        for index, item in enumerate(waiting):
            needs = set(item.refs()) if isinstance(item, Node) else set(item.inputs)
            if needs <= ready:
                ready.update(name for name in item.outputs if name is not None)
                yield waiting.pop(index)
                break
        else:
            raise AssertionError("regions wait for each other: " + ", ".join(item.name for item in waiting))
