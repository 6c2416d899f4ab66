"""One variant of a contract as one C++ function: regions and calls in order, results, updates."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from contracts.contract import Contract, Variant
from contracts.cuda_adaptor import returns_of
from contracts.graph import Graph, Node, Ref
from contracts.tensors import TensorSpec
from engine.codegen import CannotWrite, Recipe, Tunable, cpp
from engine.codegen.aliasing import alias_roots, offset_views
from engine.codegen.aten_calls import is_random
from engine.codegen.externs import PLAIN, ExternWriter, allocation, work_shares
from engine.codegen.format_copies import write_format_copy
from engine.codegen.helpers_cluster import CLUSTER_SNIPPETS
from engine.codegen.layout import Formats, with_channels_last
from engine.codegen.prepare import fuses, prepare, program_tunables
from engine.codegen.prims import NotFusibleError
from engine.codegen.regions import KernelText, Region, RegionCode, extern_nodes
from engine.codegen.same_kernels import SameKernels, launched_as, shared_product
from engine.codegen.simplify import simplify
from engine.codegen.text import HOST_HELPERS, wrapped
from engine.codegen.updates import Counters, find_counters, update_lines
from engine.records import Device

# Below this sum of intermediate results, freeing them early is not worth the lines.
RELEASE_FROM_BYTES = 1 << 28

# So many allocations of one dtype share the description of what to allocate.
MANY_ALLOCATIONS = 4

# The host compiler's time grows with the square of a function's length.
LONG_FUNCTION = 400
UNOPTIMISED = (
    "// This only calls: optimising a function of its length would take the compiler minutes and gain nothing.",
    '__attribute__((optimize("O0")))',
)


@dataclass(slots=True, kw_only=True)
class VariantText:
    """What one variant adds to the source.

    Attributes:
        text: Kernels and the variant's function, for file scope.
        helpers: Names for `helpers.helper_text`.
        library_text: Whole helper functions to paste once a file, such as a cuBLAS handle.
        templates: Names of shared kernel templates.
        tunables: Choices that could have been made otherwise.
        kernels: Own kernels in launch order.
        library_calls: Library functions called.
        torch_calls: ATen operators called.
        notes: Sentences about what was done.
    """

    text: str = ""
    helpers: set[str] = field(default_factory=set)
    library_text: list[str] = field(default_factory=list)
    templates: list[str] = field(default_factory=list)
    tunables: list[Tunable] = field(default_factory=list)
    kernels: list[str] = field(default_factory=list)
    library_calls: list[str] = field(default_factory=list)
    torch_calls: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def write_variant(contract: Contract, variant: Variant, recipe: Recipe, device: Device) -> VariantText:
    """Write the function that serves one variant.

    Raises:
        CannotWrite: The recipe's space cannot express an operator.
    """
    assert variant.graph is not None
    simple = simplify(variant.graph)
    counters = find_counters(simple)
    simple = counters.removed_from(simple)
    left: set[str] = set()
    while True:
        graph, regions = prepare(simple, recipe, device, left)
        writer = _VariantWriter(contract, variant, graph, regions, counters, recipe, device, left)
        result = writer.write()
        if not writer.failed:
            return result
        # What could not be written as a region becomes calls; the rest is planned again around it.
        left = left | writer.failed


class _VariantWriter:
    def __init__(
        self, contract: Contract, variant: Variant, graph: Graph, regions: Sequence[Region], counters: Counters,
        recipe: Recipe, device: Device, left_to_calls: set[str],
    ) -> None:
        self.left_to_calls = left_to_calls
        self.failed: set[str] = set()
        self.contract, self.variant = contract, variant
        self.counters, self.graph, self.regions = counters, graph, regions
        self.recipe, self.device = recipe, device
        self.result = VariantText()
        self.tensors = contract.tensor_arguments
        self.names = cpp.Names(HOST_HELPERS.keys() | CLUSTER_SNIPPETS.keys())
        for value, argument in zip(graph.inputs, self.tensors, strict=True):
            self.names.reserve(value, self.names.fresh(argument.name))
        self.layouts: dict[str, TensorSpec] = dict(graph.values)
        self.device_code: list[str] = []
        self.lines: list[str] = []
        self.same_kernels = SameKernels()
        self.read_by_kernels = {name for region in self.regions for name in region.inputs}
        self.made_by_kernels = {name for region in self.regions for name in region.outputs}
        self.unaligned = self.read_by_kernels & offset_views(graph)
        self.formats = Formats(graph, recipe, contract.flags)
        self.result.tunables += [*self.formats.tunables(), *program_tunables(graph, recipe)]
        self.externs = ExternWriter(
            graph=graph, recipe=recipe, device=device, names=self.names, layouts=self.layouts,
            options=self._options(), flags=contract.flags, weights=work_shares(graph), formats=self.formats,
        )
        for node in self.graph.nodes:
            if self.externs.is_own(node):
                self.read_by_kernels.update(node.refs())
        self._update_statistics_in_place()

    def write(self) -> VariantText:
        """Everything, in order."""
        self._pack_weights()
        steps = list(self._ordered())
        last_use = self._last_uses(steps)
        for index, step in enumerate(steps):
            self._write_step(step)
            if last_use:
                self._release(index, step, last_use)
        self._write_results()
        parameters = ", ".join(
            f"{'torch::Tensor&' if a.mutable else 'const torch::Tensor&'} {self.names(value)}"
            for value, a in zip(self.graph.inputs, self.tensors, strict=True)
        )
        result_type = returns_of(len(self.contract.outputs))
        shared = self._share_options()
        stream = (
            ["const cudaStream_t stream = at::cuda::getCurrentCUDAStream();"] if self._uses_stream() else []
        )
        function = [
            *(UNOPTIMISED if len(self.lines) > LONG_FUNCTION else ()),
            f"static {result_type} {self.contract.name}_variant({parameters}) {{",
            *(f"  {line}" if line else "" for line in [*stream, *shared, *self.lines]), "}", "",
        ]
        function = [piece for line in function for piece in wrapped(line)]
        self.result.text = "\n".join([*self.device_code, "\n".join(function)])
        return self.result

    # Order

    def _ordered(self) -> Iterator[Region | Node]:
        """Regions and extern nodes, every value before its use, random calls in the graph's order."""
        ready = set(self.graph.inputs)
        position = {node.name: index for index, node in enumerate(self.graph.nodes)}
        extern = {node.name: node for node in extern_nodes(self.graph, self.regions)}
        extern.update({node.name: node for node in self.graph.nodes if is_random(node)})
        waiting: list[Region | Node] = [*extern.values(), *self.regions]
        waiting.sort(
            key=lambda item: position[item.name] if isinstance(item, Node) else position[item.nodes[-1].name]
        )
        while waiting:
            random_waits = False
            for index, item in enumerate(waiting):
                random = isinstance(item, Node) and is_random(item)
                needs = set(item.refs()) if isinstance(item, Node) else set(item.inputs)
                if needs <= ready and not (random and random_waits):
                    ready.update(name for name in item.outputs if name is not None)
                    yield waiting.pop(index)
                    break
                random_waits = random_waits or random
            else:
                raise AssertionError("regions wait for each other: " + ", ".join(item.name for item in waiting))

    # Steps

    def _write_step(self, step: Region | Node) -> None:
        if isinstance(step, Node):
            self._write_extern(step)
        else:
            self._write_region(step)

    def _write_region(self, region: Region) -> None:
        for name in region.outputs:
            if name in self.formats.wanted:
                self.layouts[name] = with_channels_last(self.layouts[name])
        self._pin_output_layouts(region.outputs)
        specs = region.output_specs({**self._known(region.inputs), **self._pinned(region.outputs)})
        for name in region.outputs:
            self.layouts[name] = specs[name]
            self.lines.append(f"at::Tensor {self.names(name)} = {allocation(specs[name], self._options())};")
        layouts = {name: self.layouts[name] for name in (*region.inputs, *region.outputs)}
        names = {name: self.names(name) for name in layouts}
        for name in self.formats.read_in_windows(region, self.layouts) if fuses(self.recipe) else ():
            twin = self.formats.twin(name)
            if twin not in self.layouts:
                self._write_copy(name, twin, with_channels_last(self.layouts[name]))
                self.externs.values[twin] = self.layouts[twin]
            layouts[name], names[name] = self.layouts[twin], self.names(twin)
        try:
            code = region.emit(names, layouts=layouts, choices=self.recipe.choices, device=self.device)
        except NotFusibleError:
            self.failed |= _culprits(region, self.left_to_calls)
            return
        for temporary in code.temporaries:
            spec = TensorSpec.contiguous(temporary.dtype, (temporary.numel,))
            self.lines.append(f"at::Tensor {temporary.name} = {allocation(spec, self._options())};")
        self._launch(code)

    def _launch(self, code: RegionCode) -> None:
        same = self.same_kernels.replaced(code.kernels)
        self.device_code += [f"{kernel.text}\n" for kernel in code.kernels if kernel.name not in same]
        self.lines += launched_as(code.host_code, same)
        if code.host_code:
            self.lines.append("C10_CUDA_KERNEL_LAUNCH_CHECK();")
        self.result.helpers |= code.helpers
        self.result.tunables += code.tunables
        self.result.kernels += [same.get(kernel.name, kernel.name) for kernel in code.kernels]
        self.result.notes += code.notes

    def _pack_weights(self) -> None:
        """All weights that convolutions read in channels-last order, in one launch."""
        pairs = []
        for name in self.formats.packed:
            twin = self.formats.twin(name)
            spec = with_channels_last(self.graph.values[name])
            self.externs.values[twin] = self.layouts[twin] = spec
            self.lines.append(f"at::Tensor {self.names(twin)} = {allocation(spec, self._options())};")
            pairs.append(f"{{{self.names(name)}, {self.names(twin)}}}")
        if pairs:
            self.lines.append(f"pack_weights({{{', '.join(pairs)}}}, stream);")
            self.result.kernels.append("pack_weights_kernel")

    def _write_copy(self, value: str, twin: str, target: TensorSpec) -> None:
        """An own kernel copies `value` into `twin`, which lies in memory as `target` says."""
        source, names = self.layouts[value], {v: self.names(v) for v in (value, twin)}
        if value not in self.made_by_kernels and value not in self.graph.inputs:
            self.lines.append(f"{names[value]} = with_strides({names[value]}, {cpp.sizes(source.stride)});")
        kernel = write_format_copy(value, twin, source, target, names=names, choices=self.recipe.choices,
                                   device=self.device)
        self.layouts[twin] = target
        self.lines.append(f"at::Tensor {names[twin]} = {allocation(target, self._options())};")
        self._launch(RegionCode(
            kernels=(KernelText(name=kernel.name, text=kernel.text, identifiers=kernel.identifiers),),
            helpers=kernel.helpers, host_code=kernel.host, tunables=kernel.tunables))

    def _write_extern(self, node: Node) -> None:
        twin = self.externs.twin_to_make(node) if fuses(self.recipe) else None
        if twin is not None:
            target = with_channels_last(self.layouts[twin[0]])
            self._write_copy(*twin, target)
            self.externs.values[twin[1]] = target
        made = [name for name in node.outputs if name is not None]
        if self.externs.is_own(node):
            self._pin_output_layouts(made)
        code = shared_product(self.externs.write(node), self.same_kernels)
        self.lines += code.host_code
        if code.device_code:
            self.device_code.append(code.device_code)
        for name in ("tunables", "kernels", "library_calls", "torch_calls", "notes", "library_text", "templates"):
            getattr(self.result, name).extend(getattr(code, name))
        if self.externs.is_own(node):
            self.made_by_kernels.update(made)
            return
        self.layouts.update({name: self.formats.result(node, name, self.layouts) for name in made})
        moved = self.externs.is_aten(node) or any(self.layouts[r] != self.graph.values[r] for r in node.refs())
        for name in made:
            if name in (self.read_by_kernels if moved else self.unaligned):
                # Kernels index by fixed strides in wide accesses; what a library returns may lie otherwise in memory.
                own, stride = self.names(name), cpp.sizes(self.layouts[name].stride)
                self.lines.append(f"{own} = with_strides({own}, {stride});")

    # Results

    def _write_results(self) -> None:
        roots = alias_roots(self.graph)
        arguments = set(self.graph.inputs)
        used_roots: set[str] = set()
        results = []
        outputs = [value for value in self.graph.outputs if isinstance(value, Ref)]
        for value, spec in zip(outputs, self.variant.outputs, strict=True):
            own, stride = self.names(value.name), cpp.sizes(spec.stride)
            root = roots.get(value.name, value.name)
            if root in arguments or root in used_roots or value.name in self.graph.mutations.values():
                results.append(f"fresh_copy({own}, {stride})")
            elif value.name in self.made_by_kernels and self.layouts[value.name].stride == spec.stride:
                results.append(own)
            elif self._crosses_formats(value.name, spec):
                twin = self.formats.twin(value.name, "result")
                self._write_copy(value.name, twin, spec)
                results.append(self.names(twin))
            else:
                results.append(f"with_strides({own}, {stride})")
            used_roots.add(root)
        updates = update_lines(self.graph, self.counters, self.names, self.layouts)
        if len(results) == 1 and not updates:
            self.lines.append(f"return {results[0]};")
            return
        kept = []
        for index, result in enumerate(results):
            if updates and "(" in result:
                # Before the arguments change: a result may be a view of their old contents.
                name = self.names.fresh(f"result_{index}" if len(results) > 1 else "result")
                self.lines.append(f"const at::Tensor {name} = {result};")
                result = name
            kept.append(result)
        self.lines += updates
        if not kept:
            return
        self.lines.append(f"return {kept[0]};" if len(kept) == 1 else f"return {{{', '.join(kept)}}};")

    def _crosses_formats(self, value: str, wanted: TensorSpec) -> bool:
        """True for a library's channels-last result that leaves contiguous, where own kernels are welcome."""
        return fuses(self.recipe) and value in self.formats.results and wanted.is_contiguous and (
            not self.layouts[value].is_contiguous)

    def _update_statistics_in_place(self) -> None:
        """Let batch norm write the argument's running statistics, where nothing else reads either version."""
        uses = Counter(name for node in self.graph.nodes for name in set(node.refs()))
        for node in self.graph.nodes:
            if node.base != "_native_batch_norm_legit_functional" or set(node.outputs) & self.made_by_kernels:
                continue
            for name, updated in zip(("running_mean", "running_var"), node.outputs[3:5], strict=False):
                old = node.args.get(name)
                if not isinstance(old, Ref) or updated is None or self.graph.mutations.get(old.name) != updated:
                    continue
                is_output = any(isinstance(v, Ref) and v.name in (updated, old.name) for v in self.graph.outputs)
                if not is_output and uses[old.name] == 1 and not uses[updated]:
                    self.names.reserve(updated, self.names(old.name))

    # Memory

    def _options(self) -> str:
        if not self.tensors:
            return "at::TensorOptions().device(at::kCUDA)"
        return f"{self.names(self.graph.inputs[0])}.options()"

    def _share_options(self) -> list[str]:
        """Names the options that many allocations take: asking a tensor for them each time is long code."""
        written = re.compile(rf"{re.escape(self._options())}\.dtype\(at::k(\w+)\)")
        counts = Counter(found[1] for line in self.lines for found in written.finditer(line))
        shared = {dtype: self.names.fresh(f"{dtype.lower()}_options")
                  for dtype, count in counts.items() if count >= MANY_ALLOCATIONS}
        self.lines = [written.sub(lambda found: shared.get(found[1], found[0]), line) for line in self.lines]
        return [f"const at::TensorOptions {name} = {self._options()}.dtype(at::k{dtype});"
                for dtype, name in shared.items()]

    def _known(self, names: Sequence[str]) -> dict[str, TensorSpec]:
        return {name: self.layouts[name] for name in names}

    def _pin_output_layouts(self, names: Sequence[str]) -> None:
        outputs = [value for value in self.graph.outputs if isinstance(value, Ref)]
        for value, spec in zip(outputs, self.variant.outputs, strict=True):
            if value.name in names:
                self.layouts[value.name] = spec

    def _pinned(self, names: Sequence[str]) -> dict[str, TensorSpec]:
        final = {value.name for value in self.graph.outputs if isinstance(value, Ref)}
        return {name: self.layouts[name] for name in names if name in final or name in self.formats.wanted}

    def _uses_stream(self) -> bool:
        return any("stream" in line for line in self.lines)

    def _last_uses(self, steps: Sequence[Region | Node]) -> dict[str, int]:
        """Value to the step after which nothing reads it or its copy; empty where all intermediate ones are small."""
        made: dict[str, int] = {}
        for index, step in enumerate(steps):
            for name in step.outputs:
                if name is not None:
                    made[name] = index
        if sum(self.graph.values[name].size_bytes for name in made if name in self.graph.values) < RELEASE_FROM_BYTES:
            return {}
        kept = {value.name for value in self.graph.outputs if isinstance(value, Ref)}
        kept |= set(self.graph.mutations.values())
        last = dict.fromkeys(self.graph.inputs, -1)  # They stay; a copy of one need not.
        last |= {name: index for name, index in made.items() if name not in kept}
        for index, step in enumerate(steps):
            for name in step.refs() if isinstance(step, Node) else step.inputs:
                if name in last:
                    last[name] = index
        return last

    def _release(self, index: int, _step: Region | Node, last_use: dict[str, int]) -> None:
        arguments = {self.names(value) for value in self.graph.inputs}
        done = [name for name, last in last_use.items() if last == index]
        twins = [self.formats.twin(name) for name in done if name not in self.formats.packed]
        freed = [own for name in done if (own := self.names(name)) not in arguments]
        freed += [self.names(twin) for twin in twins if twin in self.externs.values]
        if freed:
            self.lines.append(f"release({', '.join(freed)});")


def _culprits(region: Region, known: set[str]) -> set[str]:
    """The nodes of a region that cannot be written: its norms and reductions, or, failing that, all of it."""
    nodes = {node.name for node in region.nodes if node.base not in PLAIN}
    folding = {node.name for node in region.nodes if "norm" in node.base or "softmax" in node.base}
    if folding - known:
        return folding - known
    if not nodes - known:
        raise CannotWrite(f"{region.name} can neither be written as kernels nor as calls")
    return nodes - known
