"""Element-wise kernels between tensors with different fastest dimensions, through tiles in shared memory.

Read straight, either the loads or the stores of such a kernel would touch one sector an element. A block therefore
loads a 32 x 32 tile along the inputs' fastest dimension, and computes and stores it along the output's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from contracts.tensors import TensorSpec
from engine.codegen import Tunable
from engine.codegen.cpp import CPP_TYPE
from engine.codegen.index import Index, Var, to_cpp, variable
from engine.codegen.kernel_text import Kernel, header, index_type, launch, signature
from engine.codegen.naming import Namer
from engine.codegen.program_ir import Nest
from engine.codegen.rows_kernel import decode, indented
from engine.codegen.writer import Lanes, Usage, Writer

TILE = 32  # A warp's lanes in both directions.
SHARED_BYTES = 48 << 10
WORTH = 0.25  # Share of the bytes that must be read across before a tile pays.


def crossing(nest: Nest, layouts: Mapping[str, TensorSpec], usage: Usage) -> tuple[str, list[tuple[str, Index]]]:
    """The loop along which inputs are contiguous though the output is not, and those loads; ("", []) if none."""
    loops = [name for name, _ in nest.rows]
    sizes = dict(nest.rows)
    if len(loops) < 2 or usage.windows:
        return "", []
    fast = loops[-1]
    total = sum(layouts[value].size_bytes for value in {v for v, _, _ in usage.accesses})
    found: dict[str, dict[tuple[str, Index], int]] = {}
    for value, position, store in usage.accesses:
        plain = {atom.name: factor for atom, factor in position.terms if isinstance(atom, Var)}
        if store or len(plain) != len(position.terms) or abs(plain.get(fast, 0)) <= 1:
            continue
        for name in loops[:-1]:
            if plain.get(name) == 1 and sizes[name] >= TILE // 2:
                found.setdefault(name, {})[value, position] = layouts[value].size_bytes
    if not found or sizes[fast] < TILE // 2:
        return "", []
    loop = max(found, key=lambda name: sum(found[name].values()))
    loads = found[loop]
    shared = sum(TILE * (TILE + 1) * layouts[value].item_bytes for value, _ in loads)
    if sum(loads.values()) < WORTH * total or shared > SHARED_BYTES:
        return "", []
    return loop, list(loads)


def _fill(tile: str, pointer: str, position: Index, layout: TensorSpec, wide: str) -> list[str]:
    """One element of a tile. Joined tensors cover parts of the loop: outside of its part a tensor is not read."""
    element = f"{tile}[step + threadIdx.y][threadIdx.x]"
    low, high = position.range
    extent = 1 + sum((size - 1) * stride for size, stride in zip(layout.shape, layout.stride, strict=True))
    if low >= 0 and high < extent:
        return [f"{element} = {pointer}[{to_cpp(position)}];"]
    place = f"{tile}_place"
    return [f"{wide} const {place} = {to_cpp(position)};",
            f"if ({place} >= 0 && {place} < {extent}) {element} = {pointer}[{place}];"]


def write_transpose(
    name: str,
    title: Sequence[str],
    nest: Nest,
    across: str,
    *,
    layouts: Mapping[str, TensorSpec],
    names: Mapping[str, str],
    depth: int,
    tunables: tuple[Tunable, ...],
    loads: Sequence[tuple[str, Index]],
) -> Kernel:
    """The kernel; `across` is the inputs' fastest loop, `depth` the warps of a block."""
    fast = nest.rows[-1][0]
    sizes = dict(nest.rows)
    others = [(loop, size) for loop, size in nest.rows if loop not in (fast, across)]
    renamed = {fast: variable("column", sizes[fast]), across: variable("line", sizes[across])}
    fixed = [(f"i{position}", size) for position, (_, size) in enumerate(others)]
    renamed |= {old: variable(new, size) for (old, _), (new, size) in zip(others, fixed, strict=True)}
    nest = nest.substitute(renamed, (), ())
    wide = index_type(prod(sizes.values()), nest, layouts)
    writer = Writer(layouts, Namer(), Lanes())
    for store in nest.stores:
        writer.namer.pointer(store.value)
    fills, declared = [], []
    for value, position in loads:
        moved = position.substitute(renamed)
        tile = writer.namer.fresh(f"{value}_tile")
        dtype = CPP_TYPE[layouts[value].dtype]
        declared.append(f"__shared__ {dtype} {tile}[{TILE}][{TILE} + 1];  // + 1 spreads columns over the banks.")
        fills += _fill(tile, writer.namer.pointer(value), moved, layouts[value], wide)
        writer.staged[value, moved] = f"{tile}[threadIdx.x][step + threadIdx.y]"
        writer.usage.loads[value] = None
    writer.open(frozenset(loop for loop, _ in fixed))
    writer.open(frozenset({"column", "line"}))
    for store in nest.stores:
        writer.store(store.value, store.prim.dtype, store.index, writer.value(store.prim, store.index))
    core = writer.close()
    constant = writer.close()
    tiles = [-(-sizes[across] // TILE), -(-sizes[fast] // TILE)]
    blocks = [*fixed, ("tile_line", tiles[0]), ("tile_column", tiles[1])]
    in_range = [f"{axis} < {size}" for axis, size in (("line", sizes[across]), ("column", sizes[fast])) if size % TILE]

    def sweep(body: Sequence[str], line: str, column: str) -> list[str]:
        place = [f"{wide} const line = tile_line * {TILE} + {line};",
                 f"{wide} const column = tile_column * {TILE} + {column};"]
        inner = [f"if ({' && '.join(in_range)}) {{", *indented(body), "}"] if in_range else list(body)
        return ["#pragma unroll", f"for (int step = 0; step < {TILE}; step += {depth}) {{",
                *indented([*place, *inner]), "}"]

    lines = [
        *declared, f"{wide} const block = blockIdx.x;", *decode(blocks, "block", wide), *constant, "",
        "// Load along the inputs' fastest dimension.",
        *sweep(fills, "threadIdx.x", "step + threadIdx.y"), "__syncthreads();", "",
        "// Compute and store along the output's.",
        *sweep(core, "step + threadIdx.y", "threadIdx.x"),
    ]
    usage = writer.usage
    grid, block = prod(size for _, size in blocks), f"dim3({TILE}, {depth})"
    text = "\n".join([
        *header(name, title, layouts, usage, launch=f"grid {grid}, block {block}", tunables={"depth": depth},
                idea="Inputs and output have different fastest dimensions; tiles in shared memory keep both loads and "
                "stores contiguous."),
        f"__global__ void __launch_bounds__({TILE * depth})",
        signature(name, usage, writer.namer, layouts),
        *indented(lines), "}",
    ])
    return Kernel(name=name, text=text, helpers=frozenset(usage.helpers), identifiers=writer.namer.given,
                  tunables=tunables,
                  host=tuple(launch(name, grid, block, usage, layouts, names)))
