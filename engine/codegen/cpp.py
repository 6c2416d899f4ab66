"""C++ spellings of the graph's constants and names."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from engine.codegen import CannotWrite


def words(text: str) -> frozenset[str]:
    """The words of a text, as a set."""
    return frozenset(text.split())


SCALAR_TYPE: dict[str, str] = {
    "float64": "at::kDouble", "float32": "at::kFloat", "float16": "at::kHalf", "bfloat16": "at::kBFloat16",
    "int64": "at::kLong", "int32": "at::kInt", "int16": "at::kShort", "int8": "at::kChar", "uint8": "at::kByte",
    "bool": "at::kBool", "complex64": "at::kComplexFloat", "complex128": "at::ScalarType::ComplexDouble",
}
CPP_TYPE: dict[str, str] = {
    "float64": "double", "float32": "float", "float16": "__half", "bfloat16": "__nv_bfloat16",
    "int64": "int64_t", "int32": "int32_t", "int16": "int16_t", "int8": "int8_t", "uint8": "uint8_t", "bool": "bool",
}
MEMORY_FORMAT: dict[str, str] = {
    "contiguous_format": "at::MemoryFormat::Contiguous", "preserve_format": "at::MemoryFormat::Preserve",
    "channels_last": "at::MemoryFormat::ChannelsLast", "channels_last_3d": "at::MemoryFormat::ChannelsLast3d",
}

# Words that a value may not be called in our sources: C++ keywords, and names our own text uses.
_TAKEN = words(
    """alignas alignof and and_eq asm auto bitand bitor bool break case catch char char8_t char16_t char32_t class
    compl concept const consteval constexpr constinit const_cast continue co_await co_return co_yield decltype
    default delete do double dynamic_cast else enum explicit export extern false float for friend goto if inline int
    long mutable namespace new noexcept not not_eq nullptr operator or or_eq private protected public register
    reinterpret_cast requires return short signed sizeof static static_assert static_cast struct switch template
    this thread_local throw true try typedef typeid typename union unsigned using virtual void volatile wchar_t
    while xor xor_eq std at c10 torch main stream guard device checked restrided half linux unix errno assert
    INFINITY NAN"""
)


def integer(value: int) -> str:
    """A 64-bit integer literal."""
    if value == -(2**63):
        return "std::numeric_limits<int64_t>::min()"
    return str(value)


def number(value: float | bool) -> str:
    """A literal that keeps the constant's type: `true`, `3`, `1e-05`, an infinity."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return integer(value)
    if math.isnan(value):
        return "std::numeric_limits<double>::quiet_NaN()"
    if math.isinf(value):
        return ("-" if value < 0 else "") + "std::numeric_limits<double>::infinity()"
    return repr(value)


def sizes(values: Iterable[int]) -> str:
    """A braced list: `{64, 3, 7, 7}`."""
    return "{" + ", ".join(integer(v) for v in values) + "}"


def int_list(values: Iterable[int]) -> str:
    """A typed list, where braces alone would not say what they are."""
    return f"at::IntArrayRef({sizes(values)})"


def text(value: str) -> str:
    """A string literal."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def scalar_type(dtype: str) -> str:
    """The ATen constant of a dtype.

    Raises:
        CannotWrite: The dtype has no constant we know.
    """
    if dtype not in SCALAR_TYPE:
        raise CannotWrite(f"the dtype {dtype} has no spelling in C++ here")
    return SCALAR_TYPE[dtype]


class Names:
    """Gives every value one C++ identifier that nothing else in the function has."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._of: dict[str, str] = {}
        self._used = set(taken)

    def reserve(self, value: str, identifier: str) -> None:
        """Bind `value` to an identifier that is already decided (an argument)."""
        self._of[value] = identifier
        self._used.add(identifier)

    def __call__(self, value: str) -> str:
        """The identifier of `value`."""
        if value not in self._of:
            self._of[value] = self.fresh(value)
        return self._of[value]

    def fresh(self, wish: str) -> str:
        """A new identifier like `wish`."""
        base = re.sub(r"\W", "_", wish).strip("_") or "value"
        base = re.sub(r"__+", "_", base)
        if base[0].isdigit() or base in _TAKEN:
            base = f"value_{base}"
        name, number_ = base, 2
        while name in self._used:
            name, number_ = f"{base}_{number_}", number_ + 1
        self._used.add(name)
        return name
