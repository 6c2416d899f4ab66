"""Own kernels for a product: the problem struct, tiles chosen by shape, launch text. Used by matmul and convolution."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from contracts.tensors import ITEM_BYTES
from engine.codegen import CannotWrite, Tunable
from engine.codegen.cpp import CPP_TYPE
from engine.codegen.tile_kernels import TEMPLATES
from engine.records import Device

SUM_TYPE = {"float64": "double", "float32": "float", "float16": "float", "bfloat16": "float"}
# Tile rows, columns, depth, and results a thread; the first that fits a shape is the default.
TILES: dict[str, tuple[int, int, int, int, int]] = {
    "128x128": (128, 128, 16, 8, 8), "128x64": (128, 64, 16, 8, 4), "64x128": (64, 128, 16, 4, 8),
    "64x64": (64, 64, 16, 4, 4), "32x64": (32, 64, 16, 4, 4), "64x32": (64, 32, 16, 4, 4),
    "32x32": (32, 32, 16, 4, 4), "16x128": (16, 128, 16, 4, 4), "128x16": (128, 16, 16, 4, 4),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Operand:
    """Where a problem's A or B lies.

    Attributes:
        along_k: Neighbouring threads read neighbouring k, else neighbouring rows (columns).
        vector: Elements a thread can read at once along that direction.
        inside: Every element within M, N and K is there.
        body: Lines of `a_at` or `b_at` that return the address of an element, or nullptr where it counts as zero;
            they may use `batch`, `k` and `m` or `n`.
    """

    along_k: bool
    vector: int
    body: tuple[str, ...]
    inside: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """A product to be written with own kernels.

    Attributes:
        name: C++ identifier; the struct's name and the prefix of tunable keys.
        title: One sentence for the struct's comment.
        dtype: Element type by torch's name.
        batch, m, n, k: Sizes.
        a, b: Operands.
        store: Lines of `store`, using `arguments`, `batch`, `m`, `n` and `sum`.
        pointers: Argument name to (C++ type without the pointer, expression of the at::Tensor, is written).
        constants: Further `static constexpr` lines.
        weight: Share of the module's time, for tunables.
    """

    name: str
    title: str
    dtype: str
    batch: int
    m: int
    n: int
    k: int
    a: Operand
    b: Operand
    store: tuple[str, ...]
    pointers: Mapping[str, tuple[str, str, bool]]
    constants: tuple[str, ...] = ()
    weight: float = 0.0


@dataclass(slots=True, kw_only=True)
class ExternCode:
    """The text of one node or group written outside of the fused regions.

    Attributes:
        host_code: Lines for the host function.
        device_code: Structs and kernels for file scope.
        templates: Names of shared templates (`tile_kernels.TEMPLATES`).
        library_text: Host helpers to paste once a file.
        tunables, kernels, library_calls, torch_calls, notes: As in `Program`.
    """

    host_code: list[str] = field(default_factory=list)
    device_code: str = ""
    templates: list[str] = field(default_factory=list)
    library_text: list[str] = field(default_factory=list)
    tunables: list[Tunable] = field(default_factory=list)
    kernels: list[str] = field(default_factory=list)
    library_calls: list[str] = field(default_factory=list)
    torch_calls: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def write_product(
    product: Product, *, choices: Mapping[str, int | str | bool], device: Device, options: str
) -> ExternCode:
    """Write the kernels of a product.

    Args:
        product: What to compute.
        choices: Values of tunables that differ from the default.
        device: To fill with blocks.
        options: C++ of type TensorOptions, for temporaries.

    Raises:
        CannotWrite: The element type has no product here.
    """
    if product.dtype not in SUM_TYPE:
        raise CannotWrite(f"a matrix product of {product.dtype} has no own kernel")
    kernel = kernel_of(product)
    code = ExternCode(templates=[f"wide_{product.dtype}", "load_vector", kernel], kernels=[f"{kernel}<{product.name}>"])
    if kernel == "tile_product":
        _write_tiles(product, code, choices, device, options)
    else:
        vector = min(product.a.vector, product.b.vector) if kernel == "row_product" else 1
        struct = problem_struct(product, {"A_VECTOR": vector, "B_VECTOR": vector})
        results = product.batch * product.m * product.n
        per_block = 8 if kernel == "row_product" else 256
        code.device_code = struct
        code.host_code = launch_lines(product, kernel, -(-results // per_block), 256, None)
    return code


def kernel_of(product: Product) -> str:
    """The template that suits the shape."""
    small = min(product.m, product.n)
    if small <= 4 and product.a.along_k and product.b.along_k and product.k >= 64:
        return "row_product"
    if small < 8 or product.k < 4 or product.batch * product.m * product.n < 256:
        return "direct_product"
    return "tile_product"


def default_tile(product: Product, device: Device) -> str:
    """The largest tile that fits the shape and gives every multiprocessor a block."""
    fitting = [
        name for name, (tm, tn, *_) in TILES.items()
        if tm <= _up(product.m) and tn <= _up(product.n) and not (product.dtype == "float64" and tm * tn > 4096)
    ] or ["32x32"]
    for name in fitting:
        tm, tn, *_ = TILES[name]
        blocks = product.batch * -(-product.m // tm) * -(-product.n // tn)
        if blocks >= max(device.sm_count, 1):
            return name
    # Too little to fill the device: split k rather than shrink tiles to nothing.
    return "64x64" if "64x64" in fitting else fitting[-1]


def _up(size: int) -> int:
    return 1 << max(4, math.ceil(math.log2(max(size, 1))))


def _write_tiles(
    product: Product, code: ExternCode, choices: Mapping[str, int | str | bool], device: Device, options: str
) -> None:
    default = default_tile(product, device)
    key = f"{product.name}.tile"
    tile = str(choices.get(key, default))
    tile = tile if tile in TILES else default
    tm, tn, tk, rows, cols = TILES[tile]
    if product.dtype == "float64":
        tk = 8
    others = [name for name in TILES if name != default and not (product.dtype == "float64" and name == "128x128")]
    code.tunables.append(Tunable(
        key=key, direction="P", values=(default, *others), weight=product.weight,
        meaning=f"results a block computes in {product.name}, rows x columns",
    ))
    blocks = product.batch * -(-product.m // tm) * -(-product.n // tn)
    auto = auto_splits(product, blocks, tk, device)
    split_key = f"{product.name}.splits"
    splits = int(choices.get(split_key, auto))
    values = tuple(dict.fromkeys((auto, 1, 2, 4, 8)))
    code.tunables.append(Tunable(
        key=split_key, direction="P", values=values, weight=product.weight,
        meaning=f"parts into which the long sums of {product.name} are split over blocks",
    ))
    threads = (tm // rows) * (tn // cols)
    numbers = {
        "TILE_M": tm, "TILE_N": tn, "TILE_K": tk, "ROWS": rows, "COLS": cols, "THREADS": threads, "SPLITS": splits,
        "A_VECTOR": fitting_vector(product.a, tm, tk, threads),
        "B_VECTOR": fitting_vector(product.b, tn, tk, threads),
    }
    code.templates.append("tile_place")
    code.device_code = problem_struct(product, numbers)
    partial = sum_the_splits(product, splits, code, options)
    code.host_code += launch_lines(product, "tile_product", blocks * splits, threads, partial)


def sum_the_splits(product: Product, splits: int, code: ExternCode, options: str) -> str | None:
    """Where partial sums go, allocated; the kernel that adds them up follows the product's own."""
    if splits == 1:
        return None
    partial = f"{product.name}_partial"
    elements = splits * product.batch * product.m * product.n
    scalar = "at::kDouble" if product.dtype == "float64" else "at::kFloat"
    code.host_code.append(f"at::Tensor {partial} = at::empty({{{elements}}}, {options}.dtype({scalar}));")
    code.templates.append("sum_splits")
    code.kernels.append(f"sum_splits<{product.name}>")
    return partial


def auto_splits(product: Product, blocks: int, tile_k: int, device: Device) -> int:
    """Parts of the sums, so that a product with few results but long sums fills the device."""
    wanted = max(device.sm_count, 1)
    if blocks >= wanted or product.k < 16 * tile_k:
        return 1
    return max(1, min(-(-2 * wanted // blocks), product.k // (8 * tile_k), 64))


def fitting_vector(operand: Operand, across: int, tile_k: int, threads: int) -> int:
    """The widest access with which all threads of a block have the same part of a tile to read."""
    vector = operand.vector
    while vector > 1 and ((across * tile_k) % (threads * vector) or (tile_k if operand.along_k else across) % vector):
        vector //= 2
    return vector


def launch_lines(
    product: Product, kernel: str, blocks: int, threads: int, partial: str | None, *, shared_bytes: str = "0"
) -> list[str]:
    """The launch; where sums are partial, that of the kernel that adds them up too."""
    if blocks >= 2**31:
        raise CannotWrite(f"{product.name} needs more blocks than a launch can have")
    if blocks == 0:
        return []  # No results.
    values = [
        f"static_cast<{'' if written else 'const '}{ctype}*>({expression}.data_ptr())"
        for ctype, expression, written in product.pointers.values()
    ]
    if partial:
        values.append(f"static_cast<{SUM_TYPE[product.dtype]}*>({partial}.data_ptr())")
    else:
        values.append("nullptr")
    lines = [
        f"const {product.name}::Arguments {product.name}_arguments{{{', '.join(values)}}};",
        f"{kernel}<{product.name}><<<{blocks}, {threads}, {shared_bytes}, stream>>>({product.name}_arguments);",
        "C10_CUDA_KERNEL_LAUNCH_CHECK();",
    ]
    if partial:
        results = product.batch * product.m * product.n
        lines += [
            f"sum_splits<{product.name}><<<{-(-results // 256)}, 256, 0, stream>>>({product.name}_arguments);",
            "C10_CUDA_KERNEL_LAUNCH_CHECK();",
        ]
    return lines


def problem_struct(product: Product, numbers: Mapping[str, int]) -> str:
    """The description that the templates take: sizes, addresses, what to do with a sum.

    Args:
        product: What to compute.
        numbers: Further constants: the tile's sizes, and A_VECTOR and B_VECTOR.
    """
    element, total = CPP_TYPE[product.dtype], SUM_TYPE[product.dtype]
    constants = "".join(f"  static constexpr int {name} = {value};\n" for name, value in numbers.items())
    whole_k = product.k % numbers.get("TILE_K", product.k + 1) == 0
    always = [
        str(operand.inside and whole_k and size % numbers.get(tile, 1) == 0).lower()
        for operand, size, tile in ((product.a, product.m, "TILE_M"), (product.b, product.n, "TILE_N"))
    ]
    extra = "".join(f"  {line}\n" for line in product.constants)
    pointers = "".join(
        f"    {'' if written else 'const '}{ctype}* {name};\n" for name, (ctype, _, written) in product.pointers.items()
    )
    a_body, b_body, store = (
        "".join(f"    {line}\n" for line in lines) for lines in (product.a.body, product.b.body, product.store)
    )
    return f"""\
// {product.title}
struct {product.name} {{
  using Element = {element};
  using Sum = {total};
  static constexpr int BATCH = {product.batch}, M = {product.m}, N = {product.n}, K = {product.k};
  static constexpr bool A_ALONG_K = {str(product.a.along_k).lower()}, B_ALONG_K = {str(product.b.along_k).lower()};
  static constexpr bool A_ALWAYS = {always[0]}, B_ALWAYS = {always[1]};  // No tile reaches beyond.
{constants}{extra}\
  struct Arguments {{
{pointers}    {total}* partial;
  }};
  static __device__ __forceinline__ const Element* a_at(const Arguments& arguments, int batch, int m, int k) {{
{a_body}  }}
  static __device__ __forceinline__ const Element* b_at(const Arguments& arguments, int batch, int k, int n) {{
{b_body}  }}
  static __device__ __forceinline__ void store(const Arguments& arguments, int batch, int m, int n, Sum sum) {{
{store}  }}
}};
"""


def vector_width(dtype: str, *divisors: int) -> int:
    """The widest access of at most 16 bytes that all `divisors` (strides, sizes, in elements) allow."""
    vector = 16 // ITEM_BYTES[dtype]
    while vector > 1 and any(divisor % vector for divisor in divisors):
        vector //= 2
    return min(vector, 4)


def template_text(names: list[str]) -> str:
    """The templates used, in the order of definition."""
    return "\n".join(text for name, text in TEMPLATES.items() if name in names)
