"""Two-statistic reductions as two plain ones, for kernels that hold the whole row and can look at it twice."""

from __future__ import annotations

from collections.abc import Sequence

from engine.codegen.lower import elementwise
from engine.codegen.lower_views import unsqueezed
from engine.codegen.prims import Field, Prim, Reduce
from engine.codegen.program_ir import rewrite


def exact(outputs: Sequence[tuple[str, Prim]]) -> list[tuple[str, Prim]]:
    """`moments` as sum, then sum of squared distances; `max_sum` as maximum, then sum of exponentials."""
    made: dict[int, dict[str, Prim]] = {}

    def change(prim: Prim) -> Prim | None:
        if not isinstance(prim, Field) or prim.reduce.kind not in ("moments", "max_sum"):
            return None
        reduce = prim.reduce
        parts = made.setdefault(id(reduce), {})
        if not parts:
            parts.update(_moments(reduce) if reduce.kind == "moments" else _max_sum(reduce))
        return parts[prim.part]

    return rewrite(outputs, change)


def _plain(reduce: Reduce, kind: str, source: Prim, name: str) -> Field:
    inner = Reduce(name=name, dtype=source.dtype, shape=reduce.shape, kind=kind, source=source, dims=reduce.dims,
                   compute=reduce.compute)
    return Field(name=name, dtype=source.dtype, shape=reduce.shape, reduce=inner, part="result")


def _moments(reduce: Reduce) -> dict[str, Prim]:
    source, dtype, name = reduce.source, reduce.source.dtype, reduce.name
    total = _plain(reduce, "sum", source, f"{name}_sum")
    mean = elementwise(f"{name}_mean", "div", total, float(reduce.count), dtype=dtype)
    distance = elementwise(f"{name}_distance", "sub", source, unsqueezed(mean, reduce.dims, mean.name), dtype=dtype)
    squares = elementwise(f"{name}_square", "square", distance, dtype=dtype)
    return {"mean": mean, "squares": _plain(reduce, "sum", squares, f"{name}_squares")}


def _max_sum(reduce: Reduce) -> dict[str, Prim]:
    source, dtype, name = reduce.source, reduce.source.dtype, reduce.name
    largest = _plain(reduce, "largest", source, f"{name}_max")
    wide = unsqueezed(largest, reduce.dims, largest.name)
    shifted = elementwise(f"{name}_shifted", "sub", source, wide, dtype=dtype)
    total = _plain(reduce, "sum", elementwise(f"{name}_exp", "exp", shifted, dtype=dtype), f"{name}_sum")
    return {"largest": largest, "sum": total}
