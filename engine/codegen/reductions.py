"""How each reduction accumulates: its accumulator, how a value enters it, how two join, what can be read from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engine.codegen.prims import NotFusibleError
from engine.codegen.scalar_types import COMPUTE_TYPE, bitwise_extreme, literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduction:
    """One way to fold values.

    Attributes:
        join: Name of the device struct that joins two accumulators.
        helpers: Snippets needed.
        kind: `plain` (the accumulator is the result), `best`, `moments` or `max_sum`.
        start: Number a plain accumulator starts from; None where the dtype decides.
        update: Expression of a plain accumulator `{a}` and a value `{v}`.
        parts: Result parts that `Field` may name, and their member of the accumulator.
        fields: Members an accumulator is stored as between kernels, with their C++ type (`T` is the compute type).
    """

    join: str
    helpers: tuple[str, ...]
    kind: str = "plain"
    start: float | None = None
    update: str = ""
    parts: Mapping[str, str]
    fields: Mapping[str, str]


_PLAIN = {"result": ""}

REDUCTIONS: dict[str, Reduction] = {
    "sum": Reduction(join="Sum", helpers=("Sum",), start=0, update="{a} + {v}", parts=_PLAIN, fields={"": "T"}),
    "product": Reduction(
        join="Product", helpers=("Product",), start=1, update="{a} * {v}", parts=_PLAIN, fields={"": "T"}
    ),
    "largest": Reduction(
        join="Largest", helpers=("Largest", "max_nan"), update="max_nan({a}, {v})", parts=_PLAIN, fields={"": "T"}
    ),
    "smallest": Reduction(
        join="Smallest", helpers=("Smallest", "min_nan"), update="min_nan({a}, {v})", parts=_PLAIN, fields={"": "T"}
    ),
    "any": Reduction(join="Any", helpers=("Any",), start=0, update="{a} | int32_t({v})", parts=_PLAIN,
                     fields={"": "T"}),
    "all": Reduction(join="All", helpers=("All",), start=1, update="{a} & int32_t({v})", parts=_PLAIN,
                     fields={"": "T"}),
    "largest_at": Reduction(
        join="LargestAt", helpers=("Best",), kind="best", parts={"value": "value", "at": "at"},
        fields={"value": "T", "at": "int64_t"},
    ),
    "smallest_at": Reduction(
        join="SmallestAt", helpers=("Best",), kind="best", parts={"value": "value", "at": "at"},
        fields={"value": "T", "at": "int64_t"},
    ),
    "moments": Reduction(
        join="JoinMoments", helpers=("Moments",), kind="moments", parts={"mean": "mean", "squares": "squares"},
        fields={"count": "T", "mean": "T", "squares": "T"},
    ),
    "max_sum": Reduction(
        join="JoinMaxSum", helpers=("MaxSum",), kind="max_sum", parts={"largest": "top()", "sum": "total()"},
        fields={"largest": "T", "sum": "T"},
    ),
}


def accumulator_dtype(kind: str, compute: str) -> str:
    """The dtype a reduction accumulates in."""
    return "int32" if kind in ("any", "all") else compute


def accumulator_type(kind: str, compute: str) -> str:
    """C++ type that one thread keeps while it reads values."""
    number = COMPUTE_TYPE[accumulator_dtype(kind, compute)]
    shapes = {"best": f"Best<{number}>", "moments": f"MomentCollector<{number}>", "max_sum": f"MaxSum<{number}>"}
    return shapes.get(REDUCTIONS[kind].kind, number)


def joined_type(kind: str, compute: str) -> str:
    """C++ type of a joined result."""
    number = COMPUTE_TYPE[accumulator_dtype(kind, compute)]
    return f"Moments<{number}>" if REDUCTIONS[kind].kind == "moments" else accumulator_type(kind, compute)


def start_text(kind: str, compute: str) -> str:
    """Initialiser of the accumulator."""
    reduction = REDUCTIONS[kind]
    dtype = accumulator_dtype(kind, compute)
    number = COMPUTE_TYPE[dtype]
    if reduction.kind == "moments":
        return "{}"
    if reduction.kind == "max_sum":
        return f"{{{literal(float('-inf'), number)}, {literal(0, number)}}}"
    if reduction.kind == "best":
        worst = literal(bitwise_extreme(dtype, largest=kind == "largest_at"), number)
        return f"{{{worst}, INT64_MAX}}"
    if reduction.start is None:
        return literal(bitwise_extreme(dtype, largest=kind == "largest"), number)
    return literal(reduction.start, number)


def update_text(kind: str, compute: str, accumulator: str, value: str, position: str) -> str:
    """The statement by which a value enters the accumulator."""
    reduction = REDUCTIONS[kind]
    if reduction.kind in ("moments", "max_sum"):
        return f"{accumulator}.add({value});"
    if reduction.kind == "best":
        candidate = f"{accumulator_type(kind, compute)}{{{value}, {position}}}"
        return f"{accumulator} = {reduction.join}::combine({accumulator}, {candidate});"
    return f"{accumulator} = {reduction.update.format(a=accumulator, v=value)};"


def part_text(kind: str, part: str, joined: str) -> str:
    """The expression of one part of a joined accumulator."""
    parts = REDUCTIONS[kind].parts
    if part not in parts:
        raise NotFusibleError(f"{kind} has no part {part}")
    member = parts[part]
    return f"{joined}.{member}" if member else joined
