"""Writes one reduction kernel for a chosen mapping of rows to threads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from contracts.tensors import TensorSpec
from engine.codegen import Tunable
from engine.codegen.index import Index, linear, to_cpp, variable
from engine.codegen.kernel_text import Kernel, header, index_type, launch, signature
from engine.codegen.naming import Namer
from engine.codegen.prims import Field, Indices, NotFusibleError, Reduce
from engine.codegen.program_ir import Nest
from engine.codegen.reductions import (
    REDUCTIONS,
    accumulator_type,
    joined_type,
    part_text,
    start_text,
    update_text,
)
from engine.codegen.rows_plan import RowPlan
from engine.codegen.writer import Lanes, Scalar, Writer


def write_row_kernel(
    name: str,
    title: Sequence[str],
    nest: Nest,
    plan: RowPlan,
    *,
    layouts: Mapping[str, TensorSpec],
    names: Mapping[str, str],
    tunables: tuple[Tunable, ...],
) -> Kernel:
    """One kernel that does all passes over its rows."""
    first = RowWriter(name, nest, plan, layouts)
    first.write()
    body = first
    if plan.resident:
        wanted = {key for key, passes in first.writer.usage.keys.items() if len(passes) > 1}
        if plan.cluster:
            # Only what was loaded, in packs where the kernel loads packs: the rest is computed again.
            wanted = {key for key in wanted if isinstance(key, tuple) and isinstance(key[0], str)
                      and (key[0] == "pack") == (plan.width > 1)}
        body = RowWriter(name, nest, plan, layouts, resident=wanted)
        body.write()
    usage, held_bytes = body.writer.usage, body.writer.kept_bytes
    grid = -(-nest.row_count // plan.rows) * (plan.cluster or 1)
    block = f"dim3({plan.rows}, {plan.sharing})" if plan.mapping == "column" else str(plan.threads)
    where = "held" if plan.cluster else "resident" if plan.resident else "streaming" if body.passes > 1 else "once"
    shape = f"grid {grid}, block {block}"
    if plan.cluster:
        shape += f", clusters of {plan.cluster}, {held_bytes} bytes of dynamic shared memory"
    shown = {"threads_per_row": plan.sharing * (plan.cluster or 1), "rows_per_block": plan.rows, "width": plan.width}
    if plan.cluster:
        shown["cluster"] = plan.cluster
    if plan.cluster or not plan.resident:
        shown["unroll"] = plan.unroll
    text = "\n".join([
        *header(name, title, layouts, usage, launch=shape, tunables=shown,
                idea=f"{_MAPPINGS['cluster' if plan.cluster > 1 else plan.mapping]} {_IDEAS[where]}"),
        f"__global__ void __launch_bounds__({plan.threads})",
        signature(name, usage, body.writer.namer, layouts),
        *indented(body.lines),
        "}",
    ])
    cluster = (plan.cluster, held_bytes) if plan.cluster else None
    if cluster:
        usage.helpers.add("launch_cluster")
    return Kernel(name=name, text=text, helpers=frozenset(usage.helpers), tunables=tunables,
                  identifiers=body.writer.namer.given,
                  host=tuple(launch(name, grid, block, usage, layouts, names, cluster=cluster)))


_MAPPINGS = {
    "group": "A few lanes of a warp own one row, so no barrier is needed.",
    "block": "A block owns one row.",
    "cluster": "The blocks of a cluster own one row.",
    "column": "Neighbouring lanes own neighbouring rows, because rows lie next to each other in memory.",
}
_IDEAS = {
    "held": "It stays in shared memory between the passes, so memory is read once.",
    "resident": "The row stays in registers between the passes, so memory is read once.",
    "streaming": "The row is read again in each pass.",
    "once": "One pass over the row is enough.",
}


def unrolled(name: str, count: int, body: Sequence[str]) -> list[str]:
    """A loop of so many turns that the compiler writes out."""
    return ["#pragma unroll", f"for (int {name} = 0; {name} < {count}; ++{name}) {{", *indented(body), "}"]


def indented(lines: Sequence[str], by: str = "    ") -> list[str]:
    """Lines one level deeper; preprocessor lines stay at the margin."""
    return [line if line.startswith("#") or not line else by + line for line in lines]


@dataclass
class RowWriter:
    """State while one kernel is written."""

    name: str
    nest: Nest
    plan: RowPlan
    layouts: Mapping[str, TensorSpec]
    resident: set[object] = field(default_factory=set)
    part: str = ""  # C++ expression of this block's part of the row, when several blocks share it.
    parts: int = 1
    lines: list[str] = field(default_factory=list)
    passes: int = 0
    joined: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        plan, nest = self.plan, self.nest
        self.wide = index_type(nest.row_count * nest.row_length, nest, self.layouts)
        loops = list(nest.inner)
        values: dict[str, Index] = {}
        if plan.width > 1:
            last, size = loops[-1]
            values[last] = variable("last", size // plan.width) * plan.width + variable("k", plan.width)
            loops[-1] = ("last", size // plan.width)
        inner_names = ["p"] if len(loops) == 1 else [f"p{i}" for i in range(len(loops))]
        row_names = ["row"] if len(nest.rows) == 1 else [f"row{i}" for i in range(len(nest.rows))]
        renamed = {old: variable(new, size) for (old, size), new in zip(loops, inner_names, strict=True)}
        self.rows = [(new, size) for (_, size), new in zip(nest.rows, row_names, strict=True)]
        self.inner = [(new, size) for (_, size), new in zip(loops, inner_names, strict=True)]
        renamed_rows = {old: variable(new, size) for (old, size), new in zip(nest.rows, row_names, strict=True)}
        moved = {name: index.substitute(renamed) for name, index in values.items()}
        self.nest = nest.substitute({**renamed, **renamed_rows, **moved}, self.rows, self.inner)
        self.packs = prod(size for _, size in self.inner)
        self.fields: dict[tuple[int, str], Scalar] = {}
        self.writer = Writer(self.layouts, Namer(), Lanes(width=plan.width), self._field)
        for store in self.nest.stores:
            self.writer.namer.pointer(store.value)
        self.writer.resident = dict.fromkeys(self.resident)
        self.writer.item_count = plan.items
        self.writer.sharing = plan.sharing if plan.cluster else 0
        self.guard_row = nest.row_count % plan.rows != 0
        self.inner_names = frozenset(name for name, _ in self.inner) | {"k"}

    def _field(self, prim: Field, index: Indices) -> Scalar:
        if self.nest.at.get(id(prim.reduce)) != index:
            raise NotFusibleError(f"{prim.name} is needed at another row")
        found = self.fields.get((id(prim.reduce), prim.part))
        if found is None:
            raise NotFusibleError(f"{prim.name} is needed before it is computed")
        return found

    # The kernel's text.

    def write(self) -> None:
        """Fill `lines`."""
        writer = self.writer
        writer.open(frozenset(name for name, _ in self.rows))
        for stage in self.nest.reduces:
            self.fold(stage)
        self._store_rows()
        self._store_elements()
        body = writer.close()
        constants = writer.close()
        held = ["extern __shared__ __align__(16) unsigned char held[];"] if writer.kept_bytes else []
        self.lines = [*constants, *self.coordinates(), *held, *writer.kept_declarations, *body]

    def coordinates(self) -> list[str]:
        """Statements that give this thread's row and its place among the threads of the row."""
        plan, wide = self.plan, self.wide
        rows = self.nest.row_count
        if plan.cluster > 1:
            lines = ["int const lane = threadIdx.x;", f"int const rank = blockIdx.x % {plan.cluster};",
                     f"{wide} const row = blockIdx.x / {plan.cluster};"]
        elif plan.mapping == "block":
            lines = ["int const lane = threadIdx.x;", f"{wide} const row = blockIdx.x;"]
        elif plan.mapping == "group":
            lines = [f"int const lane = threadIdx.x % {plan.sharing};"] if plan.sharing > 1 else ["int const lane = 0;"]
            within = f"threadIdx.x / {plan.sharing}" if plan.sharing > 1 else "threadIdx.x"
            first = f"{wide}(blockIdx.x) * {plan.rows} + {within}" if plan.rows > 1 else f"{wide}(blockIdx.x)"
            lines.append(f"{wide} const row_here = {first};")
        else:
            lines = ["int const lane = threadIdx.y;",
                     f"{wide} const row_here = {wide}(blockIdx.x) * {plan.rows} + threadIdx.x;"]
        if plan.mapping != "block":
            if self.guard_row:
                lines += [f"bool const in_range = row_here < {rows};",
                          "// Idle lanes repeat the last row: all lanes must reach the shuffles and barriers.",
                          f"{wide} const row = in_range ? row_here : {rows - 1};"]
            else:
                lines[-1] = lines[-1].replace("row_here", "row", 1)
        return lines + decode(self.rows, "row", wide)

    # Passes.

    def fold(self, stage: Sequence[Reduce]) -> None:
        """One pass that folds all reductions of a stage, and the joins after it."""
        writer = self.writer
        accumulators: dict[int, str] = {}
        # Registers that hold the row leave none for an accumulator a lane.
        several = self.plan.width > 1 and (self.plan.cluster > 0 or not self.plan.resident)
        for reduce in stage:
            name = writer.namer.fresh(f"{reduce.name}_{_SHORT.get(reduce.kind, reduce.kind)}")
            accumulators[id(reduce)] = name
            start = start_text(reduce.kind, reduce.compute)
            kind = accumulator_type(reduce.kind, reduce.compute)
            writer.usage.helpers.update(REDUCTIONS[reduce.kind].helpers)
            writer.usage.ops[reduce.kind] = None
            if several:
                values = "" if start == "{}" else f" = {{{', '.join([start] * self.plan.width)}}}"
                writer.line(f"{kind} {name}[{self.plan.width}]{values};")
            else:
                writer.line(f"{kind} {name}{' = ' + start if start != '{}' else ''};")
        with_lane = f"[{writer.lanes.name}]" if several else ""

        def body() -> None:
            for reduce in stage:
                index = self.nest.sources[id(reduce)]
                value = writer.value(reduce.source, index)
                place = linear([index[d] for d in reduce.dims], [reduce.source.shape[d] for d in reduce.dims])
                writer.line(update_text(reduce.kind, reduce.compute, accumulators[id(reduce)] + with_lane, value.text,
                                        to_cpp(place)))

        self._loop(body)
        for reduce in stage:
            self._join(reduce, accumulators[id(reduce)], several)

    def _join(self, reduce: Reduce, accumulator: str, several: bool) -> None:
        writer, row = self.writer, REDUCTIONS[reduce.kind]
        joined = accumulator
        if row.kind == "moments":
            joined = f"{accumulator}[0].moments()" if several else f"{accumulator}.moments()"
        elif several:
            joined = f"{accumulator}[0]"
        if several:
            each = f"{accumulator}[k].moments()" if row.kind == "moments" else f"{accumulator}[k]"
            total = writer.namer.fresh(accumulator + "_lane")
            writer.line(f"{joined_type(reduce.kind, reduce.compute)} {total} = {joined};")
            writer.line("#pragma unroll")
            writer.line(f"for (int k = 1; k < {self.plan.width}; ++k) {{")
            writer.line(f"    {total} = {row.join}::combine({total}, {each});")
            writer.line("}")
            joined = total
        result = self.combined(row.join, joined)
        name = writer.namer.fresh(f"{reduce.name}_row" if result == joined else reduce.name)
        writer.line(f"{joined_type(reduce.kind, reduce.compute)} const {name} = {result};")
        self.joined[id(reduce)] = name
        depth = len(writer.scopes) - 1
        for part in row.parts:
            self.fields[id(reduce), part] = Scalar(part_text(reduce.kind, part, name), depth)

    def combined(self, join: str, value: str) -> str:
        """The call that joins a value over the threads of a row."""
        plan = self.plan
        if plan.sharing == 1:
            return value
        helper = {"group": "group_reduce", "block": "block_reduce", "column": "column_reduce"}[plan.mapping]
        self.writer.usage.helpers.add(helper)
        if plan.mapping == "column":
            return f"column_reduce<{plan.rows}, {plan.sharing}, {join}>({value})"
        whole = f"{helper}<{plan.sharing}, {join}>({value})"
        if plan.cluster > 1:
            self.writer.usage.helpers.add("cluster_reduce")
            whole = f"cluster_reduce<{plan.cluster}, {join}>({whole})"
        return whole

    def _loop(self, body: Callable[[], list[tuple[str, str]] | None]) -> None:
        """The loop of this thread over its packs of the row, and over the lanes of a pack."""
        writer, plan = self.writer, self.plan
        writer.current_pass = self.passes
        self.passes += 1
        writer.open(frozenset(name for name, _ in self.inner))
        writer.item = "item" if plan.resident else ""
        before: list[str] = []
        after: list[str] = []
        if plan.width > 1:
            writer.open(frozenset({"k"}))
        packs = body() or []
        for declaration, store in packs:
            before.append(declaration)
            after.append(store)
        if plan.width > 1:
            lanes = writer.close()
            outside = writer.close()
            inside = [*outside, *before, "#pragma unroll", f"for (int k = 0; k < {plan.width}; ++k) {{",
                      *indented(lanes), "}", *after]
        else:
            inside = writer.close()
        writer.item = ""
        for line in self._over_packs(inside):
            writer.line(line)

    def _over_packs(self, inside: list[str]) -> list[str]:
        plan, wide = self.plan, self.wide
        flat = "p" if len(self.inner) == 1 else "p_flat"
        decoded = decode(self.inner, flat, wide)
        if plan.resident:
            place = f"item * {plan.sharing} + lane" if plan.sharing > 1 else "item"
            if plan.cluster > 1:
                place = f"(rank * {plan.items} + item) * {plan.sharing} + lane"
            guarded = plan.items * plan.sharing * (plan.cluster or 1) != self.packs
            core = [*decoded, *inside]
            if guarded:
                core = [f"if ({flat} < {self.packs}) {{", *indented(core), "}"]
            unroll = f"#pragma unroll {plan.unroll}" if plan.cluster else "#pragma unroll"
            return [unroll, f"for (int item = 0; item < {plan.items}; ++item) {{",
                    *indented([f"int const {flat} = {place};", *core]), "}"]
        start, end, step = "lane", str(self.packs), plan.sharing
        if self.parts > 1:
            each = -(-self.packs // self.parts)
            start = "part_start + lane" if plan.sharing > 1 else "part_start"
            end = "part_end"
            head = [f"{wide} const part_start = {wide}({self.part}) * {each};",
                    f"{wide} const part_end = part_start + {each} < {self.packs} ? part_start + {each} : {self.packs};"]
        else:
            head = []
        unroll = [f"#pragma unroll {plan.unroll}"] if plan.unroll > 1 else []
        return [*head, *unroll, f"for ({wide} {flat} = {start}; {flat} < {end}; {flat} += {step}) {{",
                *indented([*decoded, *inside]), "}"]

    # Stores.

    def _store_rows(self) -> None:
        stores = [s for s in self.nest.stores if not s.variables() & self.inner_names]
        if not stores:
            return
        writer = self.writer
        tests = []
        if self.plan.sharing > 1:
            tests.append("lane == 0")
        if self.plan.cluster > 1:
            tests.append("rank == 0")
        if self.guard_row:
            tests.append("in_range")
        elements = [writer.value(store.prim, store.index) for store in stores]
        writer.open(frozenset(), barrier=True)
        for store, element in zip(stores, elements, strict=True):
            writer.store(store.value, store.prim.dtype, store.index, element)
        lines = writer.close()
        if tests:
            lines = [f"if ({' && '.join(tests)}) {{", *indented(lines), "}"]
        for line in lines:
            writer.line(line)

    def _store_elements(self) -> None:
        stores = [s for s in self.nest.stores if s.variables() & self.inner_names]
        if not stores:
            return
        writer = self.writer

        def body() -> list[tuple[str, str]]:
            packs = []
            for store in stores:
                element = writer.value(store.prim, store.index)
                pack = writer.store(store.value, store.prim.dtype, store.index, element)
                if pack:
                    packs.append(pack)
                elif self.guard_row:
                    writer.scopes[-1].lines[-1] = f"if (in_range) {writer.scopes[-1].lines[-1]}"
            if self.guard_row:
                packs = [(declaration, f"if (in_range) {text}") for declaration, text in packs]
            return packs

        self._loop(body)


_SHORT = {"largest": "max", "smallest": "min", "largest_at": "best", "smallest_at": "best", "product": "product"}


def decode(loops: Sequence[tuple[str, int]], flat: str, wide: str) -> list[str]:
    """Statements that give each loop variable from the flat position."""
    if len(loops) == 1 and loops[0][0] == flat:
        return []
    lines = []
    for position, (name, size) in enumerate(loops):
        below = prod(s for _, s in loops[position + 1 :])
        text = f"{flat} / {below}" if below > 1 else flat
        if position > 0:
            text += f" % {size}"
        lines.append(f"{wide} const {name} = {text};")
    return lines
