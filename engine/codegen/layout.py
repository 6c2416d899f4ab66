"""Memory formats over the whole graph: whether convolutions run on channels-last tensors.

Weights are converted in each call, by the library or by one launch for all of them, so that they may change.
"""

from __future__ import annotations

from collections.abc import Mapping

from contracts.graph import Graph, Node, Ref
from contracts.tensors import TensorSpec, channels_last
from engine.codegen import CannotWrite, Recipe, Tunable, convolution
from engine.codegen.cpp import words
from engine.codegen.regions import Region

# ATen operators that give their result in the memory format of their first tensor.
_FOLLOWS = words(
    """max_pool2d avg_pool2d adaptive_avg_pool2d adaptive_max_pool2d max_pool3d upsample_nearest2d upsample_bilinear2d
    _native_batch_norm_legit_functional _native_batch_norm_legit_no_training _native_batch_norm_legit
    native_batch_norm batch_norm native_dropout dropout relu gelu silu sigmoid tanh add mul sub div clamp hardtanh
    leaky_relu hardswish mish cat"""
)
# What folds a window of its input for each element, where an own kernel does it.
_WINDOWED = words(
    """max_pool2d max_pool2d_with_indices max_pool3d max_pool3d_with_indices avg_pool2d avg_pool3d conv2d conv3d
    convolution""")
# After these a tensor's dimensions are no longer where they were: how it lies says nothing of what neighbours read.
_REARRANGES = words(
    """permute transpose t numpy_T movedim moveaxis swapaxes swapdims view reshape _unsafe_view flatten unflatten
    view_as reshape_as squeeze unsqueeze pixel_shuffle""")
_MANY_ELEMENTS = 1 << 16
# A convolution with fewer channels than this leaves Tensor Cores idle in either format.
_FEW_CHANNELS = 16


class Formats:
    """Which values of the graph lie channels-last.

    Attributes:
        channels_last: True when convolutions of this program run on channels-last tensors.
        wanted: Values that such a convolution reads; whoever makes them should make them in this format.
        results: Values that such a convolution makes.
        packed: Weights that one launch puts into this format.
    """

    def __init__(self, graph: Graph, recipe: Recipe, flags: Mapping[str, bool]) -> None:
        self._graph = graph
        self._nodes = [node for node in graph.nodes if _can(node, graph)]
        pays = _pays(self._nodes, graph, flags) and _shares_conversions(self._nodes, graph)
        self._default = "channels_last" if pays else "contiguous"
        applies = recipe.space == "cuda_libs_torch" and bool(self._nodes)
        self._applies = applies
        chosen = recipe.choices.get("layout", self._default)
        self.channels_last = applies and chosen == "channels_last"
        self.wanted = frozenset(_input(node) for node in self._nodes) if self.channels_last else frozenset()
        self.results = frozenset(node.out for node in self._nodes) if self.channels_last else frozenset()
        packed = recipe.choices.get("weights", "inside") == "packed"
        self.packed = self._packable() if packed else ()

    def _packable(self) -> tuple[str, ...]:
        """Weights whose order changes, and that the caller gives as they are."""
        given = set(self._graph.inputs)
        found = {}
        for node in self._nodes if self.channels_last else ():
            name = _weight(node)
            spec = self._graph.values[name]
            plain = name in given and spec.is_contiguous and spec.dtype == "float32"
            if plain and not spec.is_channels_last:
                found[name] = None
        return tuple(found)

    def tunables(self) -> list[Tunable]:
        """The choices, where there are any."""
        if not self._applies:
            return []
        packing = [Tunable(
            key="weights", direction="M", values=("inside", "packed"), weight=0.2,
            meaning="weights put into channels-last order by each library call, or by one launch for all",
        )] if self._packable() else []
        other = "contiguous" if self._default == "channels_last" else "channels_last"
        return [Tunable(
            key="layout", direction="M", values=(self._default, other), weight=1.0,
            meaning="memory format in which convolutions and the kernels between them keep images",
        ), *packing]

    def converts(self, node: Node) -> bool:
        """True for a convolution whose input must be channels-last."""
        return self.channels_last and _can(node, self._graph)

    def twin(self, value: str, suffix: str = "channels_last") -> str:
        """What a copy of `value` in another order is called: as no value of the graph, which bear the user's names."""
        name = f"{value}_{suffix}"
        while name in self._graph.values:
            name += "_copy"
        return name

    def read_in_windows(self, region: Region, layouts: Mapping[str, TensorSpec]) -> tuple[str, ...]:
        """Images that a region reads in windows in the other order than it writes: each tap would cross orders.

        A copy in the right order is cheaper, and convolutions beside may read it too.
        """
        crosses = any(layouts[name].is_channels_last and not layouts[name].is_contiguous for name in region.outputs)
        if not crosses:
            return ()
        images, rearranged = set[str](), set[str]()
        for node in reversed(region.nodes):
            read = list(node.refs())
            if node.base in _REARRANGES or not rearranged.isdisjoint(node.outputs):
                rearranged.update(read)
            if node.base in _WINDOWED:
                images.update(read[:1])
            elif not images.isdisjoint(node.outputs):
                images.update(read)
        return tuple(name for name in region.inputs
                     if name in images - rearranged and len(layouts[name].shape) in (4, 5)
                     and layouts[name].is_contiguous and not layouts[name].is_channels_last
                     and layouts[name].numel >= _MANY_ELEMENTS)

    def result(self, node: Node, name: str, layouts: Mapping[str, TensorSpec]) -> TensorSpec:
        """Layout in which an ATen call gives the value `name`."""
        spec = self._graph.values[name]
        if len(spec.shape) not in (4, 5) or not self.channels_last:
            return spec
        first = next(iter(node.refs()), None)
        follows = node.base in _FOLLOWS and first is not None and layouts[first].is_channels_last and not (
            layouts[first].is_contiguous)
        return with_channels_last(spec) if self.converts(node) or follows else spec


def with_channels_last(spec: TensorSpec) -> TensorSpec:
    """The same tensor in channels-last order."""
    return TensorSpec(dtype=spec.dtype, shape=spec.shape, stride=channels_last(spec.shape))


def memory_format(spec: TensorSpec) -> str:
    """ATen's constant for channels-last of this rank."""
    return "at::MemoryFormat::ChannelsLast" + ("3d" if len(spec.shape) == 5 else "")


def _input(node: Node) -> str:
    value = node.args["input"]
    assert isinstance(value, Ref)
    return value.name


def _can(node: Node, graph: Graph) -> bool:
    if node.base not in convolution.CONVOLUTIONS:
        return False
    spec = graph.values[_input(node)]
    return len(spec.shape) in (4, 5) and len(spec.shape) == len(graph.values[node.out].shape) and (
        len(spec.shape) == len(graph.values[_weight(node)].shape))


def _weight(node: Node) -> str:
    value = node.args["weight"]
    assert isinstance(value, Ref)
    return value.name


def _shares_conversions(nodes: list[Node], graph: Graph) -> bool:
    """True when fewer than two passes a convolution only change the format.

    A convolution alone would be wrapped in two of them, which cost more than what the library does inside.
    """
    given = set(graph.inputs)
    results = {value.name for value in graph.outputs if isinstance(value, Ref)}
    read = {_input(node) for node in nodes}
    passes = len(read & given) + sum(node.out in results for node in nodes)
    return passes < 2 * len(nodes)


def _pays(nodes: list[Node], graph: Graph, flags: Mapping[str, bool]) -> bool:
    """True when most of the convolutions' work can use Tensor Cores, which want channels next to each other."""
    total = fit = 0
    for node in nodes:
        try:
            conv = convolution.parse(node, graph.values)
        except CannotWrite:
            continue
        work = convolution.flops(conv)
        total += work
        half = graph.values[node.out].dtype in ("float16", "bfloat16")
        tf32 = graph.values[node.out].dtype == "float32" and flags.get("cudnn.allow_tf32", True)
        if (half or tf32) and min(conv.in_channels, conv.out_channels) >= _FEW_CHANNELS:
            fit += work
    return total > 0 and fit >= total / 2
