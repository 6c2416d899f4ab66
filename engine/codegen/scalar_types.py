"""Element types inside kernels: what a dtype computes in, how it converts, and how numbers are written."""

from __future__ import annotations

import math
import struct

from contracts.tensors import FLOATING

# Half types compute in float, as PyTorch's own GPU kernels do; all others compute in themselves.
COMPUTE_TYPE: dict[str, str] = {
    "float64": "double", "float32": "float", "float16": "float", "bfloat16": "float", "int64": "int64_t",
    "int32": "int32_t", "int16": "int16_t", "int8": "int8_t", "uint8": "uint8_t", "bool": "bool",
}
SMALL_INTEGERS = frozenset({"int16_t", "int8_t", "uint8_t", "bool"})
SUPPORTED = frozenset(COMPUTE_TYPE)

_RANK = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64")


def category(dtype: str) -> int:
    """0 for bool, 1 for integers, 2 for floating point."""
    return 0 if dtype == "bool" else 2 if dtype in FLOATING else 1


def join(a: str, b: str) -> str:
    """The smallest dtype both convert to (torch.promote_types)."""
    if a == b:
        return a
    pair = {a, b}
    if pair == {"float16", "bfloat16"}:
        return "float32"
    if "uint8" in pair and pair & {"int8"}:
        return "int16"
    return max(a, b, key=_RANK.index)


def promote(tensors: list[tuple[str, int]], scalars: list[object]) -> str:
    """torch.result_type: tensors with dimensions outrank 0-d tensors, which outrank Python numbers.

    Args:
        tensors: dtype and number of dimensions of each tensor operand.
        scalars: Python numbers among the operands.
    """
    levels = [
        [dtype for dtype, dimensions in tensors if dimensions > 0],
        [dtype for dtype, dimensions in tensors if dimensions == 0],
        ["bool" if isinstance(s, bool) else "int64" if isinstance(s, int) else "float32" for s in scalars],
    ]
    result: str | None = None
    for level in levels:
        if not level:
            continue
        joined = level[0]
        for dtype in level[1:]:
            joined = join(joined, dtype)
        if result is None or category(joined) > category(result):
            result = joined
    return result or "float32"


def literal(value: float | bool, ctype: str) -> str:
    """A C++ literal of compute type `ctype`."""
    if ctype == "bool":
        return "true" if value else "false"
    if ctype in ("float", "double"):
        number = float(value)
        suffix = "f" if ctype == "float" else ""
        if math.isnan(number):
            return "NAN" if ctype == "float" else "double(NAN)"
        if ctype == "float":
            number = _to_float32(number)
        if math.isinf(number):
            text = "INFINITY" if ctype == "float" else "double(INFINITY)"
            return text if number > 0 else f"-{text}"
        text = _shortest(number) if ctype == "float" else repr(number)
        if "." not in text and "e" not in text:
            text += ".0"
        return text + suffix
    whole = int(value)
    if ctype == "int64_t":
        return "INT64_MIN" if whole == -(2**63) else f"{whole}L"
    if ctype == "int32_t":
        return "INT32_MIN" if whole == -(2**31) else str(whole)
    return f"{ctype}({whole})"


def bitwise_extreme(dtype: str, *, largest: bool) -> float | int:
    """The value a max (or min) over nothing starts from."""
    if category(dtype) == 2:
        return -math.inf if largest else math.inf
    if dtype == "bool":
        return not largest
    bits = {"int64": 64, "int32": 32, "int16": 16, "int8": 8, "uint8": 8}[dtype]
    low, high = (0, 255) if dtype == "uint8" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return low if largest else high


def convert(text: str, source: str, target: str) -> str:
    """Convert an expression between dtypes as torch's `to` does. Compute types in, compute type out."""
    if source == target:
        return text
    from_type, to_type = COMPUTE_TYPE[source], COMPUTE_TYPE[target]
    if target in ("float16", "bfloat16") and category(source) == 2 and source != target:
        rounding = "__float2half_rn" if target == "float16" else "__float2bfloat16_rn"
        back = "__half2float" if target == "float16" else "__bfloat162float"
        value = text if from_type == "float" else f"static_cast<float>({text})"
        return f"{back}({rounding}({value}))"
    if to_type == "bool":
        return f"({text}) != {literal(0, from_type)}"
    if from_type == to_type:
        return text
    return f"static_cast<{to_type}>({text})"


def storage_to_compute(text: str, dtype: str) -> str:
    """Read an element: storage type to compute type."""
    if dtype == "float16":
        return f"__half2float({text})"
    if dtype == "bfloat16":
        return f"__bfloat162float({text})"
    return text


def compute_to_storage(text: str, dtype: str) -> str:
    """Write an element: compute type to storage type."""
    if dtype == "float16":
        return f"__float2half_rn({text})"
    if dtype == "bfloat16":
        return f"__float2bfloat16_rn({text})"
    return text


def round_number(value: float | bool, dtype: str) -> float | bool:
    """A number as it is after storing it in `dtype`."""
    if dtype == "float16":
        try:
            return struct.unpack("e", struct.pack("e", value))[0]
        except OverflowError:
            return math.copysign(math.inf, value)
    if dtype == "bfloat16" and math.isfinite(value):
        bits = struct.unpack("I", struct.pack("f", _to_float32(float(value))))[0]
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
        return struct.unpack("f", struct.pack("I", bits))[0]
    return value


def _to_float32(value: float) -> float:
    try:
        return struct.unpack("f", struct.pack("f", value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)


def _shortest(value: float) -> str:
    if value == int(value) and abs(value) < 1e7:
        return repr(float(value))
    for digits in range(1, 10):
        text = f"{value:.{digits}g}"
        if _to_float32(float(text)) == value:
            return text
    return repr(value)
