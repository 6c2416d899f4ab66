"""Windows over large grids that a block can walk down, one step or several: which they are, and in what sizes.

`streams_kernel` writes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from contracts.graph import Graph, Node, Ref
from contracts.tensors import TensorSpec
from engine.codegen import Tunable
from engine.codegen.index import Index, offset, variable
from engine.codegen.prims import Indices, Load, Map, Prim, View, Window, walk
from engine.codegen.program_ir import Nest
from engine.codegen.regions import Choices
from engine.codegen.scalar_ops import SCALAR_OPS
from engine.codegen.shifted_sums import SHIFTED_SUM, taps_of
from engine.codegen.writer import EXPENSIVE
from engine.records import Device

ITEM_BYTES = {"float32": 4, "float64": 8}
_LEAST_UNROLLED = 5  # Rows on their way, and one: enough bytes in flight for the memory's latency.
_MOST_UNROLLED = 3200  # Multiply-adds of a lane in the unrolled loop: more would not fit the instruction cache.
_MOST_REGISTERS = 232
_UNIFORM_REGISTERS = 50  # Of weights: the compiler keeps these apart from what each lane has of its own.
_SHARED_BYTES = 48 << 10  # Of one block, without asking for more.
_SHARED_OF_PROCESSOR = 227 << 10
_REGISTERS_OF_PROCESSOR = 1 << 16
_LARGE = 1 << 18  # Elements of a plane from which this comes first; reduced twins of large ones have so many.
_BALANCED_TAPS = 62  # Multiply-adds a point that take as long as reading and writing it; of either dtype on sm_90.
_LEAST_ROWS = 8
_SATURATED = 3  # Blocks at once that keep a multiprocessor's arithmetic busy.
LONGEST = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """Windows of a nest that follow each other, and what they run over.

    Attributes:
        windows: First to last, of equal geometry.
        row, column: Names of the loops over output rows and columns.
        height, width: Their sizes.
        index: The index of every window's result, over the loops.
        source: The value in memory under the first window.
        place: Offset of its elements, over the loops.
        kept: Steps whose result also needs the point itself, as it was before the step.
        work: Instructions of the costliest operator beside the windows; 0 where there is none.
    """

    windows: tuple[Window, ...]
    row: str
    column: str
    height: int
    width: int
    index: Indices
    source: Load
    place: Index
    kept: frozenset[int]
    work: int

    @property
    def steps(self) -> int:
        """Windows in a row."""
        return len(self.windows)

    @property
    def kernel(self) -> tuple[int, int]:
        """Taps down and across."""
        height, width = self.windows[0].kernel
        return height, width

    @property
    def padding(self) -> tuple[int, int]:
        """Zeros above and beside."""
        above, beside = self.windows[0].padding
        return above, beside

    @property
    def unrolled(self) -> int:
        """Rows that the inner loop takes: a multiple of the taps down, so that sums need not move."""
        taps = self.kernel[0]
        return taps * -(-_LEAST_UNROLLED // taps)

    @property
    def ahead(self) -> int:
        """Lines of the source that are on their way while one is worked on."""
        return self.unrolled - 1 - self.back(1)

    def back(self, step: int) -> int:
        """How many lines ago the point came by that a step finishes, where it is needed; else 0."""
        return self.kernel[0] - 1 - self.padding[0] if step in self.kept else 0

    @property
    def copied(self) -> int:
        """Elements that are copied at once: 16 bytes where rows begin and end so."""
        start = self.place.without(self.row).without(self.column)
        numbers = (self.place.coefficient(self.row), self.windows[0].source.shape[-1])
        each = self.aligned
        while any(number % each for number in numbers) or not start.divisible(each):
            each //= 2
        return each

    @property
    def aligned(self) -> int:
        """Elements of 16 bytes."""
        return 16 // ITEM_BYTES[self.source.dtype]

    @property
    def shift(self) -> int:
        """Elements between the start of a copied row and the first one needed, so that copies start where they may."""
        return -self.steps * self.padding[1] % self.copied

    @property
    def lead(self) -> int:
        """Lines that a block takes before the one that finishes its first row."""
        return self.steps * self.kernel[0] - 1

    def registers(self, columns: int) -> int:
        """Estimate for a lane of so many columns, from what the compiler took for sm_90."""
        words = ITEM_BYTES[self.source.dtype] // 4
        weights = {id(w.weight): prod(w.kernel) * words for w in self.windows if w.weight is not None}
        down, across = self.kernel
        sums = (self.steps * down * columns + columns + across - 1) * words
        others = 24 + 3 * self.steps + (self.work and (24 if self.work >= EXPENSIVE else 8))
        return sums + max(sum(weights.values()) - _UNIFORM_REGISTERS, 0) + others

    def fits(self, columns: int) -> bool:
        """True where a lane of so many columns has the registers, and its code is short enough."""
        taps = len(self.windows[0].factors) or prod(self.kernel)
        code = self.unrolled * self.steps * taps * columns
        return code <= _MOST_UNROLLED and self.registers(columns) <= _MOST_REGISTERS

    def columns(self) -> tuple[int, ...]:
        """Columns that a lane may own, the best first: as many as the widest access moves."""
        return tuple(count for count in (4, 2, 1) if count <= self.aligned and self.fits(count))


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPlan:
    """How a stream runs.

    Attributes:
        threads: Threads a block.
        columns: Neighbouring columns a lane owns.
        rows: Output rows a block writes.
        wide: Output columns a block writes.
        resident: Blocks that should be at work on a multiprocessor at once.
    """

    threads: int
    columns: int
    rows: int
    wide: int
    resident: int


def stream_of(nest: Nest, layouts: Mapping[str, TensorSpec]) -> Stream | None:
    """What could stream: windows of two dimensions, one or several of equal geometry, over a tensor in memory."""
    stored = [store.prim for store in nest.stores]
    windows = [prim for prim in walk(stored) if isinstance(prim, Window)]
    if not windows or len(windows) > LONGEST or not all(_plain(window) for window in windows):
        return None
    first, last = windows[0], windows[-1]
    alike = all((w.kernel, w.padding, w.shape, w.source.shape, w.compute) == (
        first.kernel, first.padding, first.shape, first.shape, first.compute) for w in windows[1:])
    if not alike or (len(windows) > 1 and first.source.shape != first.shape):
        return None
    kept: set[int] = set()
    above = stored
    for step, window in reversed([*enumerate(windows, 1)]):
        leaves = _leaves(above, window)
        beside = walk([leaf for leaf in leaves if leaf is not window and leaf is not window.source])
        if any(isinstance(prim, Window) for prim in beside):
            return None
        apart = window.source in beside or window.source.shape != window.shape
        if window.source in leaves and not apart and window.padding[0] < window.kernel[0]:
            kept.add(step)
        elif window.source in leaves and step > 1:
            return None
        above = [window.source]
    index = nest.at.get(id(last))
    if index is None or any(store.prim.shape != last.shape or store.index != index for store in nest.stores):
        return None
    loops = dict(nest.rows)
    found = [next((name for name, size in loops.items() if index[dim] == variable(name, size)), None)
             for dim in last.dims]
    row, column = found
    if row is None or column is None:
        return None
    if any({row, column} & index[d].variables() for d in range(len(index)) if d not in last.dims):
        return None
    source, at = first.source, index
    while isinstance(source, View):
        source, at = source.source, source.forward(at)
    if not isinstance(source, Load) or source.dtype not in ITEM_BYTES or source.dtype != last.dtype:
        return None
    place = offset(at, layouts[source.value].stride)
    rest = place.without(row).without(column)
    if place.coefficient(column) != 1 or not place.coefficient(row) or rest.variables() & {row, column}:
        return None
    stream = Stream(windows=tuple(windows), row=row, column=column, height=loops[row], width=loops[column],
                    index=index, source=source, place=place, kept=frozenset(kept), work=_work(stored))
    return stream if stream.columns() and threads_of(stream) else None


def _plain(window: Window) -> bool:
    return (
        window.kind == "sum" and len(window.dims) == 2 and window.dims == (len(window.shape) - 2, len(window.shape) - 1)
        and window.stride == (1, 1) and window.dilation == (1, 1) and min(window.kernel) > 1
        and window.dtype == window.compute
    )


def _leaves(values: Sequence[Prim], window: Window) -> list[Prim]:
    """What `values` are computed from at their own place, down to the window and what it folds."""
    found: list[Prim] = []
    stack = list(values)
    while stack:
        prim = stack.pop()
        if prim is not window and prim is not window.source and isinstance(prim, Map) and prim.shape == window.shape:
            stack.extend(prim.sources())
        elif prim not in found:
            found.append(prim)
    return found


def _work(values: Sequence[Prim]) -> int:
    maps = [prim for prim in walk(values) if isinstance(prim, Map)]
    return max((SCALAR_OPS[prim.op].cost if prim.op in SCALAR_OPS else 1 for prim in maps), default=0)


def is_large(stream: Stream) -> bool:
    """True where a plane fills many blocks and most of a block's columns lie in it."""
    return stream.height * stream.width >= _LARGE and stream.width >= 256


def steps_of(graph: Graph) -> tuple[int, ...]:
    """How many windows that follow each other one kernel may take, the default first; empty where none do."""
    depth: dict[str, int] = {}
    longest, last = 1, None
    for node in graph.nodes:
        out = next((name for name in node.outputs if name is not None), None)
        if out is None:
            continue
        reached = max((depth.get(name, 0) for name in node.refs()), default=0)
        if _taps(node, graph.values):
            depth[out] = reached + 1
            if depth[out] > longest:
                longest, last = depth[out], node
        elif node.base in SCALAR_OPS:
            depth[out] = reached
    if last is None:
        return ()
    counts = [count for count in (1, 2, LONGEST) if count <= longest]
    taps, plane = _taps(last, graph.values), prod(graph.values[last.out].shape[-2:])
    default = next((count for count in counts if count * taps >= _BALANCED_TAPS), counts[-1]) if plane >= _LARGE else 1
    return (default, *(count for count in counts if count != default))


def _taps(node: Node, values: Mapping[str, TensorSpec]) -> int:
    """Multiply-adds a point of a stencil that keeps the grid's size; 0 for other nodes."""
    if node.base == SHIFTED_SUM:
        keeps = values[_value(node, "self")].shape == values[node.out].shape
        return len(taps_of(node)) if keeps else 0
    if node.base not in ("conv2d", "convolution") or node.args.get("transposed"):
        return 0
    grid, weight = values[_value(node, "input")], values[_value(node, "weight")]
    depthwise = len(grid.shape) == 4 and weight.shape[1] == 1 and grid.shape == values[node.out].shape
    return prod(weight.shape[2:]) if depthwise else 0


def _value(node: Node, argument: str) -> str:
    value = node.args[argument]
    assert isinstance(value, Ref)
    return value.name


def threads_of(stream: Stream) -> tuple[int, ...]:
    """Threads of a block, the best first: rows fit into shared memory, and most columns are not repeated beside it."""
    columns, repeated = stream.columns(), (stream.steps - 1) * (stream.kernel[1] - 1)
    return tuple(
        count for count in (128, 64, 96, 256, 32)
        if shared_bytes(stream, count, columns[0]) <= _SHARED_BYTES and 2 * repeated < count * columns[-1]
    )


def stream_tunables(key: str, stream: Stream) -> tuple[Tunable, ...]:
    """Choices of a stream, beside whether to be one."""
    columns, threads = stream.columns(), threads_of(stream)
    choices = (
        Tunable(key=f"{key}.stream_threads", direction="P", values=threads,
                meaning="threads that walk down the grid side by side"),
        Tunable(key=f"{key}.waves", direction="P", values=(2, 4, 1, 8),
                meaning="how often blocks fill all multiprocessors; more of them repeat more rows between them"),
        Tunable(key=f"{key}.columns", direction="R", values=columns, meaning="neighbouring columns that a lane owns"),
    )
    return tuple(choice for choice in choices if len(choice.values) > 1)


def plan_stream(key: str, stream: Stream, planes: int, choices: Choices, device: Device) -> StreamPlan:
    """Settle sizes: the choices, and as many rows a block as fill the device's multiprocessors evenly."""
    chosen = {"stream_threads": threads_of(stream)[0], "waves": 2, "columns": stream.columns()[0]}
    for tunable in stream_tunables(key, stream):
        wish = choices.get(tunable.key, tunable.values[0])
        chosen[tunable.key.removeprefix(f"{key}.")] = int(wish if wish in tunable.values else tunable.values[0])
    threads, columns = chosen["stream_threads"], chosen["columns"]
    wide = threads * columns - (stream.steps - 1) * (stream.kernel[1] - 1)
    wide -= wide % stream.aligned
    by_registers = _REGISTERS_OF_PROCESSOR // (threads * -(-stream.registers(columns) // 8) * 8)
    by_memory = _SHARED_OF_PROCESSOR // (shared_bytes(stream, threads, columns) + 1024)
    resident = max(1, min(by_registers, by_memory, 2048 // threads))
    beside = planes * -(-stream.width // wide)
    rows = _rows(stream, beside, chosen["waves"] * resident * device.sm_count, device.sm_count)
    return StreamPlan(threads=threads, columns=columns, rows=rows, wide=wide, resident=resident)


def _rows(stream: Stream, beside: int, most: int, processors: int) -> int:
    """Rows of a block: few are repeated between blocks, and no multiprocessor gets far more of them than another."""
    costs: dict[int, int] = {}
    for lines in range(stream.unrolled, stream.height + stream.lead + stream.unrolled, stream.unrolled):
        rows = lines - stream.lead
        if rows >= min(_LEAST_ROWS, stream.height):
            blocks = -(-stream.height // rows) * beside
            costs[rows] = lines * max(-(-blocks // processors), _SATURATED) if blocks <= max(most, beside) else 0
    able = {rows: cost for rows, cost in costs.items() if cost} or costs
    best = min(able.values())
    return next(rows for rows, cost in able.items() if cost <= best * 1.02)


def slots(stream: Stream, step: int) -> int:
    """Rows of a step's source that are in shared memory at once; the inner loop's length is a multiple."""
    if step == 0:
        return stream.unrolled
    least = 2 + stream.back(step + 1)
    return next(count for count in range(least, stream.unrolled + 1) if stream.unrolled % count == 0)


def packs(stream: Stream, step: int, columns: int) -> int:
    """Accesses in which a lane reads its part of a row for a step."""
    return -(-(columns + stream.kernel[1] - 1 + (stream.shift if step == 1 else 0)) // columns)


def row_length(stream: Stream, threads: int, columns: int) -> int:
    """Elements of a row in shared memory: the last lane reads beyond its own columns."""
    return -(-(threads + packs(stream, 1, columns) - 1) * columns // stream.aligned) * stream.aligned


def shared_bytes(stream: Stream, threads: int, columns: int) -> int:
    """Shared memory of a block."""
    rows = sum(slots(stream, step) for step in range(stream.steps))
    return rows * row_length(stream, threads, columns) * ITEM_BYTES[stream.source.dtype]
