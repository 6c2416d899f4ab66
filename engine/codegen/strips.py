"""Windows that overlap from row to row: a lane computes a strip of outputs below each other.

It reads each row of the source under the strip once and adds it to every output whose window reaches it, so a window of
7 rows is read 14 / 8 times for 8 outputs instead of 7 times each. One column of weights is in registers at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from contracts.tensors import TensorSpec
from engine.codegen import Tunable
from engine.codegen.index import Index, variable
from engine.codegen.kernel_text import Kernel, header, index_type, launch, signature
from engine.codegen.naming import Namer
from engine.codegen.prims import Window, walk
from engine.codegen.program_ir import Nest
from engine.codegen.rows_kernel import decode, indented, unrolled
from engine.codegen.scalar_types import COMPUTE_TYPE, bitwise_extreme, literal
from engine.codegen.writer import Lanes, Scalar, Writer

_MOST_STEPS = 2048  # Unrolled multiply-adds of a lane: more would not fit the instruction cache.


@dataclass(frozen=True, slots=True, kw_only=True)
class Strip:
    """The window of a nest, and the loop over its output rows.

    Attributes:
        window: The window.
        loop: Name of the loop over output rows.
        rows: Its size.
    """

    window: Window
    loop: str
    rows: int

    def sizes(self) -> tuple[int, ...]:
        """Outputs a lane could compute; 1, the plain kernel, first."""
        most = min(self.rows, _MOST_STEPS // prod(self.window.kernel))
        return (1, *(size for size in (4, 8, 2, 16) if size <= most))


def strip_of(nest: Nest) -> Strip | None:
    """Where a strip could run: one window, whose rows overlap, over a loop of its own that is not the innermost."""
    windows = [prim for prim in walk([store.prim for store in nest.stores]) if isinstance(prim, Window)]
    if len(windows) != 1 or len(nest.rows) < 2:
        return None
    (window,) = windows
    if window.kind not in ("sum", "max") or window.factors or len(window.dims) < 2 or window.dilation[-2] != 1:
        return None
    index = nest.at.get(id(window))
    if index is None or window.kernel[-2] <= window.stride[-2]:
        return None
    for name, size in nest.rows[:-1]:
        tall = [d for d, value in enumerate(index) if name in value.variables()]
        if tall == [window.dims[-2]] and index[tall[0]] == variable(name, size):
            return Strip(window=window, loop=name, rows=size)
    return None


def write_strip(
    name: str,
    title: Sequence[str],
    nest: Nest,
    strip: Strip,
    size: int,
    *,
    layouts: Mapping[str, TensorSpec],
    names: Mapping[str, str],
    threads: int,
    tunables: tuple[Tunable, ...],
) -> Kernel:
    """The kernel in which a lane computes `size` outputs of `strip`."""
    loops = [("strip", -(-strip.rows // size)) if loop == strip.loop else (f"i{position}", count)
             for position, (loop, count) in enumerate(nest.rows)]
    moved = {
        old: variable(new, count) if old != strip.loop else variable(new, count) * size + variable("r", size)
        for (old, _), (new, count) in zip(nest.rows, loops, strict=True)
    }
    nest = nest.substitute(moved, (), ())
    count = prod(n for _, n in loops)
    wide = index_type(count * size, nest, layouts)
    writer = Writer(layouts, Namer(), Lanes())
    for store in nest.stores:
        writer.namer.pointer(store.value)
    writer.open(frozenset(loop for loop, _ in loops))
    sums = writer.namer.fresh(strip.window.name)
    folding = _fold(writer, nest, strip, size, sums)
    writer.open(frozenset({"r"}), barrier=True)  # Stores may be guarded.
    writer.folded[id(strip.window)] = Scalar(f"{sums}[r]", len(writer.scopes) - 1)
    for store in nest.stores:
        writer.store(store.value, store.prim.dtype, store.index, writer.value(store.prim, store.index))
    storing = writer.close()
    if strip.rows % size:
        storing = [f"if (strip * {size} + r < {strip.rows}) {{", *indented(storing), "}"]
    inside = writer.close()
    constant = writer.close()
    guard = [f"if (flat >= {count}) {{", "    return;", "}"] if count % threads else []
    lines = [
        *constant, f"{wide} const flat = {wide}(blockIdx.x) * {threads} + threadIdx.x;", *guard,
        *decode(loops, "flat", wide), *inside, *folding,
        *unrolled("r", size, storing),
    ]
    usage = writer.usage
    grid = -(-count // threads)
    text = "\n".join([
        *header(name, title, layouts, usage, launch=f"grid {grid}, block {threads}",
                tunables={"strip": size, "threads": threads},
                idea=f"A lane computes {size} outputs below each other and reads each row under them once."),
        f"__global__ void __launch_bounds__({threads})",
        signature(name, usage, writer.namer, layouts),
        *indented(lines), "}",
    ])
    return Kernel(name=name, text=text, helpers=frozenset(usage.helpers), identifiers=writer.namer.given,
                  tunables=tunables, host=tuple(launch(name, grid, threads, usage, layouts, names)))


def _fold(writer: Writer, nest: Nest, strip: Strip, size: int, sums: str) -> list[str]:
    """Statements that fold every row of the source under the strip into `sums`."""
    window = strip.window
    ctype = COMPUTE_TYPE[window.compute]
    index = nest.at[id(window)]
    first = literal(0, ctype) if window.kind == "sum" else literal(bitwise_extreme(window.compute, largest=True), ctype)
    height, step = window.kernel[-2], window.stride[-2]
    line_count = (size - 1) * step + height
    down = writer.namer.fresh("tap_h")
    taps: list[Index] = []
    columns: list[tuple[str, int]] = []  # Taps of the other dimensions.
    beside: list[tuple[Index, int | None, int | None]] = []
    source_index = list(index)
    for position, dim in enumerate(window.dims):
        if position == len(window.dims) - 2:
            taps.append(variable(down, height))
            row = index[dim].substitute({"r": Index()}) * step + variable("line", line_count) - window.padding[position]
            source_index[dim] = row
            continue
        tap = writer.namer.fresh(f"tap_{'dhw'[position + 3 - len(window.dims)]}")
        taps.append(variable(tap, window.kernel[position]))
        if window.kernel[position] > 1:
            columns.append((tap, window.kernel[position]))
        place = index[dim] * window.stride[position] + taps[-1] * window.dilation[position] - window.padding[position]
        source_index[dim] = place
        beside.append((place, 0, window.source.shape[dim]))
    writer.open(frozenset(tap for tap, _ in columns), barrier=True)
    reached = writer.test_text(beside)
    factor, weights = "", []
    if window.weight is not None and window.weight_index is not None:
        column = writer.namer.fresh("column")
        writer.open(frozenset({down}), barrier=True)
        element = writer.value(window.weight, window.weight_index(index, tuple(taps)))
        writer.line(f"{column}[{down}] = {element.text};")
        weights = [f"{ctype} {column}[{height}];", *unrolled(down, height, writer.close())]
        factor = f" * {column}[{down}]"
    writer.open(frozenset({"line"}), barrier=True)
    inside = writer.test_text([(row, 0, window.source.shape[window.dims[-2]])])
    value = writer.value(window.source, tuple(source_index)).text
    added = f"{sums}[r] += {value}{factor};"
    if window.kind == "max":
        writer.usage.helpers.add("max_nan")
        added = f"{sums}[r] = max_nan({value}, {sums}[r]);"
    lines = writer.close()
    lines += unrolled("r", size, [
        f"int const {down} = line - r{f' * {step}' if step > 1 else ''};", f"if ({down} >= 0 && {down} < {height}) {{",
        *indented([added]), "}",
    ])
    body = [*writer.close(), *weights, *unrolled("line", line_count, _where(inside, lines))]
    body = _where(reached, body)
    for tap, count in reversed(columns):
        body = unrolled(tap, count, body)
    return [f"{ctype} {sums}[{size}];", *unrolled("r", size, [f"{sums}[r] = {first};"]), *body]


def _where(test: str, body: Sequence[str]) -> list[str]:
    return list(body) if test == "true" else [f"if ({test}) {{", *indented(body), "}"]
