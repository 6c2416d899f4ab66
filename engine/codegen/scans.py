"""Running sums and products along one dimension, with the element-wise work before and after in the same kernel.

Rows that are contiguous: a block walks along its row tile by tile; lanes scan their own elements, warps join by
shuffles, and a carry goes from tile to tile. Rows that are not: neighbouring lanes walk down neighbouring rows.
When rows are few, several blocks share each row: a first kernel folds every chunk, and each block of the second
starts from the chunks before its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from contracts.tensors import TensorSpec
from engine.codegen import Tunable
from engine.codegen.index import Index, variable
from engine.codegen.kernel_text import Kernel, header, index_type, launch, signature
from engine.codegen.naming import Namer
from engine.codegen.pointwise import vector_width
from engine.codegen.prims import Field, Indices, NotFusibleError, Prim, Reduce, Scan, walk
from engine.codegen.program_ir import Nest, Store, spread_positions
from engine.codegen.reductions import REDUCTIONS, start_text
from engine.codegen.regions import Choices, Temporary
from engine.codegen.rows_kernel import decode, indented
from engine.codegen.rows_plan import SM_COUNT, power_of_two
from engine.codegen.scalar_types import COMPUTE_TYPE
from engine.codegen.writer import Lanes, Scalar, Usage, Writer
from engine.records import Device

SHARED_BYTES = 48 << 10
_STORED = {"float": "float32", "double": "float64", "int64_t": "int64", "int32_t": "int32"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanPlan:
    """Mapping of rows to threads.

    Attributes:
        across: Neighbouring lanes own neighbouring rows (the scan runs over a dimension that is not contiguous).
        threads: Threads a block.
        width: Neighbouring elements a lane loads at once and scans itself.
        chunks: Blocks that share a row.
        items: Neighbouring elements a lane scans itself though it cannot load them at once: they come through shared
            memory.
    """

    across: bool
    threads: int
    width: int
    chunks: int
    items: int = 1


def scan_nest(outputs: Sequence[tuple[str, Prim]]) -> tuple[Nest, Scan]:
    """The loop nest of outputs around one scan.

    Raises:
        NotFusibleError: There is not exactly one scan, or an output is elsewhere.
    """
    prims = walk([prim for _, prim in outputs])
    scans = [prim for prim in prims if isinstance(prim, Scan)]
    if len(scans) != 1 or any(isinstance(prim, Reduce) for prim in prims):
        raise NotFusibleError("a scan kernel has exactly one scan and no reduction")
    (scan,) = scans
    names = [f"r{d}" if d != scan.dim else "c" for d in range(len(scan.shape))]
    identity = tuple(variable(name, size) for name, size in zip(names, scan.shape, strict=True))
    at: dict[int, Indices] = {}
    spread_positions(prims, scan, identity, frozenset(), at)
    at[id(scan.source)] = identity
    stores = []
    for value, prim in outputs:
        index = at.get(id(prim)) or (identity if prim.shape == scan.shape else None)
        if index is None or prim.numel != scan.numel:
            raise NotFusibleError(f"{value} is not computed at the positions of the scan")
        stores.append(Store(value, prim, index))
    rows = [(n, s) for d, (n, s) in enumerate(zip(names, scan.shape, strict=True)) if d != scan.dim]
    nest = Nest(rows=tuple(rows), inner=(("c", scan.shape[scan.dim]),), stores=tuple(stores), at=at,
                sources={id(scan): identity})
    return nest, scan


def check_scan(outputs: Sequence[tuple[str, Prim]], layouts: Mapping[str, TensorSpec]) -> None:
    """Raise NotFusibleError if one scan kernel cannot compute `outputs`."""
    nest, scan = scan_nest(outputs)
    _dry_run(nest, scan, layouts)


def _dry_run(nest: Nest, scan: Scan, layouts: Mapping[str, TensorSpec]) -> Usage:
    def field_of(prim: Field, index: Indices) -> Scalar:
        if prim is not scan or nest.sources[id(scan)] != index:
            raise NotFusibleError(f"{prim.name} is needed at another position than the one it is computed for")
        return Scalar("scanned", 2)

    writer = Writer(layouts, Namer(), Lanes(), field_of)
    writer.open(frozenset(name for name, _ in nest.rows))
    writer.open(frozenset({"c"}))
    writer.value(scan.source, nest.sources[id(scan)])
    for store in nest.stores:
        writer.store(store.value, store.prim.dtype, store.index, writer.value(store.prim, store.index))
    return writer.usage


def write_scan(
    name: str,
    title: Sequence[str],
    outputs: Sequence[tuple[str, Prim]],
    *,
    layouts: Mapping[str, TensorSpec],
    names: Mapping[str, str],
    choices: Choices,
    device: Device,
) -> list[Kernel]:
    """Write the one or two kernels that compute `outputs`."""
    nest, scan = scan_nest(outputs)
    usage = _dry_run(nest, scan, layouts)
    plan, tunables = _plan(name, nest, usage, layouts, choices, device)
    kernels: list[Kernel] = []
    totals: Temporary | None = None
    if plan.chunks > 1:
        ctype = COMPUTE_TYPE[scan.compute]
        totals = Temporary(name=f"{name}_totals", dtype=_STORED[ctype], numel=nest.row_count * plan.chunks)
        layouts = {**layouts, totals.name: TensorSpec.contiguous(totals.dtype, (totals.numel,))}
        names = {**names, totals.name: totals.name}
        first = _ScanWriter(nest, scan, plan, layouts, totals.name, only_totals=True)
        kernels.append(replace(_kernel(f"{name}_chunks", [*title, "first step: the total of every chunk"], first, names,
                                       ()), temporaries=(totals,)))
    body = _ScanWriter(nest, scan, plan, layouts, totals.name if totals else "", only_totals=False)
    kernels.append(_kernel(name, title, body, names, tunables))
    return kernels


def _plan(
    key: str, nest: Nest, usage: Usage, layouts: Mapping[str, TensorSpec], choices: Choices, device: Device
) -> tuple[ScanPlan, tuple[Tunable, ...]]:
    sm_count = device.sm_count or SM_COUNT
    rows, length = nest.row_count, nest.row_length
    along = sum(layouts[v].size_bytes for v, i, _ in usage.accesses if abs(i.coefficient("c")) == 1)
    across = along * 2 < sum(layouts[v].size_bytes for v, _, _ in usage.accesses) and rows > 1
    tunables: list[Tunable] = []

    def choose(label: str, direction: str, default: int, values: tuple[int, ...], meaning: str) -> int:
        tunable = Tunable(key=f"{key}.{label}", direction=direction, meaning=meaning,
                          values=(default, *(v for v in values if v != default)))
        tunables.append(tunable)
        value = choices.get(tunable.key, default)
        return int(value if value in tunable.values else default)

    if across:
        threads = choose("threads", "P", 128 if rows >= sm_count * 256 else 32, (32, 64, 128, 256), "rows a block")
        blocks = -(-rows // threads)
        width = 1
    else:
        widest = vector_width(nest.inner, layouts, usage)
        width = choose("width", "M", widest, tuple(w for w in (8, 4, 2, 1) if w < widest),
                       "neighbouring elements a lane scans itself")
        threads = choose("threads", "P", min(max(power_of_two(length / width), 32), 512 if rows >= sm_count else 1024),
                         (32, 64, 128, 256, 512, 1024), "threads that share a row")
        blocks = rows
    items = 1
    if not across and width == 1:
        fitting = tuple(i for i in (8, 4, 16) if i * threads <= length and threads * (i + 1) * 8 <= SHARED_BYTES)
        if fitting:
            items = choose("items", "R", 1, fitting, "neighbouring elements a lane scans, through shared memory")
    chunks = 1
    if blocks < 2 * sm_count and length >= 512:
        wanted = power_of_two(4 * sm_count / blocks)
        chunks = max(1, min(wanted, power_of_two(length / (64 if across else 4 * threads * width)), 512))
    if chunks > 1:
        chunks = choose("chunks", "P", chunks, tuple(c for c in (chunks // 4, chunks // 2, chunks * 2) if c >= 1),
                        "blocks that share a row")
    return ScanPlan(across=across, threads=threads, width=width, chunks=chunks, items=items), tuple(tunables)


def _kernel(name: str, title: Sequence[str], body: _ScanWriter, names: Mapping[str, str],
            tunables: tuple[Tunable, ...]) -> Kernel:
    body.write()
    plan, usage = body.plan, body.writer.usage
    blocks = -(-body.nest.row_count // plan.threads) if plan.across else body.nest.row_count
    grid = f"dim3({blocks}, {plan.chunks})" if plan.chunks > 1 else str(blocks)
    text = "\n".join([
        *header(name, title, body.layouts, usage, launch=f"grid {grid}, block {plan.threads}",
                tunables={"threads": plan.threads, "width": plan.width, "chunks": plan.chunks, "items": plan.items},
                idea="Neighbouring lanes walk down neighbouring rows." if plan.across else
                "A block walks along its row; a carry goes from tile to tile."),
        f"__global__ void __launch_bounds__({plan.threads})",
        signature(name, usage, body.writer.namer, body.layouts),
        *indented(body.lines), "}",
    ])
    return Kernel(name=name, text=text, helpers=frozenset(usage.helpers), tunables=tunables,
                  identifiers=body.writer.namer.given,
                  host=tuple(launch(name, grid, plan.threads, usage, body.layouts, names)))


@dataclass
class _ScanWriter:
    """State while one scan kernel is written."""

    nest: Nest
    scan: Scan
    plan: ScanPlan
    layouts: Mapping[str, TensorSpec]
    totals: str
    only_totals: bool
    lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        plan, nest = self.plan, self.nest
        self.length = nest.row_length // plan.width
        place = variable("p", self.length) * plan.width + variable("k", plan.width)
        rows = ["row"] if len(nest.rows) == 1 else [f"row{i}" for i in range(len(nest.rows))]
        renamed: dict[str, Index] = {
            old: variable(new, size) for (old, size), new in zip(nest.rows, rows, strict=True)}
        self.rows = [(new, size) for (_, size), new in zip(nest.rows, rows, strict=True)]
        self.nest = nest.substitute({**renamed, "c": place}, self.rows, (("p", self.length),))
        self.wide = index_type(nest.row_count * nest.row_length, nest, self.layouts)
        self.scanned: Scalar | None = None
        self.writer = Writer(self.layouts, Namer(), Lanes(width=plan.width), self._field)
        if not self.only_totals:
            for store in self.nest.stores:
                self.writer.namer.pointer(store.value)
        self.ctype = COMPUTE_TYPE[self.scan.compute]
        self.row = REDUCTIONS[self.scan.kind]
        self.start = start_text(self.scan.kind, self.scan.compute)

    def _field(self, prim: Field, index: Indices) -> Scalar:
        if prim is not self.scan or self.nest.sources[id(self.scan)] != index or self.scanned is None:
            raise NotFusibleError(f"{prim.name} is needed at another position")
        return self.scanned

    def _join(self, a: str, b: str) -> str:
        return self.row.update.format(a=a, v=b)

    def write(self) -> None:
        """Fill `lines`."""
        writer, plan = self.writer, self.plan
        writer.usage.helpers.update(self.row.helpers)
        writer.open(frozenset(name for name, _ in self.rows))
        carry = writer.namer.fresh("carry")
        writer.line(f"{self.ctype} {carry} = {self.start};")
        step = -(-self.length // plan.chunks)
        if not plan.across:
            tile = plan.threads * plan.items
            step = -(-step // tile) * tile
        if plan.chunks > 1:
            writer.line(f"{self.wide} const chunk_start = {self.wide}(blockIdx.y) * {step};")
            writer.line(f"{self.wide} const chunk_end = chunk_start + {step} < {self.length} ? "
                        f"chunk_start + {step} : {self.length};")
            if not self.only_totals:
                self._earlier_chunks(carry)
        start, end = ("chunk_start", "chunk_end") if plan.chunks > 1 else ("0", str(self.length))
        staged = plan.items > 1 and not self.only_totals
        (self._down if plan.across else self._staged if staged else self._along)(carry, start, end)
        if self.only_totals:
            self._store_total(carry)
        inside = writer.close()
        self.lines = [*writer.close(), *self._coordinates(), *inside]

    def _coordinates(self) -> list[str]:
        wide, rows = self.wide, self.nest.row_count
        if not self.plan.across:
            return [f"{wide} const row = blockIdx.x;", *decode(self.rows, "row", wide)]
        lines = [f"{wide} const row = {wide}(blockIdx.x) * {self.plan.threads} + threadIdx.x;"]
        if rows % self.plan.threads:
            lines += [f"if (row >= {rows}) {{", "    return;", "}"]
        return lines + decode(self.rows, "row", wide)

    def _total_place(self, chunk: str) -> str:
        rows = self.nest.row_count
        pointer = self.writer.namer.pointer(self.totals)
        return f"{pointer}[{chunk} * {rows} + row]" if rows > 1 else f"{pointer}[{chunk}]"

    def _earlier_chunks(self, carry: str) -> None:
        """The carry starts from the totals of the chunks before this one, in their order."""
        writer = self.writer
        writer.usage.loads[self.totals] = None
        writer.line("for (int chunk = 0; chunk < int(blockIdx.y); ++chunk) {")
        writer.line(f"    {carry} = {self._join(carry, self._total_place('chunk'))};")
        writer.line("}")

    def _store_total(self, carry: str) -> None:
        self.writer.usage.stores[self.totals] = None
        text = f"{self._total_place('blockIdx.y')} = {carry};"
        if not self.plan.across:
            text = f"if (threadIdx.x == 0) {{ {text} }}"
        self.writer.line(text)

    def _down(self, carry: str, start: str, end: str) -> None:
        """One thread a row, element by element."""
        writer = self.writer
        writer.open(frozenset({"p"}))
        value = writer.value(self.scan.source, self.nest.sources[id(self.scan)])
        writer.line(f"{carry} = {self._join(carry, value.text)};")
        if not self.only_totals:
            self.scanned = Scalar(carry, len(writer.scopes) - 1)
            for store in self.nest.stores:
                writer.store(store.value, store.prim.dtype, store.index, writer.value(store.prim, store.index))
        inside = writer.close()
        for line in ["#pragma unroll 8", f"for ({self.wide} p = {start}; p < {end}; ++p) {{", *indented(inside), "}"]:
            writer.line(line)

    def _along(self, carry: str, start: str, end: str) -> None:
        """A block a row, tile by tile."""
        writer, plan = self.writer, self.plan
        width, wide = plan.width, self.wide
        exact = plan.chunks == 1 and self.length % plan.threads == 0
        writer.usage.helpers.add("block_scan")
        writer.open(frozenset({"p"}))
        own, local = writer.namer.fresh("own_total"), writer.namer.fresh("running")
        writer.line(f"{self.ctype} {own} = {self.start};")
        writer.line(f"{self.ctype} {local}[{width}];")
        if width > 1:
            writer.open(frozenset({"k"}))
        value = writer.value(self.scan.source, self.nest.sources[id(self.scan)])
        joined = self._join(own, value.text)
        writer.line(f"{own} = {joined if exact else f'in_row ? {joined} : {own}'};")
        writer.line(f"{local}[{'k' if width > 1 else 0}] = {own};")
        self._close_lanes([])
        prefix, total = writer.namer.fresh("before"), writer.namer.fresh("tile_total")
        writer.line(f"{self.ctype} {total};")
        scan = f"block_scan<{plan.threads}, {self.row.join}>({own}, {self.ctype}({self.start}), {total})"
        writer.line(f"{self.ctype} const {prefix} = {self._join(carry, scan)};")
        if not self.only_totals:
            self._store_tile(prefix, local, guard=not exact)
        writer.line(f"{carry} = {self._join(carry, total)};")
        inside = writer.close()
        head = [f"{wide} const p = tile + threadIdx.x;"]
        if not exact:
            head = [f"bool const in_row = tile + threadIdx.x < {end};",
                    "// Idle threads repeat the last place: all must reach the barriers.",
                    f"{wide} const p = in_row ? tile + threadIdx.x : {end} - 1;"]
        for line in [f"for ({wide} tile = {start}; tile < {end}; tile += {plan.threads}) {{",
                     *indented([*head, *inside]), "}"]:
            writer.line(line)

    def _staged(self, carry: str, start: str, end: str) -> None:
        """A block a row, tile by tile; elements change between lanes, so that rows of any alignment are read whole."""
        writer, plan, wide = self.writer, self.plan, self.wide
        items, threads = plan.items, plan.threads
        writer.usage.helpers.add("block_scan")
        tile = writer.namer.fresh("tile_elements")
        own, before, total = (writer.namer.fresh(name) for name in ("own_total", "before", "tile_total"))
        place = [f"int const place = item * {threads} + threadIdx.x;", f"bool const in_row = tile + place < {end};",
                 f"{wide} const p = in_row ? tile + place : {end} - 1;"]
        mine = f"{tile}[threadIdx.x * {items + 1} + item]"  # One more than a lane's own: spread over the banks.

        def each_item(lines: list[str]) -> list[str]:
            return ["#pragma unroll", f"for (int item = 0; item < {items}; ++item) {{", *indented(lines), "}"]

        writer.open(frozenset({"p"}))
        value = writer.value(self.scan.source, self.nest.sources[id(self.scan)])
        writer.line(f"{tile}[place + place / {items}] = in_row ? {value.text} : {self.start};")
        loads = writer.close()
        writer.open(frozenset({"p"}))
        self.scanned = Scalar(f"{tile}[place + place / {items}]", len(writer.scopes) - 1)
        for store in self.nest.stores:
            writer.store(store.value, store.prim.dtype, store.index, writer.value(store.prim, store.index))
            writer.scopes[-1].lines[-1] = f"if (in_row) {writer.scopes[-1].lines[-1]}"
        stores = writer.close()
        scan = f"block_scan<{threads}, {self.row.join}>({own}, {self.ctype}({self.start}), {total})"
        body = [
            "// Load along the row.", *each_item([*place, *loads]), "__syncthreads();",
            f"// Each lane scans {items} neighbours.", f"{self.ctype} {own} = {self.start}, {total};",
            *each_item([f"{own} = {self._join(own, mine)};", f"{mine} = {own};"]),
            f"{self.ctype} const {before} = {self._join(carry, scan)};",
            *each_item([f"{mine} = {self._join(before, mine)};"]), "__syncthreads();",
            "// Store along the row.", *each_item([*place, *stores]),
            f"{carry} = {self._join(carry, total)};", "__syncthreads();  // All have read this tile.",
        ]
        for line in [f"__shared__ {self.ctype} {tile}[{threads * (items + 1)}];",
                     f"for ({wide} tile = {start}; tile < {end}; tile += {threads * items}) {{", *indented(body), "}"]:
            writer.line(line)

    def _store_tile(self, prefix: str, local: str, *, guard: bool) -> None:
        writer, width = self.writer, self.plan.width
        if width > 1:
            writer.open(frozenset({"k"}))
        place = f"{local}[{'k' if width > 1 else 0}]"
        name = writer.namer.fresh(self.scan.name)
        writer.line(f"{self.ctype} const {name} = {self._join(prefix, place)};")
        self.scanned = Scalar(name, len(writer.scopes) - 1)
        packs = []
        for store in self.nest.stores:
            pack = writer.store(store.value, store.prim.dtype, store.index, writer.value(store.prim, store.index))
            if pack:
                packs.append((pack[0], f"if (in_row) {pack[1]}" if guard else pack[1]))
            elif guard:
                writer.scopes[-1].lines[-1] = f"if (in_row) {writer.scopes[-1].lines[-1]}"
        self._close_lanes(packs)

    def _close_lanes(self, packs: list[tuple[str, str]]) -> None:
        writer, width = self.writer, self.plan.width
        if width == 1:
            return
        lanes = writer.close()
        for line in [*(d for d, _ in packs), "#pragma unroll", f"for (int k = 0; k < {width}; ++k) {{",
                     *indented(lanes), "}", *(s for _, s in packs)]:
            writer.line(line)
