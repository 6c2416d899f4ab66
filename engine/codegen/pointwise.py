"""Element-wise kernels: one output position a lane, neighbouring positions in packs of 16 bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from contracts.tensors import TensorSpec
from engine.codegen import Tunable
from engine.codegen.index import Index, variable
from engine.codegen.kernel_text import Kernel, header, index_type, launch, signature
from engine.codegen.naming import Namer
from engine.codegen.prims import NotFusibleError, Prim, Window, walk
from engine.codegen.program_ir import Nest, build_nest, merge_loops
from engine.codegen.regions import Choices
from engine.codegen.streams import is_large, plan_stream, stream_of, stream_tunables
from engine.codegen.streams_kernel import write_stream
from engine.codegen.strips import strip_of, write_strip
from engine.codegen.transposes import crossing, write_transpose
from engine.codegen.writer import Lanes, Usage, Writer
from engine.records import Device


@dataclass(frozen=True, slots=True, kw_only=True)
class PointwisePlan:
    """How an element-wise kernel runs.

    Attributes:
        width: Elements a lane handles side by side.
        threads: Threads a block.
        packs: Packs a thread handles one after the other.
    """

    width: int
    threads: int
    packs: int


def write_pointwise(
    name: str,
    title: Sequence[str],
    outputs: Sequence[tuple[str, Prim]],
    *,
    layouts: Mapping[str, TensorSpec],
    names: Mapping[str, str],
    choices: Choices,
    device: Device,
    key: str = "",
) -> Kernel:
    """Write the kernel that computes `outputs`.

    Raises:
        NotFusibleError: They do not share one iteration space.
    """
    nest = order_rows(build_nest(outputs), layouts)
    key = key or name
    stream = stream_of(nest, layouts)
    either: tuple[Tunable, ...] = ()
    if stream is not None:
        first = is_large(stream)
        if stream.steps == 1:
            either = (Tunable(key=f"{key}.stream", direction="R", values=(first, not first),
                              meaning="blocks that walk down the grid and read each row once"),)
        if not either or choices.get(either[0].key, first):
            planes = prod(size for _, size in nest.rows) // (stream.height * stream.width)
            return write_stream(name, title, nest, stream, plan_stream(key, stream, planes, choices, device),
                                layouts=layouts, names=names, tunables=(*either, *stream_tunables(key, stream)))
    _refuse_nested_windows(nest)
    usage = usage_of(nest, layouts)
    loops, values = merge_loops(nest.rows, lambda trial: _indices(usage, trial))
    nest = nest.substitute(values, loops, ())
    tunables = (*either, *_tunables(key, nest, layouts, usage))
    across, loads = crossing(nest, layouts, usage_of(nest, layouts))
    if across:
        depth = Tunable(key=f"{key}.depth", direction="P", values=(8, 4, 16), meaning="warps that share a tile")
        tiled = Tunable(key=f"{key}.tiled", direction="M", values=(True, False),
                        meaning="a tile in shared memory between tensors of different fastest dimensions")
        tunables = (tiled, depth, *tunables)
        if choices.get(tiled.key, True):
            warps = choices.get(depth.key, 8)
            return write_transpose(name, title, nest, across, layouts=layouts, names=names, tunables=tunables,
                                   loads=loads, depth=int(warps if warps in depth.values else 8))
    strip = strip_of(nest)
    if strip is not None and len(strip.sizes()) > 1:
        size = Tunable(key=f"{key}.strip", direction="R", values=strip.sizes(),
                       meaning="outputs below each other that a lane computes from rows it reads once")
        tunables = (size, *tunables)
        chosen = choices.get(size.key, 1)
        if chosen in size.values and int(chosen) > 1:
            plan = _plan(tunables, choices, key)
            return write_strip(name, title, nest, strip, int(chosen), layouts=layouts, names=names,
                               threads=plan.threads, tunables=tunables)
    plan = _plan(tunables, choices, key)
    return _write(name, title, nest, plan, layouts, names, tunables)


def _refuse_nested_windows(nest: Nest) -> None:
    """Windows over windows are for streams: here the lower ones would be folded anew for each tap."""
    for window in walk([store.prim for store in nest.stores]):
        if isinstance(window, Window) and prod(window.kernel) > prod(window.stride) and any(
            isinstance(below, Window) for below in walk([window.source])
        ):
            raise NotFusibleError(f"{window.name} would fold other windows {prod(window.kernel)} times")


def order_rows(nest: Nest, layouts: Mapping[str, TensorSpec]) -> Nest:
    """Loops in the order of memory of the largest output, so that neighbouring lanes store neighbours."""
    store = max(nest.stores, key=lambda s: s.prim.numel)
    spec = layouts[store.value]
    total = Index()
    for index, stride in zip(store.index, spec.stride, strict=True):
        total = total + index * stride
    rows = sorted(nest.rows, key=lambda loop: -abs(total.coefficient(loop[0])) if total.coefficient(loop[0]) else 0)
    plain = all(total.coefficient(name) for name, size in nest.rows if size > 1)
    return nest.substitute({}, rows if plain else nest.rows, nest.inner)


def usage_of(nest: Nest, layouts: Mapping[str, TensorSpec]) -> Usage:
    """What the nest loads, stores and computes."""
    writer = Writer(layouts, Namer(), Lanes(width=1))
    writer.open(frozenset(name for name, _ in nest.rows))
    for store in nest.stores:
        writer.store(store.value, store.prim.dtype, store.index, writer.value(store.prim, store.index))
    return writer.usage


def _indices(usage: Usage, values: Mapping[str, Index]) -> list[Index]:
    return [i.substitute(values) for _, i, _ in usage.accesses] + [i.substitute(values) for i in usage.indices]


def _tunables(key: str, nest: Nest, layouts: Mapping[str, TensorSpec], usage: Usage) -> tuple[Tunable, ...]:
    widest = vector_width(nest.rows, layouts, usage)
    # Lanes that read windows overlap; one output a lane keeps each tap's loads next to each other.
    default = 1 if usage.windows else widest
    widths = [default] + [w for w in (16, 8, 4, 2, 1) if w <= widest and w != default]
    return (
        Tunable(key=f"{key}.width", direction="M", values=tuple(widths),
                meaning="neighbouring elements a lane loads and stores at once; 16 bytes are the widest access"),
        Tunable(key=f"{key}.threads", direction="P", values=(256, 128, 512, 1024), meaning="threads a block"),
        Tunable(key=f"{key}.packs", direction="R", values=(1, 2, 4, 8),
                meaning="packs a thread handles; more loads are in flight, fewer threads"),
    )


def vector_width(loops: Sequence[tuple[str, int]], layouts: Mapping[str, TensorSpec], usage: Usage) -> int:
    """Elements of 16 bytes of the smallest dtype touched, as far as the innermost loop divides by it."""
    if not loops:
        return 1
    smallest = min((layouts[value].item_bytes for value, _, _ in usage.accesses), default=4)
    largest = max((layouts[value].item_bytes for value, _, _ in usage.accesses), default=4)
    width = min(16 // smallest, 32 // largest, 8)
    while width > 1 and loops[-1][1] % width:
        width //= 2
    return max(width, 1)


def _plan(tunables: tuple[Tunable, ...], choices: Choices, key: str) -> PointwisePlan:
    chosen = {t.key.removeprefix(key + "."): choices.get(t.key, t.values[0]) for t in tunables}
    allowed = {t.key.removeprefix(key + "."): t.values for t in tunables}
    picked = {k: v if v in allowed[k] else allowed[k][0] for k, v in chosen.items()}
    return PointwisePlan(width=int(picked["width"]), threads=int(picked["threads"]), packs=int(picked["packs"]))


def _write(
    name: str,
    title: Sequence[str],
    nest: Nest,
    plan: PointwisePlan,
    layouts: Mapping[str, TensorSpec],
    names: Mapping[str, str],
    tunables: tuple[Tunable, ...],
) -> Kernel:
    lanes = Lanes(width=plan.width)
    loops = list(nest.rows)
    coordinates: dict[str, Index] = {}
    if loops:
        inner, size = loops[-1]
        if plan.width > 1:
            coordinates[inner] = variable(f"{inner}p", size // plan.width) * plan.width + variable("k", plan.width)
            loops[-1] = (f"{inner}p", size // plan.width)
    renamed, declared = _readable(loops)
    plain = {old: variable(old, size) for old, size in loops}
    coordinates = {old: index.substitute(renamed) for old, index in {**plain, **coordinates}.items()}
    nest = nest.substitute(coordinates, (), ())
    count = prod(size for _, size in loops)
    writer = Writer(layouts, Namer(), lanes)
    for store in nest.stores:
        writer.namer.pointer(store.value)
    wide = index_type(count, nest, layouts)
    writer.open(frozenset(name for name, _ in declared))
    body: list[str] = []
    before: list[str] = []
    after: list[str] = []
    if plan.width > 1:
        writer.open(frozenset({"k"}))
    for store in nest.stores:
        pack = writer.store(store.value, store.prim.dtype, store.index, writer.value(store.prim, store.index))
        if pack:
            before.append(pack[0])
            after.append(pack[1])
    if plan.width > 1:
        inside = writer.close()
        outside = writer.close()
        body = [*outside, *before, "#pragma unroll", f"for (int k = 0; k < {plan.width}; ++k) {{",
                *("    " + line for line in inside), "}", *after]
    else:
        body = writer.close()
    constant = writer.close()
    per_block = plan.threads * plan.packs
    lines = [*constant]
    flat = declared[-1][0] if len(declared) == 1 else "flat"
    decode = _decode(declared, flat, wide)
    first = f"{wide} const {flat} = {wide}(blockIdx.x) * {plan.threads} + threadIdx.x;"
    if plan.packs > 1:
        step = f"{wide}(blockIdx.x) * {per_block} + item * {plan.threads} + threadIdx.x"
        lines += ["#pragma unroll", f"for (int item = 0; item < {plan.packs}; ++item) {{",
                  f"    {wide} const {flat} = {step};",
                  *([f"    if ({flat} < {count}) {{"] if count % per_block else ["    {"]),
                  *("        " + line for line in [*decode, *body]), "    }", "}"]
    else:
        lines.append(first)
        if count % per_block:
            lines += [f"if ({flat} >= {count}) {{", "    return;", "}"]
        lines += [*decode, *body]
    usage = writer.usage
    text = "\n".join([
        *header(name, title, layouts, usage, launch=f"grid {-(-count // per_block)}, block {plan.threads}",
                tunables={"width": plan.width, "threads": plan.threads, "packs": plan.packs}),
        f"__global__ void __launch_bounds__({plan.threads})",
        signature(name, usage, writer.namer, layouts),
        *("    " + line if not line.startswith("#") else line for line in lines),
        "}",
    ])
    call = launch(name, -(-count // per_block), plan.threads, usage, layouts, names)
    return Kernel(name=name, text=text, helpers=frozenset(usage.helpers), identifiers=writer.namer.given,
                  host=tuple(call), tunables=tunables)


def _readable(loops: Sequence[tuple[str, int]]) -> tuple[dict[str, Index], list[tuple[str, int]]]:
    """Short names for what is left of the loops: `i`, or `outer` ... by position."""
    names = ["i"] if len(loops) == 1 else [f"i{position}" for position in range(len(loops))]
    renamed = {old: variable(new, size) for (old, size), new in zip(loops, names, strict=True)}
    return renamed, [(new, size) for (_, size), new in zip(loops, names, strict=True)]


def _decode(loops: Sequence[tuple[str, int]], flat: str, wide: str) -> list[str]:
    if len(loops) <= 1:
        return []
    lines = []
    for position, (name, size) in enumerate(loops):
        below = prod(s for _, s in loops[position + 1 :])
        text = f"{flat} / {below}" if below > 1 else flat
        if position > 0:
            text += f" % {size}"
        lines.append(f"{wide} const {name} = {text};")
    return lines
