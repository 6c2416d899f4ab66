"""How a reduction kernel maps rows to threads. Rules use device facts; every choice is a tunable.

Three mappings:
* `group`: 1 to 32 neighbouring lanes of a warp share a row that is contiguous in memory; several rows a block;
* `block`: a block owns a row;
* `column`: neighbouring lanes own neighbouring rows, because rows are what is contiguous; threadIdx.y shares a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from contracts.tensors import TensorSpec
from engine.codegen import Tunable
from engine.codegen.program_ir import Nest
from engine.codegen.regions import Choices
from engine.codegen.writer import Usage
from engine.records import Device

MOST_RESIDENT = 32  # 4-byte registers a thread may spend on one row.
SM_COUNT = 132  # Where the device does not say: the H200's.
LARGEST_CLUSTER = 8  # Blocks that every device with clusters can run together.
RESERVED_SHARED_BYTES = 4096  # For what reductions keep there.


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPlan:
    """One mapping.

    Attributes:
        mapping: `group`, `block` or `column`.
        sharing: Threads that share a row.
        rows: Rows a block.
        width: Neighbouring elements a thread loads at once.
        resident: The row stays in registers between passes.
        items: Packs of a row a thread handles.
        unroll: Iterations of the streaming loop in flight.
        splits: Blocks that share a row; more than 1 needs a second kernel.
        cluster: Blocks of a cluster that hold a row in their shared memory between passes; 0: none do.
    """

    mapping: str
    sharing: int
    rows: int
    width: int
    resident: bool
    items: int
    unroll: int
    splits: int = 1
    cluster: int = 0

    @property
    def threads(self) -> int:
        """Threads a block."""
        return self.sharing * self.rows if self.mapping != "block" else self.sharing


def power_of_two(value: float) -> int:
    """The smallest power of two that is not below `value`, at least 1."""
    result = 1
    while result < value:
        result *= 2
    return result


def contiguous_side(nest: Nest, usage: Usage, layouts: Mapping[str, TensorSpec]) -> str:
    """`inner` or `rows`: along which the most bytes lie next to each other."""
    inner = {name for name, size in nest.inner if size > 1}
    sizes = dict((*nest.rows, *nest.inner))
    votes = {"inner": 0, "rows": 0}
    for value, position, _ in usage.accesses:
        plain = [(abs(c), atom.name) for atom, c in position.terms if hasattr(atom, "size")]
        if not plain:
            continue
        _, name = min(plain)
        touched = layouts[value].item_bytes * prod(sizes.get(name, 1) for name in position.variables())
        votes["inner" if name in inner else "rows"] += min(touched, layouts[value].size_bytes)
    return "rows" if votes["rows"] > votes["inner"] else "inner"


def plan_rows(
    key: str, nest: Nest, usage: Usage, layouts: Mapping[str, TensorSpec], choices: Choices, device: Device
) -> tuple[RowPlan, tuple[Tunable, ...]]:
    """The default mapping for a nest, moved by `choices`."""
    side = contiguous_side(nest, usage, layouts)
    sm_count = device.sm_count or SM_COUNT
    full = {v for v, i, store in usage.accesses if not store and i.variables() & {n for n, _ in nest.inner}}
    words = max(sum(max(layouts[v].item_bytes, 4) / 4 for v in full), 1)
    several = len(nest.reduces) > 1 or any(
        s.variables() & {n for n, _ in nest.inner} for s in nest.stores
    )
    if side == "rows":
        return _columns(key, nest, choices, sm_count, words, several)
    held = _Held(tuple(layouts[v].item_bytes for v in full), device) if several and full else None
    return _contiguous(key, nest, usage, layouts, choices, sm_count, words, several, held)


@dataclass(frozen=True, slots=True)
class _Held:
    """Rows that are read more than once, and could stay on the chip."""

    item_bytes: tuple[int, ...]  # Of an element of each input.
    device: Device

    @property
    def most_blocks(self) -> int:
        """Blocks of the largest cluster that every device of this architecture has."""
        return LARGEST_CLUSTER if float(self.device.sm) >= 9.0 else 1

    def blocks(self, packs: int, width: int) -> int:
        """The fewest blocks whose shared memory holds a row; 0 where the device cannot."""
        for blocks in (1, 2, 4, 8):
            if blocks <= self.most_blocks and self.fits(packs, width, blocks, _cluster_threads(packs, blocks)):
                return blocks
        return 0

    def fits(self, packs: int, width: int, blocks: int, threads: int) -> bool:
        """True when so many blocks of so many threads hold a row."""
        # Packs are held as they are in memory, single elements as they are computed with; each input from 16 bytes on.
        items = -(-packs // (blocks * threads)) * threads * width
        wanted = sum(-(-items * (each if width > 1 else max(each, 4)) // 16) * 16 for each in self.item_bytes)
        return wanted <= self.device.shared_bytes_per_block - RESERVED_SHARED_BYTES


def _cluster_threads(packs: int, blocks: int) -> int:
    """Threads a block: one or two blocks fill a multiprocessor's shared memory, so they must be large."""
    return max(128, min(1024, power_of_two(packs / blocks / 4)))


def _pick(tunable: Tunable, choices: Choices) -> int:
    value = choices.get(tunable.key, tunable.values[0])
    return int(value if value in tunable.values else tunable.values[0])


def _ordered(default: int, values: tuple[int, ...]) -> tuple[int, ...]:
    return (default, *(v for v in values if v != default))


def _contiguous(
    key: str, nest: Nest, usage: Usage, layouts: Mapping[str, TensorSpec], choices: Choices, sm_count: int,
    words: float, several: bool, held: _Held | None,
) -> tuple[RowPlan, tuple[Tunable, ...]]:
    from engine.codegen.pointwise import vector_width

    rows, length = nest.row_count, nest.row_length
    widest = vector_width(nest.inner, layouts, usage)
    width_choice = Tunable(key=f"{key}.width", direction="M", values=_ordered(widest, tuple(
        w for w in (16, 8, 4, 2, 1) if w < widest)), meaning="neighbouring elements a thread loads at once")
    width = _pick(width_choice, choices)
    packs = length // width
    # Aim at four packs a thread: enough loads in flight, few enough registers.
    wanted = min(power_of_two(packs / 4 if packs > 64 else packs), 1024)
    if rows < 4 * sm_count:
        wanted = min(power_of_two(packs), 1024)  # Few rows: more threads each, so that the device is full.
    if (wanted >= 64 and length > 1024) or (wanted <= 32 and packs <= 64):
        default = wanted
    else:
        default = 32 if length <= 1024 and rows >= sm_count else max(wanted, 64)
    sharing_choice = Tunable(
        key=f"{key}.threads_per_row", direction="P",
        values=_ordered(default, tuple(t for t in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
                                       if default / 4 <= t <= default * 4)),
        meaning="threads that share a row",
    )
    sharing = _pick(sharing_choice, choices)
    items = -(-packs // sharing)
    fits = items * width * words <= MOST_RESIDENT
    # A row that fits in registers is still better split when nearly all of the device would idle.
    idle = rows * 8 < sm_count
    splits = _splits(rows, length, sm_count) if not fits or not several or idle else 1
    if sharing <= 32:
        rows_default = max(1, min(256 // sharing, power_of_two(rows / sm_count)))
        rows_choice = Tunable(key=f"{key}.rows_per_block", direction="P", values=_ordered(
            rows_default, tuple(r for r in (1, 2, 4, 8, 16, 32, 64, 128) if 32 <= r * sharing <= 512)),
            meaning="rows a block")
        per_block = _pick(rows_choice, choices)
        per_block = max(per_block, 32 // sharing)
        mapping = "group"
    else:
        rows_choice, per_block, mapping = None, 1, "block"
    tunables = [width_choice, sharing_choice, *([rows_choice] if rows_choice else [])]
    if held is not None and not fits and (fewest := held.blocks(packs, width)):
        cluster_choice = Tunable(key=f"{key}.cluster", direction="R", values=(
            0, fewest, *(blocks for blocks in (2 * fewest,) if blocks <= held.most_blocks and held.fits(
                packs, width, blocks, _cluster_threads(packs, blocks)))),
            meaning="blocks that hold a row in their shared memory from pass to pass; 0: it is read again")
        cluster = _pick(cluster_choice, choices)
        if cluster:
            threads_choice = Tunable(key=f"{key}.cluster_threads", direction="P", values=_ordered(
                _cluster_threads(packs, cluster), tuple(t for t in (1024, 512, 256) if held.fits(
                    packs, width, cluster, t))), meaning="threads of each of these blocks")
            threads = _pick(threads_choice, choices)
            flight_choice = Tunable(key=f"{key}.unroll", direction="R", values=(4, 8, 2),
                                    meaning="packs in flight in the loop over a row")
            return RowPlan(mapping="block", sharing=threads, rows=1, width=width, resident=True, cluster=cluster,
                           items=-(-packs // (cluster * threads)), unroll=_pick(flight_choice, choices)), (
                width_choice, cluster_choice, threads_choice, flight_choice)
        tunables.append(cluster_choice)
    resident = fits and several and splits == 1
    unroll = 1
    if not resident:
        unroll_choice = Tunable(key=f"{key}.unroll", direction="R", values=(4, 1, 2, 8),
                                meaning="packs in flight in the loop over a row")
        unroll = _pick(unroll_choice, choices)
        tunables.append(unroll_choice)
    if splits > 1 and not resident:
        split_choice = Tunable(key=f"{key}.splits", direction="P", values=_ordered(splits, tuple(
            s for s in (splits // 4, splits // 2, splits * 2) if 1 < s <= 1024)), meaning="blocks that share a row")
        splits = _pick(split_choice, choices)
        tunables.append(split_choice)
        return RowPlan(mapping="block", sharing=256, rows=1, width=width, resident=False,
                       items=-(-packs // 256), unroll=unroll, splits=splits), tuple(tunables)
    return RowPlan(mapping=mapping, sharing=sharing, rows=per_block, width=width, resident=resident, items=items,
                   unroll=unroll), tuple(tunables)


def _splits(rows: int, length: int, sm_count: int) -> int:
    """Blocks a row so that about four blocks of 256 threads run on each multiprocessor."""
    if rows >= 2 * sm_count or length < 16384:
        return 1
    wanted = power_of_two(4 * sm_count / rows)
    return max(1, min(wanted, power_of_two(length / 4096), 1024))


def _columns(
    key: str, nest: Nest, choices: Choices, sm_count: int, words: float, several: bool,
) -> tuple[RowPlan, tuple[Tunable, ...]]:
    rows, length = nest.row_count, nest.row_length
    # Threads to fill the device; a row is shared only as far as needed, for each sharer costs a barrier.
    wanted = power_of_two(sm_count * 1024 / max(rows, 1))
    depth = max(1, min(wanted, power_of_two(max(length // 4, 1)), 32))
    if several and length * words > MOST_RESIDENT and length * words <= 32 * MOST_RESIDENT:
        depth = max(depth, min(power_of_two(length * words / MOST_RESIDENT), 32))
    depth_choice = Tunable(key=f"{key}.threads_per_row", direction="P", values=_ordered(depth, tuple(
        d for d in (1, 2, 4, 8, 16, 32) if d <= max(length, 1))), meaning="threads that share a row")
    depth = _pick(depth_choice, choices)
    columns = 32 if depth > 4 else 256 // depth
    items = -(-length // depth)
    resident = several and items * words <= MOST_RESIDENT
    tunables = [depth_choice]
    unroll = 1
    if not resident:
        unroll_choice = Tunable(key=f"{key}.unroll", direction="R", values=(4, 1, 2, 8),
                                meaning="elements in flight in the loop over a row")
        unroll = _pick(unroll_choice, choices)
        tunables.append(unroll_choice)
    splits = 1
    blocks = -(-rows // columns)
    if not resident and blocks < sm_count and items >= 32:
        splits = max(1, min(power_of_two(2 * sm_count / blocks), power_of_two(items / 16)))
        if splits > 1:
            split_choice = Tunable(key=f"{key}.splits", direction="P", values=_ordered(splits, tuple(
                s for s in (splits // 4, splits // 2, splits * 2) if 1 < s <= 1024)),
                meaning="blocks that share a row")
            splits = _pick(split_choice, choices)
            tunables.append(split_choice)
    return RowPlan(mapping="column", sharing=depth, rows=columns, width=1, resident=resident, items=items,
                   unroll=unroll, splits=splits), tuple(tunables)
