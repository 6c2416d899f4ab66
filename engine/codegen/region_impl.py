"""A region: lowered values, the kernels they need, and the glue between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from contracts.graph import Graph, Node
from contracts.tensors import TensorSpec
from engine.codegen.kernel_text import Kernel
from engine.codegen.lower import Lowering
from engine.codegen.pointwise import write_pointwise
from engine.codegen.prims import Cut, Load, NotFusibleError, Prim, Reduce, Scan, walk
from engine.codegen.program_ir import build_nest, rewrite
from engine.codegen.regions import Choices, KernelText, RegionCode, Temporary
from engine.codegen.rows import dry_run, write_rows
from engine.codegen.scans import check_scan, write_scan
from engine.codegen.streams import stream_of
from engine.records import Device

Outputs = list[tuple[str, Prim]]


@dataclass(frozen=True, kw_only=True)
class FusedRegion:
    """Nodes computed by own kernels; see `regions.Region`."""

    name: str
    kind: str
    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    graph: Graph

    def values(self) -> Outputs:
        """The outputs as primitive values."""
        return lowered(self.graph, self.nodes, self.outputs)

    def output_specs(self, layouts: Mapping[str, TensorSpec]) -> Mapping[str, TensorSpec]:
        """Layouts for the outputs: those asked for, else channels-last where the largest input is, else as in eager."""
        found: dict[str, TensorSpec] = {}
        for value in self.outputs:
            spec = self.graph.values[value]
            if value in layouts:
                found[value] = layouts[value]
                continue
            leader = max((layouts[i] for i in self.inputs if i in layouts and layouts[i].shape == spec.shape),
                         key=lambda s: s.size_bytes, default=None)
            original = next((self.graph.values[i] for i in self.inputs
                             if i in layouts and layouts[i] is leader), None)
            if leader is not None and original is not None and leader != original and dense(leader):
                spec = TensorSpec(dtype=spec.dtype, shape=spec.shape, stride=leader.stride)
            elif not dense(spec):
                spec = TensorSpec.contiguous(spec.dtype, spec.shape)
            found[value] = spec
        return found

    def emit(
        self,
        names: Mapping[str, str],
        *,
        layouts: Mapping[str, TensorSpec],
        choices: Choices,
        device: Device,
    ) -> RegionCode:
        """Write the kernels; see `regions.Region.emit`."""
        needed = {v: layouts[v] for v in (*self.inputs, *self.outputs)}
        kernels: list[Kernel] = []
        for step in steps(self.name, self.values()):
            needed |= step.stored
            local = {**names, **{name: name for name in step.stored}}
            kernels += write_kernels(step, self, needed, local, choices, device)
            kernels[-1] = replace(kernels[-1], temporaries=(*kernels[-1].temporaries, *step.temporaries))
        return RegionCode(
            kernels=tuple(KernelText(name=k.name, text=k.text, identifiers=k.identifiers) for k in kernels),
            helpers=frozenset().union(*(k.helpers for k in kernels)),
            host_code=tuple(line for k in kernels for line in k.host),
            temporaries=tuple(t for k in kernels for t in k.temporaries),
            tunables=tuple({t.key: t for k in kernels for t in k.tunables}.values()),
            notes=tuple(n for k in kernels for n in k.notes),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Values that one kernel family computes together; earlier steps' temporaries are loads."""

    name: str
    outputs: Outputs
    temporaries: tuple[Temporary, ...] = ()
    stored: Mapping[str, TensorSpec]  # Layouts of the temporaries read or written.


def lowered(graph: Graph, nodes: Sequence[Node], outputs: Sequence[str]) -> Outputs:
    """Primitive values of `outputs`, computed inside `nodes`."""
    lowering = Lowering(graph, frozenset(node.name for node in nodes))
    return [(value, lowering.prim(value)) for value in outputs]


def steps(name: str, outputs: Outputs) -> list[Step]:
    """Split at `Cut` values: each is written to a temporary before what needs it."""
    found: list[Step] = []
    stored: dict[str, TensorSpec] = {}
    while True:
        cuts = [p for p in walk([p for _, p in outputs]) if isinstance(p, Cut)]
        ready = [c for c in cuts if not any(isinstance(p, Cut) for p in walk([c.source]))]
        if not ready:
            break
        cut = ready[0]
        temporary = f"{name}_{cut.name}_{len(found)}"
        dtype = cut.source.dtype
        stored[temporary] = TensorSpec.contiguous(dtype, cut.source.shape)
        found.append(Step(name=f"{name}_part{len(found)}", outputs=[(temporary, cut.source)],
                          temporaries=(Temporary(name=temporary, dtype=dtype, numel=cut.source.numel),),
                          stored=dict(stored)))
        load = Load(name=cut.name, dtype=dtype, shape=cut.source.shape, value=temporary)
        target = cut

        def change(prim: Prim, target: Prim = target, load: Load = load) -> Prim | None:
            return load if prim is target or (isinstance(prim, Cut) and prim.source is target.source) else None  # type: ignore[attr-defined]

        outputs = rewrite(outputs, change)
    found.append(Step(name=name, outputs=outputs, stored=stored))
    return found


def family(outputs: Outputs) -> str:
    """The kernel family of some outputs."""
    prims = walk([p for _, p in outputs])
    if any(isinstance(p, Scan) for p in prims):
        return "scans"
    if any(isinstance(p, Reduce) for p in prims):
        return "rows"
    return "pointwise"


def check_fusible(name: str, outputs: Outputs) -> str:
    """The kernel family that can compute `outputs`.

    Raises:
        NotFusibleError: None can.
    """
    kind = ""
    for step in steps(name, outputs):
        kind = family(step.outputs)
        if kind == "scans":
            check_scan(step.outputs, plain_layouts(step.outputs) | step.stored)
            continue
        nest = build_nest(step.outputs)
        stream = stream_of(nest, plain_layouts(step.outputs) | step.stored)
        if stream is None or stream.steps == 1:  # Windows over windows are written in no other way.
            dry_run(nest, plain_layouts(step.outputs))
    return kind


def plain_layouts(outputs: Outputs) -> dict[str, TensorSpec]:
    """Contiguous layouts of all that is loaded and stored, for trials before real ones are known."""
    specs = {p.value: TensorSpec.contiguous(p.dtype, p.shape) for p in walk([p for _, p in outputs])
             if isinstance(p, Load)}
    return specs | {value: TensorSpec.contiguous(p.dtype, p.shape) for value, p in outputs}


def write_kernels(
    step: Step,
    region: FusedRegion,
    layouts: Mapping[str, TensorSpec],
    names: Mapping[str, str],
    choices: Choices,
    device: Device,
) -> list[Kernel]:
    """The kernels of one step."""
    title = describe(region)
    kind = family(step.outputs)
    if any(prim.numel == 0 for _, prim in step.outputs):
        return [Kernel(name=step.name, text=f"// {step.name}: nothing to compute, the result is empty.",
                       helpers=frozenset(), host=())]
    if kind == "scans":
        return write_scan(step.name, title, step.outputs, layouts=layouts, names=names, choices=choices, device=device)
    if kind == "rows":
        return write_rows(step.name, title, step.outputs, layouts=layouts, names=names, choices=choices, device=device)

    return [write_pointwise(step.name, title, step.outputs, layouts=layouts, names=names, choices=choices,
                            device=device)]


def describe(region: FusedRegion) -> list[str]:
    """Header lines: the operators fused, in order, and where they come from."""
    chain = " -> ".join(node.base for node in region.nodes)
    lines = [chain] if len(chain) <= 100 else [chain[:97] + "..."]
    modules = list(dict.fromkeys(node.module for node in region.nodes if node.module))
    if modules:
        lines.append("of " + ", ".join(modules[:6]) + (" ..." if len(modules) > 6 else ""))
    return lines


def dense(spec: TensorSpec) -> bool:
    """True when the elements fill their storage without gaps or repeats."""
    dims = sorted((s, n) for n, s in zip(spec.shape, spec.stride, strict=True) if n != 1)
    step = 1
    for stride, size in dims:
        if stride != step:
            return False
        step *= size
    return True


def used_inputs(outputs: Outputs) -> tuple[str, ...]:
    """Names of the values that `outputs` load, in order."""
    found: dict[str, None] = {}
    for prim in walk([p for _, p in outputs]):
        if isinstance(prim, Load):
            found[prim.value] = None
    return tuple(found)


__all__ = ["FusedRegion", "NotFusibleError", "check_fusible", "lowered", "plain_layouts", "used_inputs"]
