"""The text of a stream: one kernel that walks down a grid and takes one step of a stencil on the way, or several.

Rows of the source come into shared memory by asynchronous copies, some ahead of use. A lane keeps the sums of the few
output rows that the row at hand reaches, for some neighbouring columns, with all weights in registers: the row is read
from shared memory once for all of them. Where windows follow each other, the finished rows of one step are the source
rows of the next and stay in shared memory too; beside the grid they are zero, as its padding says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from contracts.tensors import TensorSpec
from engine.codegen import Tunable
from engine.codegen.cpp import CPP_TYPE
from engine.codegen.index import Index, to_cpp, variable
from engine.codegen.kernel_text import Kernel, header, index_type, launch, signature
from engine.codegen.naming import Namer
from engine.codegen.prims import Indices
from engine.codegen.program_ir import Nest
from engine.codegen.rows_kernel import decode, indented, unrolled
from engine.codegen.scalar_types import COMPUTE_TYPE, literal
from engine.codegen.streams import ITEM_BYTES, Stream, StreamPlan, packs, row_length, slots
from engine.codegen.writer import Lanes, Scalar, Writer


def write_stream(
    name: str,
    title: Sequence[str],
    nest: Nest,
    stream: Stream,
    plan: StreamPlan,
    *,
    layouts: Mapping[str, TensorSpec],
    names: Mapping[str, str],
    tunables: tuple[Tunable, ...],
) -> Kernel:
    """The kernel that takes all steps of `stream`."""
    single = {loop: variable(loop, size) for loop, size in nest.rows if size == 1}
    outer = [(loop, size) for loop, size in nest.rows if loop not in {stream.row, stream.column, *single}]
    renamed = single | {old: variable(f"i{position}", size) for position, (old, size) in enumerate(outer)}
    loops = [(f"i{position}", size) for position, (_, size) in enumerate(outer)]
    loops += [("chunk", -(-stream.height // plan.rows)), ("strip", -(-stream.width // plan.wide))]
    body = _Body(nest.substitute(renamed, (), ()), stream, plan, layouts, loops,
                 place=stream.place.substitute(renamed),
                 index=tuple(value.substitute(renamed) for value in stream.index))
    lines = body.lines()
    grid = prod(size for _, size in loops)
    usage = body.writer.usage
    steps = f"{stream.steps} steps" if stream.steps > 1 else "one step"
    text = "\n".join([
        *header(name, title, layouts, usage, launch=f"grid {grid}, block {plan.threads}",
                tunables={"steps": stream.steps, "threads": plan.threads, "columns": plan.columns, "rows": plan.rows},
                idea=f"A block walks down {plan.wide} columns and takes {steps} on the way: each row is read once, "
                     "sums and weights are in registers, rows between steps in shared memory."),
        f"__global__ void __launch_bounds__({plan.threads}, {plan.resident})",
        signature(name, usage, body.writer.namer, layouts),
        *indented(lines), "}",
    ])
    return Kernel(name=name, text=text, helpers=frozenset(usage.helpers), identifiers=body.writer.namer.given,
                  tunables=tunables, host=tuple(launch(name, grid, plan.threads, usage, layouts, names)))


class _Body:
    """Writes the statements of one kernel."""

    def __init__(
        self, nest: Nest, stream: Stream, plan: StreamPlan, layouts: Mapping[str, TensorSpec],
        loops: Sequence[tuple[str, int]], *, place: Index, index: Indices,
    ) -> None:
        self.nest, self.stream, self.plan, self.layouts = nest, stream, plan, layouts
        self.loops, self.place, self.index = loops, place, index
        self.whole = stream.width % plan.columns == 0
        self.writer = Writer(layouts, Namer(), Lanes(width=plan.columns if self.whole else 1))
        self.wide = index_type(prod(size for _, size in loops), nest, layouts)
        self.ctype = COMPUTE_TYPE[stream.windows[0].compute]
        fresh = self.writer.namer.fresh
        for store in nest.stores:
            self.writer.namer.pointer(store.value)
        self.rows = [fresh(f"rows_{step}") for step in range(stream.steps)]
        self.sums = [fresh(f"sums_{step + 1}") for step in range(stream.steps)]
        self.first_row, self.first_column = fresh("first_row"), fresh("first_column")
        self.source, self.fetch, self.lines_name = fresh("source"), fresh("fetch"), fresh("lines")
        self.weights: dict[int, str] = {}

    def lines(self) -> list[str]:
        stream, plan, writer = self.stream, self.plan, self.writer
        length = row_length(stream, plan.threads, plan.columns)
        shared = [f"__shared__ __align__(16) {self.ctype} {name}[{slots(stream, step)}][{length}];"
                  for step, name in enumerate(self.rows)]
        writer.open(frozenset(loop for loop, _ in self.loops))
        setup = self._weights()
        fetch = self._fetch(length)
        height = stream.kernel[0]
        sums = [f"{self.ctype} {name}[{height}][{plan.columns}] = {{}};" for name in self.sums]
        work = [line for step in range(1, stream.steps + 1) for line in self._step(step)]
        inside = writer.close()
        constant = writer.close()
        ahead, lead = stream.ahead, stream.lead
        most, left = plan.rows + lead, f"{stream.height + lead} - {self.first_row}"
        coming = f"line + {ahead}"
        return [
            *shared, *constant, f"{self.wide} const block = blockIdx.x;", *decode(self.loops, "block", self.wide),
            f"int const {self.first_row} = int(chunk) * {plan.rows};",
            f"int const {self.first_column} = int(strip) * {plan.wide};",
            *inside, *setup, *fetch, *sums,
            f"int const {self.lines_name} = {left} < {most} ? {left} : {most};",
            *unrolled("line", ahead, [f"{self.fetch}(line, line);", "__pipeline_commit();"]),
            f"for (int part = 0; part < {self.lines_name}; part += {stream.unrolled}) {{",
            *indented(unrolled("step", stream.unrolled, [
                "int const line = part + step;",
                f"__pipeline_wait_prior({ahead - 1});",
                "__syncthreads();  // The line has come, and nobody needs the one whose place the next takes.",
                f"if ({coming} < {self.lines_name}) {self.fetch}({coming}, (step + {ahead}) % {stream.unrolled});",
                "__pipeline_commit();",
                *work,
            ])), "}",
        ]

    def _weights(self) -> list[str]:
        """All factors in registers."""
        lines: list[str] = []
        for window in self.stream.windows:
            if window.weight is None or window.weight_index is None or id(window.weight) in self.weights:
                continue
            down, across = window.kernel
            name, tap_h, tap_w = (self.writer.namer.fresh(base) for base in ("weights", "tap_h", "tap_w"))
            self.weights[id(window.weight)] = name
            self.writer.open(frozenset({tap_h, tap_w}), barrier=True)
            taps = (variable(tap_h, down), variable(tap_w, across))
            element = self.writer.value(window.weight, window.weight_index(self.index, taps))
            self.writer.line(f"{name}[{tap_h}][{tap_w}] = {element.text};")
            body = self.writer.close()
            lines += [f"{self.ctype} {name}[{down}][{across}];",
                      *unrolled(tap_h, down, unrolled(tap_w, across, body))]
        return lines

    def _fetch(self, length: int) -> list[str]:
        """A function that starts copying a row of the source, or puts zeros where it has none."""
        stream, plan, writer = self.stream, self.plan, self.writer
        value = stream.source.value
        base, stride = self.place.without(stream.row).without(stream.column), self.place.coefficient(stream.row)
        writer.usage.loads[value] = None
        writer.usage.accesses.append((value, self.place, False))
        height, width = (stream.windows[0].source.shape[dim] for dim in stream.windows[0].dims)
        above, beside = (stream.steps * amount for amount in stream.padding)
        each, beside = stream.copied, beside + stream.shift
        fresh = writer.namer.fresh
        row, inside, address, slot = (fresh(base) for base in ("row_at", "inside", "address", "slot"))
        passes = -(-length // (each * plan.threads))
        target = f"{self.rows[0]}[{slot}][place]"
        pointer = f"{CPP_TYPE[stream.source.dtype]} const*"
        zeros = [f"{target} = 0;"] if each == 1 else unrolled(
            "k", each, [f"{self.rows[0]}[{slot}][place + k] = 0;"])
        copy = [
            f"int const place = (p * {plan.threads} + int(threadIdx.x)) * {each};",
            f"int const column = {self.first_column} - {beside} + place;",
            f"if ({inside} && column >= 0 && column < {width}) {{",
            f"    __pipeline_memcpy_async(&{target}, {address} + column, {each * ITEM_BYTES[stream.source.dtype]});",
            "} else {", *indented(zeros), "}",
        ]
        if length % (each * plan.threads):
            copy = [copy[0], f"if (place < {length}) {{", *indented(copy[1:]), "}"]
        wide = "int64_t" if self.wide == "int64_t" else "int"
        return [
            f"{pointer} const {self.source} = {writer.namer.pointer(value)} + ({to_cpp(base)});",
            f"auto const {self.fetch} = [&](int line, int {slot}) {{",
            f"    int const {row} = {self.first_row} - {above} + line;",
            f"    bool const {inside} = {row} >= 0 && {row} < {height};",
            f"    {pointer} const {address} = {self.source} + {wide}({inside} ? {row} : 0) * {stride};",
            *indented(unrolled("p", passes, copy)),
            "};",
        ]

    def _step(self, step: int) -> list[str]:
        """Add a row of the step's source to all sums that it reaches, and pass on the row that is finished by it."""
        stream, plan, fresh = self.stream, self.plan, self.writer.namer.fresh
        window, sums = stream.windows[step - 1], self.sums[step - 1]
        down, across = stream.kernel
        count, shift = packs(stream, step, plan.columns), stream.shift if step == 1 else 0
        values, tap_h, tap_w = fresh("values"), fresh("tap_h"), fresh("tap_w")
        slot = "step" if step == 1 else f"(step + {stream.unrolled - 1}) % {slots(stream, step - 1)}"
        self.writer.usage.helpers.add("pack")
        pack = f"Pack<{self.ctype}, {plan.columns}>"
        factor = f" * {self.weights[id(window.weight)]}[{tap_h}][{tap_w}]" if window.weight is not None else ""
        first = f"{shift} + k" if shift else "k"
        here = f"{sums}[(step + {down} - {tap_h}) % {down}][k]"
        # Neighbouring additions go to different sums: none waits for the one before.
        additions = unrolled(tap_w, across, unrolled(tap_h, down, unrolled("k", plan.columns, [
            f"{here} = ({tap_h} == 0 && {tap_w} == 0 ? 0 : {here}) + {values}[{tap_w} + {first}]{factor};"])))
        if window.factors:
            additions = unrolled("k", plan.columns, self._numbers(step, values, shift))
        start = f"&{self.rows[step - 1]}[{slot}][(threadIdx.x + p) * {plan.columns}]"
        lines = [
            f"{self.ctype} {values}[{count * plan.columns}];",
            *unrolled("p", count, [
                f"{pack} const pack = load_pack<{plan.columns}>({start});",
                *unrolled("k", plan.columns, [f"{values}[p * {plan.columns} + k] = pack.at[k];"])]),
            *additions,
        ]
        return ["{", *indented([*lines, *(self._finish(step) if step == stream.steps else self._pass_on(step))]), "}"]

    def _numbers(self, step: int, values: str, shift: int) -> list[str]:
        """Additions of the taps that count, column by column; the first to reach a new row begins its sum."""
        down, begun, lines = self.stream.kernel[0], False, []
        for (tap_h, tap_w), number in sorted(self.stream.windows[step - 1].factors, key=lambda one: one[0][::-1]):
            here = f"{self.sums[step - 1]}[(step + {down - tap_h}) % {down}][k]"
            sign = "+=" if tap_h or begun else "="
            begun = begun or not tap_h
            lines.append(f"{here} {sign} {values}[{shift + tap_w} + k] * {literal(number, self.ctype)};")
        return lines

    def _give(self, step: int) -> None:
        """Let the writer find what is there in a column's scope: the finished sum, and the point as it was before."""
        stream, window, depth = self.stream, self.stream.windows[step - 1], len(self.writer.scopes) - 1
        self.writer.folded = {id(window): Scalar(self._done(step), depth)}
        if step in stream.kept:
            count = slots(stream, step - 1)
            ago = stream.back(step) + (1 if step > 1 else 0)
            right = stream.padding[1] + (stream.shift if step == 1 else 0)
            slot = f"(step + {-ago % count}) % {count}"
            place = f"{self.rows[step - 1]}[{slot}][threadIdx.x * {self.plan.columns} + k + {right}]"
            self.writer.folded[id(window.source)] = Scalar(place, depth)

    def _done(self, step: int) -> str:
        """The sum that the row at hand finished."""
        down = self.stream.kernel[0]
        return f"{self.sums[step - 1]}[(step + 1) % {down}][k]"

    def _row(self, step: int) -> str:
        """The row of the grid that a step finishes."""
        left = self.stream.steps - step
        return f"{self.first_row} + line - {left * self.stream.padding[0] + step * self.stream.kernel[0] - 1}"

    def _at(self, row: Index, column: Index) -> Indices:
        return tuple(i.substitute({self.stream.row: row, self.stream.column: column}) for i in self.index)

    def _pass_on(self, step: int) -> list[str]:
        """A finished row becomes a source row of the next step: zero beside the grid."""
        stream, plan, writer = self.stream, self.plan, self.writer
        row, column, done = (writer.namer.fresh(base) for base in ("row_at", "column_at", "done"))
        target = stream.windows[step]
        beside = (stream.steps - step) * stream.padding[1]
        writer.open(frozenset({row, column}), barrier=True)
        self._give(step)
        value = writer.value(target.source, self._at(variable(row, stream.height), variable(column, stream.width)))
        body = [*writer.close(), f"{done}.at[k] = {value.text};"]
        place = f"&{self.rows[step]}[step % {slots(stream, step)}][threadIdx.x * {plan.columns}]"
        there = f"{row} >= 0 && {row} < {stream.height} && {column} >= 0 && {column} < {stream.width}"
        return [
            f"int const {row} = {self._row(step)};",
            f"Pack<{self.ctype}, {plan.columns}> {done};",
            *unrolled("k", plan.columns, [
                f"int const {column} = {self.first_column} - {beside} + int(threadIdx.x) * {plan.columns} + k;",
                f"{done}.at[k] = 0;",
                f"if ({there}) {{", *indented(body), "}"]),
            f"store_pack<{plan.columns}>({place}, {done});",
        ]

    def _finish(self, step: int) -> list[str]:
        """A finished row of the last step is stored."""
        stream, plan, writer = self.stream, self.plan, self.writer
        row, lead, column = (writer.namer.fresh(base) for base in ("row_at", "pack_at", "column_at"))
        if self.whole:
            across = variable(lead, stream.width // plan.columns) * plan.columns + variable("k", plan.columns)
        else:
            across = variable(column, stream.width)
        moved = {stream.row: variable(row, stream.height), stream.column: across}
        nest = self.nest.substitute(moved, (), ())
        writer.open(frozenset({row, lead}), barrier=True)
        writer.open(frozenset({"k", column}), barrier=not self.whole)
        self._give(step)
        stores = [writer.store(s.value, s.prim.dtype, s.index, writer.value(s.prim, s.index)) for s in nest.stores]
        inside = writer.close()
        before = [pack[0] for pack in stores if pack]
        after = [pack[1] for pack in stores if pack]
        if not self.whole:
            inside = [f"int const {column} = {lead} * {plan.columns} + k;",
                      f"if ({column} < {stream.width}) {{", *indented(inside), "}"]
        body = [*writer.close(), *before, *unrolled("k", plan.columns, inside), *after]
        tests = [f"{row} >= {self.first_row}", f"{row} < {self.first_row} + {plan.rows}", f"{row} < {stream.height}",
                 f"{lead} < {-(-stream.width // plan.columns)}"]
        if plan.wide < plan.threads * plan.columns:
            tests.append(f"threadIdx.x < {plan.wide // plan.columns}")
        return [
            f"int const {row} = {self._row(step)};",
            f"int const {lead} = {self.first_column} / {plan.columns} + int(threadIdx.x);",
            f"if ({' && '.join(tests)}) {{", *indented(body), "}",
        ]
