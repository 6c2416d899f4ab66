"""Products on Tensor Cores: in what arithmetic, which tile, how many stages. The kernel is in `tensor_core_kernels`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from contracts.tensors import ITEM_BYTES
from engine.codegen import Tunable
from engine.codegen.products import (
    ExternCode,
    Operand,
    Product,
    auto_splits,
    fitting_vector,
    kernel_of,
    launch_lines,
    problem_struct,
    sum_the_splits,
)
from engine.records import Device

# Tile rows and columns, and the part of it that one warp computes. 64 x 32 is what fits twice into its registers: sums
# of the tile at hand, and of all before.
TILES: dict[str, tuple[int, int, int, int]] = {
    "128x128": (128, 128, 64, 32), "128x64": (128, 64, 32, 32), "64x128": (64, 128, 32, 32), "64x64": (64, 64, 32, 32),
    "32x128": (32, 128, 32, 32), "128x32": (128, 32, 32, 32), "32x64": (32, 64, 16, 32), "64x32": (64, 32, 32, 16),
}
_ARITHMETICS = {"compensated": "CompensatedTf32", "tf32": "Tf32"}
_HALVES = {"float16": "HalfPairs", "bfloat16": "Bfloat16Pairs"}
FIRST_SM = 8.0
_SMALLEST_SHARED_BYTES = 99 << 10  # Of a block, on any GPU with these instructions.


def serves(product: Product, device: Device) -> bool:
    """True when Tensor Cores take the factors, and the product is large enough to fill their tiles."""
    known = product.dtype in ("float32", *_HALVES)
    return known and sm_of(device) >= FIRST_SM and kernel_of(product) == "tile_product" and product.k >= 16


def write(
    product: Product, *, choices: Mapping[str, int | str | bool], device: Device, options: str, tf32: bool
) -> ExternCode:
    """Write the kernel of a product that `serves` accepts.

    Args:
        product: What to compute.
        choices: Values of tunables that differ from the default.
        device: To fill with blocks.
        options: C++ of type TensorOptions, for temporaries.
        tf32: The reference itself rounds fp32 factors to TF32.
    """
    code = ExternCode(templates=[f"wide_{product.dtype}", "tile_place"])

    def choose(label: str, direction: str, values: tuple[int | str, ...], meaning: str) -> int | str:
        tunable = Tunable(key=f"{product.name}.{label}", direction=direction, values=tuple(dict.fromkeys(values)),
                          weight=product.weight, meaning=meaning)
        code.tunables.append(tunable)
        value = choices.get(tunable.key, values[0])
        return value if value in tunable.values and not isinstance(value, bool) else values[0]

    arithmetic = _HALVES.get(product.dtype, "CompensatedTf32")
    if product.dtype == "float32" and tf32:
        arithmetic = _ARITHMETICS[str(choose(
            "arithmetic", "T", ("tf32", "compensated"),
            f"factors of {product.name} rounded to TF32 as in the reference, or as two TF32 numbers"))]
    default = default_tile(product, device)
    tile = str(choose("tile", "P", (default, *TILES), f"results a block computes in {product.name}, rows x columns"))
    tile_m, tile_n, warp_m, warp_n = TILES[tile]
    item = ITEM_BYTES[product.dtype]
    depths = (32, 16) if item == 4 else (32, 64)
    depth = int(choose("depth", "R", depths, f"terms of the sums in {product.name} that a stage holds"))
    limit = device.shared_bytes_per_block or _SMALLEST_SHARED_BYTES
    per_stage = (_tile_elements(product.a, tile_m, depth, item) + _tile_elements(product.b, tile_n, depth, item)) * item
    fitting = [stages for stages in (4, 3, 2, 5, 6) if stages * per_stage <= limit]
    stages = int(choose("stages", "R", tuple(fitting), f"tiles of {product.name} in shared memory at a time"))
    blocks = product.batch * -(-product.m // tile_m) * -(-product.n // tile_n)
    auto = auto_splits(product, blocks, depth, device)
    splits = int(choose("splits", "P", (auto, 1, 2, 4, 8),
                        f"parts into which the long sums of {product.name} are split over blocks"))
    threads = 32 * (tile_m // warp_m) * (tile_n // warp_n)
    numbers = {
        "TILE_M": tile_m, "TILE_N": tile_n, "TILE_K": depth, "WARP_M": warp_m, "WARP_N": warp_n, "THREADS": threads,
        "STAGES": stages, "SHARED_BYTES": stages * per_stage, "SPLITS": splits,
        "A_VECTOR": fitting_vector(product.a, tile_m, depth, threads),
        "B_VECTOR": fitting_vector(product.b, tile_n, depth, threads),
    }
    code.templates += [arithmetic, "plain_sum", "tensor_core_product"]
    code.kernels.append(f"tensor_core_product<{product.name}>")
    named = replace(product, constants=(*product.constants, f"using Arithmetic = {arithmetic};"))
    code.device_code = problem_struct(named, numbers)
    partial = sum_the_splits(product, splits, code, options)
    kernel = f"tensor_core_product<{product.name}>"
    code.host_code.append(
        f"C10_CUDA_CHECK(cudaFuncSetAttribute({kernel}, cudaFuncAttributeMaxDynamicSharedMemorySize, "
        f"{product.name}::SHARED_BYTES));")
    code.host_code += launch_lines(product, "tensor_core_product", blocks * splits, threads, partial,
                                   shared_bytes=f"{product.name}::SHARED_BYTES")
    if arithmetic == "CompensatedTf32":
        code.notes.append(f"{product.name}: fp32 products as three TF32 ones on Tensor Cores, with fp32's accuracy")
    return code


def default_tile(product: Product, device: Device) -> str:
    """The largest tile that the shape fills and that gives every multiprocessor a block."""
    fitting = [
        name for name, (rows, columns, *_) in TILES.items() if rows < 2 * product.m and columns < 2 * product.n
    ] or ["32x64"]
    for name in fitting:
        rows, columns, *_ = TILES[name]
        if product.batch * -(-product.m // rows) * -(-product.n // columns) >= max(device.sm_count, 1):
            return name
    return "64x64" if "64x64" in fitting else fitting[-1]


def _tile_elements(operand: Operand, across: int, depth: int, item_bytes: int) -> int:
    """As `SharedTile` counts them."""
    if operand.along_k:
        return across * (depth + 16 // item_bytes)
    return depth * (across + 32 // item_bytes)


def sm_of(device: Device) -> float:
    """The compute capability; 0 where there is none."""
    try:
        return float(device.sm)
    except (TypeError, ValueError):
        return 0.0
