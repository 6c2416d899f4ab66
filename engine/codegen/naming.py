"""Unique C++ identifiers inside one kernel."""

from __future__ import annotations

from engine.codegen.cpp import Names
from engine.codegen.helpers import SNIPPETS
from engine.codegen.scalar_ops import SCALAR_OPS

# What kernels declare without asking a Namer: loop variables and places.
_DECLARED = frozenset(
    """
    block chunk chunk_end chunk_start column flat held in_range in_row item k lane line p_flat pack part part_end
    part_start place r rank row_here step strip tile tile_column tile_line
    """.split()  # noqa: SIM905
) | {f"{stem}{n}{end}" for stem in ("i", "p", "row") for n in ("", *range(16)) for end in ("", "p")}
# Those, and names of functions that kernels call: neither a parameter nor a variable may hide them.
RESERVED = _DECLARED | frozenset(
    """
    thread blockIdx threadIdx blockDim gridDim exp log sqrt rsqrt tanh erf pow fabs floor
    ceil trunc nearbyint fmod isnan isinf isfinite signbit copysign hypot atan2 max min abs stream float double
    int bool auto bool case catch char class const default delete else enum extern for goto if inline long new
    operator private public register return short signed sizeof static struct switch template this throw
    typename union unsigned using void volatile while at c10 torch half assert int32_t int64_t uint8_t int8_t
    int16_t NAN INFINITY warpSize exp2 expm1 log2 log10 log1p sin cos tan asin acos atan sinh cosh asinh acosh
    atanh erfc erfinv lgamma Sum Product Largest Smallest Any All Best Moments MaxSum Pack load_pack store_pack
    """.split()  # noqa: SIM905
)


class Namer:
    """Gives each value of a kernel its name."""

    def __init__(self) -> None:
        self._names = Names(taken=RESERVED | SCALAR_OPS.keys() | SNIPPETS.keys())
        self._pointers: dict[str, str] = {}
        self._given: set[str] = set()

    @property
    def given(self) -> frozenset[str]:
        """Every identifier given so far."""
        return frozenset(self._given)

    def pointer(self, value: str) -> str:
        """The kernel parameter that points to a value; the same each time."""
        if value not in self._pointers:
            self._pointers[value] = self.fresh(value)
        return self._pointers[value]

    def fresh(self, base: str) -> str:
        """An identifier not used before, like `base`."""
        name = self._names.fresh(base)
        self._given.add(name)
        return name
