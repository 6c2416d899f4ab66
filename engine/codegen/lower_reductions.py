"""Reductions, softmax and norms of vectors as primitive values."""

from __future__ import annotations

import math
from collections.abc import Sequence

from contracts.graph import Node
from engine.codegen.lower import Lowered, Lowering, cast, elementwise, lowers, widen
from engine.codegen.lower_views import reshaped, unsqueezed
from engine.codegen.prims import Field, Fill, Map, NotFusibleError, Prim, Reduce


def reduced(source: Prim, kind: str, dims: Sequence[int], name: str, *, keepdim: bool = False,
            part: str = "result") -> Prim:
    """One part of a reduction over `dims`."""
    return parts_of(source, kind, dims, name, keepdim=keepdim, parts=(part,))[0]


def parts_of(source: Prim, kind: str, dims: Sequence[int], name: str, *, parts: Sequence[str],
             keepdim: bool = False) -> list[Prim]:
    """Several parts of one reduction over `dims`."""
    rank = len(source.shape)
    folded = tuple(sorted({d % rank for d in dims})) if rank else ()
    if all(source.shape[d] == 1 for d in folded) and (single := _of_one_element(source, kind, name)):
        # A fold of one element would share the loop of what made it, and count it once for each turn.
        shape = tuple(1 if d in folded else n for d, n in enumerate(source.shape) if keepdim or d not in folded)
        return [reshaped(single[part], shape, name if len(parts) == 1 else f"{name}_{part}") for part in parts]
    if source.numel == 0 or not folded:
        raise NotFusibleError(f"{name}: nothing to fold")
    kept = tuple(n for d, n in enumerate(source.shape) if d not in folded)
    reduce = Reduce(name=name, dtype=source.dtype, shape=kept, kind=kind, source=source, dims=folded,
                    compute=source.dtype)
    out: list[Prim] = []
    for part in parts:
        dtype = "int64" if part == "at" else "bool" if kind in ("any", "all") else source.dtype
        prim: Prim = Field(name=name if len(parts) == 1 else f"{name}_{part}", dtype=dtype, shape=kept, reduce=reduce,
                           part=part)
        out.append(unsqueezed(prim, folded, prim.name) if keepdim else prim)
    return out


def _of_one_element(source: Prim, kind: str, name: str) -> dict[str, Prim]:
    """What a fold of a single element gives, by part; empty for kinds to which its repetition makes no difference."""
    if kind in ("sum", "product", "largest", "smallest"):
        return {"result": source}
    if kind == "moments":
        # NaN where the element is NaN or infinite.
        return {"mean": source, "squares": elementwise(f"{name}_squares", "sub", source, source, dtype=source.dtype)}
    if kind == "max_sum":
        one = Fill(name="number", dtype=source.dtype, shape=source.shape, number=1.0)
        return {"largest": source, "sum": one}
    return {}


def dims_of(low: Lowering, node: Node, source: Prim, argument: str = "dim") -> tuple[int, ...]:
    """The dimensions a node folds; none given means all."""
    dims = low.integers(node, argument)
    rank = len(source.shape)
    return tuple(d % rank for d in dims) if dims and rank else tuple(range(rank))


def mean_of(source: Prim, dims: Sequence[int], name: str, *, keepdim: bool) -> Prim:
    """Arithmetic mean."""
    total = reduced(source, "sum", dims, f"{name}_sum", keepdim=keepdim)
    count = math.prod(source.shape[d] for d in {d % len(source.shape) for d in dims})
    return elementwise(name, "div", total, float(count), dtype=source.dtype)


def _keepdim(node: Node) -> bool:
    return bool(node.args.get("keepdim", False))


@lowers("sum", "nansum")
def _sum(low: Lowering, node: Node) -> Lowered:
    source = cast(low.tensor(node), low.out_dtype(node))
    name = low.out_name(node)
    if node.base == "nansum":
        source = elementwise(name, "nan_to_num", source, dtype=source.dtype, nan=0.0, posinf=math.inf,
                             neginf=-math.inf)
    return (reduced(source, "sum", dims_of(low, node, source), name, keepdim=_keepdim(node)),)


@lowers("mean")
def _mean(low: Lowering, node: Node) -> Lowered:
    source = cast(low.tensor(node), low.out_dtype(node))
    return (mean_of(source, dims_of(low, node, source), low.out_name(node), keepdim=_keepdim(node)),)


@lowers("prod")
def _prod(low: Lowering, node: Node) -> Lowered:
    source = cast(low.tensor(node), low.out_dtype(node))
    return (reduced(source, "product", dims_of(low, node, source), low.out_name(node), keepdim=_keepdim(node)),)


@lowers("amax", "amin")
def _extremes(low: Lowering, node: Node) -> Lowered:
    source = low.tensor(node)
    kind = "largest" if node.base == "amax" else "smallest"
    return (reduced(source, kind, dims_of(low, node, source), low.out_name(node), keepdim=_keepdim(node)),)


@lowers("max", "min")
def _max_min(low: Lowering, node: Node) -> Lowered:
    source = low.tensor(node)
    large = node.base == "max"
    if "other" in node.args:
        op = "maximum" if large else "minimum"
        dtype = low.out_dtype(node)
        return (elementwise(low.out_name(node), op, source, low.tensor(node, "other"), dtype=dtype),)
    if "dim" not in node.args:
        kind = "largest" if large else "smallest"
        return (reduced(source, kind, range(len(source.shape)), low.out_name(node)),)
    dims = dims_of(low, node, source)
    value_name, at_name = (*node.outputs, None)[:2]
    keepdim = _keepdim(node)
    name = value_name or at_name or node.name
    if at_name is None:
        return (reduced(source, "largest" if large else "smallest", dims, name, keepdim=keepdim), None)
    kind = "largest_at" if large else "smallest_at"
    return parts_of(source, kind, dims, name, parts=("value", "at"), keepdim=keepdim)


@lowers("argmax", "argmin")
def _arg_extremes(low: Lowering, node: Node) -> Lowered:
    source = low.tensor(node)
    kind = "largest_at" if node.base == "argmax" else "smallest_at"
    keepdim = _keepdim(node)
    return (reduced(source, kind, dims_of(low, node, source), low.out_name(node), keepdim=keepdim, part="at"),)


@lowers("any", "all")
def _any_all(low: Lowering, node: Node) -> Lowered:
    source = cast(low.tensor(node), "bool")
    dims = dims_of(low, node, source)
    result = reduced(source, node.base, dims, low.out_name(node), keepdim=_keepdim(node))
    return (cast(result, low.out_dtype(node)),)


@lowers("count_nonzero")
def _count_nonzero(low: Lowering, node: Node) -> Lowered:
    source = cast(cast(low.tensor(node), "bool"), "int64")
    return (reduced(source, "sum", dims_of(low, node, source), low.out_name(node)),)


@lowers("var", "std", "var_mean", "std_mean")
def _variance(low: Lowering, node: Node) -> Lowered:
    source = low.tensor(node)
    dims = dims_of(low, node, source)
    name = node.outputs[0] or node.name
    mean, squares = parts_of(source, "moments", dims, name, parts=("mean", "squares"), keepdim=_keepdim(node))
    count = math.prod(source.shape[d] for d in dims)
    correction = node.args.get("correction", 1 if node.args.get("unbiased", True) else 0)
    correction = 1 if correction is None else correction
    if not isinstance(correction, (bool, int, float)):
        raise NotFusibleError(f"{node.op}: the correction is not a number")
    variance = elementwise(f"{name}_variance", "div", squares, float(max(count - correction, 0)), dtype=source.dtype)
    spread = elementwise(name, "sqrt", variance, dtype=source.dtype) if node.base.startswith("std") else variance
    return (spread, updated_mean(mean, squares, f"{name}_mean")) if node.base.endswith("_mean") else (spread,)


def updated_mean(mean: Prim, squares: Prim, name: str) -> Prim:
    """The mean as PyTorch's running update (Welford) leaves it: NaN once an infinity was among the values."""
    lost = Map(name=f"{name}_lost", dtype="bool", shape=mean.shape, op="isnan", args=(squares,), compute=squares.dtype)
    return elementwise(name, "where", lost, squares, mean, dtype=mean.dtype)


@lowers("logsumexp")
def _logsumexp(low: Lowering, node: Node) -> Lowered:
    source = cast(low.tensor(node), low.out_dtype(node))
    dims = dims_of(low, node, source)
    return (log_sum_exp(source, dims, low.out_name(node), keepdim=_keepdim(node)),)


def log_sum_exp(source: Prim, dims: Sequence[int], name: str, *, keepdim: bool) -> Prim:
    """log(sum(exp(source))), stable."""
    if all(source.shape[d] == 1 for d in dims):
        return reduced(source, "sum", dims, name, keepdim=keepdim)
    largest, total = parts_of(source, "max_sum", dims, name, parts=("largest", "sum"), keepdim=keepdim)
    log = elementwise(f"{name}_log", "log", total, dtype=source.dtype)
    finite = elementwise(f"{name}_finite", "add", log, largest, dtype=source.dtype)
    infinite = Map(name=f"{name}_infinite", dtype="bool", shape=largest.shape, op="isinf", args=(largest,),
                   compute=source.dtype)
    return elementwise(name, "where", infinite, largest, finite, dtype=source.dtype)


@lowers("softmax", "_softmax", "log_softmax", "_log_softmax", "_safe_softmax", "softmin")
def _softmax(low: Lowering, node: Node) -> Lowered:
    if node.base == "_safe_softmax":
        raise NotFusibleError("rows that are masked away entirely need their own rule")
    source = cast(low.tensor(node), low.out_dtype(node))
    if not source.shape:
        raise NotFusibleError("softmax of a single number")
    dim = int(low.number(node, "dim", -1)) % len(source.shape)
    name = low.out_name(node)
    result = log_softmax(source, dim, name) if "log" in node.base else softmax(source, dim, name)
    return (result,)


def softmax(source: Prim, dim: int, name: str) -> Prim:
    """exp(x - max) / sum(exp(x - max))."""
    dtype = source.dtype
    largest, total = parts_of(source, "max_sum", (dim,), name, parts=("largest", "sum"), keepdim=True)
    shifted = elementwise(f"{name}_shifted", "sub", source, largest, dtype=dtype)
    power = elementwise(f"{name}_exp", "exp", shifted, dtype=dtype)
    return elementwise(name, "div", power, total, dtype=dtype)


def log_softmax(source: Prim, dim: int, name: str) -> Prim:
    """(x - max) - log(sum(exp(x - max)))."""
    dtype = source.dtype
    largest, total = parts_of(source, "max_sum", (dim,), name, parts=("largest", "sum"), keepdim=True)
    shifted = elementwise(f"{name}_shifted", "sub", source, largest, dtype=dtype)
    log = elementwise(f"{name}_log", "log", total, dtype=dtype)
    return elementwise(name, "sub", shifted, log, dtype=dtype)


@lowers("linalg_vector_norm", "norm", "frobenius_norm")
def _vector_norm(low: Lowering, node: Node) -> Lowered:
    source = cast(low.tensor(node), low.out_dtype(node))
    order = node.args.get("ord", node.args.get("p", 2))
    order = 2 if order is None or node.base == "frobenius_norm" else order
    if not isinstance(order, (int, float)):
        raise NotFusibleError(f"{node.op}: the order is not a number")
    dims = dims_of(low, node, source)
    return (vector_norm(source, float(order), dims, low.out_name(node), keepdim=_keepdim(node)),)


def vector_norm(source: Prim, order: float, dims: Sequence[int], name: str, *, keepdim: bool) -> Prim:
    """(sum |x|^order)^(1/order), with the limits for 0 and infinities."""
    dtype = source.dtype
    size = elementwise(f"{name}_abs", "abs", source, dtype=dtype)
    if math.isinf(order):
        return reduced(size, "largest" if order > 0 else "smallest", dims, name, keepdim=keepdim)
    if order == 0:
        nonzero = Map(name=f"{name}_nonzero", dtype="bool", shape=source.shape, op="ne", compute=dtype,
                      args=(source, widen(Fill(name="number", dtype="float64", shape=(), number=0.0), dtype)))
        return reduced(cast(nonzero, dtype), "sum", dims, name, keepdim=keepdim)
    if order == 1:
        return reduced(size, "sum", dims, name, keepdim=keepdim)
    if order == 2:
        squares = elementwise(f"{name}_squares", "square", source, dtype=dtype)
        return elementwise(name, "sqrt", reduced(squares, "sum", dims, f"{name}_sum", keepdim=keepdim), dtype=dtype)
    powers = elementwise(f"{name}_powers", "pow", size, order, dtype=dtype)
    total = reduced(powers, "sum", dims, f"{name}_sum", keepdim=keepdim)
    return elementwise(name, "pow", total, 1.0 / order, dtype=dtype)
