"""Nodes that no fused region computes: matrix products, convolutions, and whatever only ATen has.

The space says what may be used. ATen views and allocations are free everywhere, since they launch nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from contracts.graph import Graph, Node, Ref
from contracts.tensors import TensorSpec
from engine.codegen import CannotWrite, Recipe, Tunable, convolution, cpp, cublas, halves, matmul, tensor_cores
from engine.codegen.aliasing import offset_views
from engine.codegen.aten_calls import CallWriter, Measures
from engine.codegen.layout import Formats, memory_format
from engine.codegen.products import SUM_TYPE, ExternCode, Product, write_product
from engine.records import Device

# ATen operators that make, fill or re-describe a tensor: no arithmetic, so every space may call them.
PLAIN = cpp.words(
    """view reshape _unsafe_view flatten unflatten permute transpose t squeeze unsqueeze expand select slice narrow
    split split_with_sizes tensor_split chunk unbind as_strided contiguous clone unfold diagonal movedim zeros ones full
    empty zeros_like ones_like full_like empty_like new_zeros new_ones new_full new_empty alias detach"""
)
HEAVY = matmul.MATMULS | convolution.CONVOLUTIONS


@dataclass(slots=True, kw_only=True)
class ExternWriter:
    """Writes extern nodes of one variant.

    Attributes:
        graph: The graph.
        recipe: Space and choices.
        device: The GPU.
        names: Identifiers.
        layouts: Real layout of every value made so far; outputs of own kernels are added.
        options: C++ of type TensorOptions on the arguments' device.
        flags: The contract's backend flags.
        weights: Node name to its share of the module's work.
        formats: Memory formats of convolutions.
        values: Shapes of all values, converted twins included.
    """

    graph: Graph
    recipe: Recipe
    device: Device
    names: cpp.Names
    layouts: dict[str, TensorSpec]
    options: str
    flags: Mapping[str, bool]
    weights: Mapping[str, float]
    formats: Formats
    values: dict[str, TensorSpec] = field(init=False)
    _offset_views: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        self.values = dict(self.graph.values)
        # Once: a net unrolled over hundreds of time steps has a thousand nodes, each of which asks.
        self._offset_views = offset_views(self.graph)

    def write(self, node: Node) -> ExternCode:
        """The text of one node.

        Raises:
            CannotWrite: The space has no means for it.
        """
        means = self._means(node)
        if means == "aten":
            return self._aten(node)
        code = self._product(node, means)
        code.tunables = [*self._kernel_tunable(node, means), *code.tunables]
        return code

    def is_aten(self, node: Node) -> bool:
        """True when the node's results come from a library, in a layout that is the library's to choose."""
        return self._means(node) == "aten" and node.base not in PLAIN

    def is_own(self, node: Node) -> bool:
        """True for a heavy node whose kernels or library calls index memory by the layouts stated here."""
        return node.base in HEAVY and self._means(node) != "aten"

    def _means(self, node: Node) -> str:
        space = self.recipe.space
        if node.base in PLAIN:
            return "aten"
        if node.base not in HEAVY:
            if space != "cuda_libs_torch":
                raise CannotWrite(f"{node.op} has no own kernel, and {space} does not allow the ATen operator")
            return "aten"
        values = self._admissible(node)
        chosen = str(self.recipe.choices.get(f"{self.names(node.out)}.means", values[0]))
        return chosen if chosen in values else values[0]

    def _admissible(self, node: Node) -> tuple[str, ...]:
        """Means for a heavy node, the default first: what the space was opened for."""
        own = ("own",) if self._has_own(node) else ()
        fast = ("tensor_cores",) if own and tensor_cores.serves(self._as_product(node), self.device) else ()
        library = ()
        if node.base in matmul.MATMULS and self._has_own(node) and cublas.serves(
            matmul.parse(node, self.layouts), self._dtype(node)
        ):
            library = ("cublas",)
        # Before own kernels on Tensor Cores, which take TF32: half of half's rate.
        split = ("halves",) if self.recipe.space != "cuda" and self._takes_halves(node) else ()
        if self.recipe.space == "cuda_libs_torch":
            return ("aten", *split, *fast, *library, *own)
        if self.recipe.space == "cuda_libs":
            if library:
                return (*library, *split, *fast, *own)
            return (*own, *split, *fast) or self._refuse(node)
        return (*own, *fast) or self._refuse(node)

    def _takes_halves(self, node: Node) -> bool:
        """True where halves pay, and wherever the recipe asks for them: a reduced twin of a large product is small."""
        if node.base not in matmul.MATMULS or not self._has_own(node):
            return False
        problem = matmul.parse(node, self.layouts)
        wanted = self.recipe.choices.get(f"{self.names(node.out)}.means") == "halves"
        return halves.serves(problem, self._dtype(node), self.device, self.flags) and (wanted or halves.pays(problem))

    def _refuse(self, node: Node) -> tuple[str, ...]:
        raise CannotWrite(f"{node.op} on {self._dtype(node)} has no kernel in {self.recipe.space}")

    def _has_own(self, node: Node) -> bool:
        if self._dtype(node) not in SUM_TYPE:
            return False
        try:
            product = self._as_product(node)
        except CannotWrite:
            return False
        # Kernels count in 32 bits, up to the end of the last tile.
        return max(product.batch, product.m, product.n, product.k) < 2**31 - 1024

    def _dtype(self, node: Node) -> str:
        return self.layouts[node.out].dtype

    def _kernel_tunable(self, node: Node, means: str) -> list[Tunable]:
        values = self._admissible(node)
        if len(values) == 1:
            return []
        default = values[0]
        return [Tunable(
            key=f"{self.names(node.out)}.means", direction="T", values=(default, *values[1:]),
            weight=self.weights.get(node.name, 0.0),
            meaning=f"who computes {self.names(node.out)} ({node.base}): an ATen call, cuBLAS, cuBLAS on halves "
                    "of fp32 factors, or an own kernel, without or with Tensor Cores",
        )] if means else []

    def _aten(self, node: Node) -> ExternCode:
        code = ExternCode()
        called = self._converted(node, code) if self.formats.converts(node) else node
        choice = self._algorithms(node)
        measures = choice is not None and self.recipe.choices.get(choice.key) == "measured"
        code.tunables += [choice] if choice is not None else []
        writer = CallWriter(
            node=called, names=self.names, values=self.values, options=self.options,
            measures=Measures(tf32=bool(self.flags.get("cudnn.allow_tf32", True))) if measures else None)
        code.host_code += writer.lines()
        if node.base not in PLAIN:
            code.torch_calls.append(node.base)
        if node.base in HEAVY:
            code.tunables += self._kernel_tunable(node, "aten")
        return code

    def _algorithms(self, node: Node) -> Tunable | None:
        """Who chooses the algorithm of the library's convolutions, where torch's flags leave it to a heuristic."""
        settled = self.flags.get("cudnn.benchmark", False) or self.flags.get("cudnn.deterministic", False)
        if node.base not in convolution.CONVOLUTIONS or settled or self._dtype(node) not in SUM_TYPE:
            return None
        return Tunable(
            key="algorithms", direction="T", values=("heuristic", "measured"), weight=1.0,
            meaning="algorithm of each convolution: by cuDNN's heuristic, or the fastest of those that the first call "
                    "measures")

    def twin_to_make(self, node: Node) -> tuple[str, str] | None:
        """The input of a channels-last convolution, and the name of its copy in that order, where none is there yet."""
        value = node.args.get("input")
        if self._means(node) != "aten" or not self.formats.converts(node) or not isinstance(value, Ref):
            return None
        twin = self.formats.twin(value.name)
        return None if self.layouts[value.name].is_channels_last or twin in self.values else (value.name, twin)

    def _converted(self, node: Node, code: ExternCode) -> Node:
        """The convolution with its input and weight in channels-last order, converted once where they are not."""
        for argument in ("input", "weight"):
            value = node.args[argument]
            assert isinstance(value, Ref)
            twin = self.formats.twin(value.name)
            if argument == "input" and self.twin_to_make(node):
                self.values[twin] = self.values[value.name]
                order = memory_format(self.values[value.name])
                code.host_code.append(
                    f"at::Tensor {self.names(twin)} = {self.names(value.name)}.contiguous({order});")
            if twin in self.values:
                node = dataclasses.replace(node, args={**node.args, argument: Ref(twin)})
        return node

    def _product(self, node: Node, means: str) -> ExternCode:
        out = node.out
        dtype, name = self._dtype(node), self.names(out)
        if means == "cublas":
            expressions = {value: self.names(value) for value in (*node.refs(), out)}
            problem = matmul.parse(node, self.layouts)
            code = cublas.write(problem, dtype=dtype, expressions=expressions, flags=self.flags)
        elif means == "halves":
            expressions = {value: self.names(value) for value in (*node.refs(), out)}
            problem = matmul.parse(node, self.layouts)
            code = halves.write(
                problem, name=name, choices=self.recipe.choices, expressions=expressions, options=self.options,
                aligned=(self._aligned(problem.a), self._aligned(problem.b)), weight=self.weights.get(node.name, 0.0))
        else:
            product = self._as_product(node, self.names.fresh(f"{name}_product"), self.names)
            if means == "tensor_cores":
                flag = ("cuda.matmul.allow_tf32", False) if node.base in matmul.MATMULS else ("cudnn.allow_tf32", True)
                code = tensor_cores.write(product, choices=self.recipe.choices, device=self.device,
                                          options=self.options, tf32=bool(self.flags.get(*flag)))
            else:
                code = write_product(product, choices=self.recipe.choices, device=self.device, options=self.options)
        code.host_code.insert(0, f"at::Tensor {name} = {allocation(self.layouts[out], self.options)};")
        return code

    def _as_product(self, node: Node, name: str = "", expression: Callable[[str], str] = str) -> Product:
        """The node's product for own kernels.

        Args:
            node: A heavy node.
            name: Of the product's description.
            expression: From a value's name to the at::Tensor expression for it.

        Raises:
            CannotWrite: It has none.
        """
        dtype, weight = self._dtype(node), self.weights.get(node.name, 0.0)
        expressions = {value: expression(value) for value in (*node.refs(), node.out)}
        if node.base in matmul.MATMULS:
            problem = matmul.parse(node, self.layouts)
            return matmul.as_product(
                problem, name=name, dtype=dtype, expressions=expressions, source=node.base, weight=weight,
                aligned=(self._aligned(problem.a), self._aligned(problem.b)),
            )
        conv = convolution.parse(node, self.layouts)
        return convolution.as_product(
            conv, name=name, dtype=dtype, expressions=expressions, source=node.base, weight=weight,
            aligned=self._aligned(conv.weight),
        )

    def _aligned(self, value: str) -> bool:
        return value not in self._offset_views


def allocation(spec: TensorSpec, options: str) -> str:
    """C++ that allocates a tensor of a layout."""
    options = f"{options}.dtype({cpp.scalar_type(spec.dtype)})"
    if spec.is_contiguous:
        return f"at::empty({cpp.sizes(spec.shape)}, {options})"
    return f"at::empty_strided({cpp.sizes(spec.shape)}, {cpp.sizes(spec.stride)}, {options})"


def work_shares(graph: Graph) -> dict[str, float]:
    """Every heavy node's share of the heavy nodes' floating-point work."""
    work = {node.name: _flops(node, graph.values) for node in graph.nodes if node.base in HEAVY}
    total = sum(work.values()) or 1
    return {name: flops / total for name, flops in work.items()}


def _flops(node: Node, layouts: Mapping[str, TensorSpec]) -> int:
    try:
        if node.base in matmul.MATMULS:
            return matmul.parse(node, layouts).flops
        return convolution.flops(convolution.parse(node, layouts))
    except CannotWrite:
        return 0
