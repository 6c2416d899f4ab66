"""Pooling, nearest up-sampling and depthwise convolution as primitive values."""

from __future__ import annotations

import math

from contracts.graph import Node
from engine.codegen.index import Index
from engine.codegen.lower import Lowered, Lowering, cast, elementwise, lowers
from engine.codegen.lower_reductions import mean_of, reduced
from engine.codegen.lower_views import reshaped
from engine.codegen.prims import Coordinate, Fill, Indices, NotFusibleError, Prim, View, Window

WIDEST_CONVOLUTION = 81  # Taps of a depthwise kernel beyond which a library is the better choice.


def _sizes(low: Lowering, node: Node, argument: str, rank: int, default: int) -> tuple[int, ...]:
    values = low.integers(node, argument)
    if not values:
        return (default,) * rank
    return values * rank if len(values) == 1 else values


@lowers("max_pool1d", "max_pool2d", "max_pool3d", "max_pool2d_with_indices", "max_pool3d_with_indices",
        "max_pool1d_with_indices")
def _max_pool(low: Lowering, node: Node) -> Lowered:
    source = low.tensor(node)
    rank = int(node.base[8])
    dims = tuple(range(len(source.shape) - rank, len(source.shape)))
    kernel = _sizes(low, node, "kernel_size", rank, 1)
    stride = low.integers(node, "stride") or kernel
    stride = stride * rank if len(stride) == 1 else stride
    padding = _sizes(low, node, "padding", rank, 0)
    dilation = _sizes(low, node, "dilation", rank, 1)
    out: list[Prim | None] = []
    for position, name in enumerate(node.outputs):
        if name is None:
            out.append(None)
            continue
        kind, dtype = ("max", source.dtype) if position == 0 else ("argmax", "int64")
        out.append(Window(name=name, dtype=dtype, shape=low.graph.values[name].shape, kind=kind, source=source,
                          dims=dims, kernel=kernel, stride=stride, padding=padding, dilation=dilation,
                          compute=source.dtype))
    return out


@lowers("avg_pool1d", "avg_pool2d", "avg_pool3d")
def _avg_pool(low: Lowering, node: Node) -> Lowered:
    source = low.tensor(node)
    rank = int(node.base[8])
    dims = tuple(range(len(source.shape) - rank, len(source.shape)))
    kernel = _sizes(low, node, "kernel_size", rank, 1)
    stride = low.integers(node, "stride") or kernel
    stride = stride * rank if len(stride) == 1 else stride
    padding = _sizes(low, node, "padding", rank, 0)
    shape, name, dtype = low.out_shape(node), low.out_name(node), source.dtype
    total = Window(name=f"{name}_sum", dtype=dtype, shape=shape, kind="sum", source=source, dims=dims, kernel=kernel,
                   stride=stride, padding=padding, dilation=(1,) * rank, compute=dtype)
    divisor = node.args.get("divisor_override")
    if isinstance(divisor, int):
        return (elementwise(name, "div", total, float(divisor), dtype=dtype),)
    counted_padding = bool(node.args.get("count_include_pad", True))
    sizes = [source.shape[d] for d in dims]
    # Every window lies inside what counts: one divisor for all.
    inside = all(
        (shape[d] - 1) * s - p + k <= n + (p if counted_padding else 0) and (counted_padding or p == 0)
        for d, s, p, k, n in zip(dims, stride, padding, kernel, sizes, strict=True)
    )
    if inside:
        return (elementwise(name, "div", total, float(math.prod(kernel)), dtype=dtype),)
    count: Prim = Fill(name="number", dtype=dtype, shape=(), number=1.0)
    for d, k, s, p, n in zip(dims, kernel, stride, padding, sizes, strict=True):
        axis = _taps_inside(name, shape, d, k, s, p, n, dtype, counted_padding=counted_padding)
        count = elementwise(f"{name}_count", "mul", count, axis, dtype=dtype)
    return (elementwise(name, "div", total, count, dtype=dtype),)


def _taps_inside(
    name: str, shape: tuple[int, ...], dim: int, kernel: int, stride: int, padding: int, size: int, dtype: str,
    *, counted_padding: bool,
) -> Prim:
    """How many taps along one dimension count: min(start + kernel, limit) - max(start, lowest)."""
    limit, lowest = (size + padding, -padding) if counted_padding else (size, 0)

    def start(i: Indices) -> Index:
        return i[dim] * stride - padding

    def whole(label: str, function: object) -> Prim:
        return Coordinate(name=label, dtype="int64", shape=shape, function=function)  # type: ignore[arg-type]

    end = elementwise(f"{name}_end", "minimum", whole(f"{name}_last", lambda i: start(i) + kernel), limit,
                      dtype="int64")
    begin = elementwise(f"{name}_begin", "maximum", whole(f"{name}_first", start), lowest, dtype="int64")
    return cast(elementwise(f"{name}_taps", "sub", end, begin, dtype="int64"), dtype)


@lowers("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "_adaptive_avg_pool2d",
        "_adaptive_avg_pool3d", "adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d")
def _adaptive(low: Lowering, node: Node) -> Lowered:
    """Output sizes of 1 fold whole planes; sizes that divide the input are plain windows."""
    source = low.tensor(node)
    rank = int(node.base.strip("_")[17])
    name = next((n for n in node.outputs if n is not None), node.name)
    if len(node.outputs) > 1 and node.outputs[1] is not None:
        raise NotFusibleError(f"{node.op}: the positions are used")
    shape = low.graph.values[name].shape
    dims = tuple(range(len(source.shape) - rank, len(source.shape)))
    dtype = source.dtype
    largest = "max" in node.base
    rest = [None] * (len(node.outputs) - 1)
    if all(shape[d] == 1 for d in dims):
        if largest:
            return (reduced(source, "largest", dims, name, keepdim=True), *rest)
        return (mean_of(source, dims, name, keepdim=True), *rest)
    if any(source.shape[d] % shape[d] for d in dims):
        raise NotFusibleError(f"{node.op}: windows of different sizes")
    kernel = tuple(source.shape[d] // shape[d] for d in dims)
    window = Window(name=name if largest else f"{name}_sum", dtype=dtype, shape=shape, kind="max" if largest else "sum",
                    source=source, dims=dims, kernel=kernel, stride=kernel, padding=(0,) * rank, dilation=(1,) * rank,
                    compute=dtype)
    if largest:
        return (window, *rest)
    return (elementwise(name, "div", window, float(math.prod(kernel)), dtype=dtype), *rest)


@lowers("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d")
def _nearest(low: Lowering, node: Node) -> Lowered:
    source = low.tensor(node)
    shape = low.out_shape(node)
    if any(out % n for out, n in zip(shape, source.shape, strict=True)):
        raise NotFusibleError(f"{node.op}: only whole factors")
    factors = [out // n for out, n in zip(shape, source.shape, strict=True)]
    return (View(name=low.out_name(node), dtype=source.dtype, shape=shape, source=source,
                 forward=lambda i: tuple(v // f for v, f in zip(i, factors, strict=True))),)


@lowers("pixel_shuffle")
def _pixel_shuffle(low: Lowering, node: Node) -> Lowered:
    source = low.tensor(node)
    factor = int(low.number(node, "upscale_factor", 1))
    from engine.codegen.lower_views import permuted

    *batch, channels, height, width = source.shape
    lead = len(batch)
    split = reshaped(source, (*batch, channels // factor**2, factor, factor, height, width), source.name)
    order = [*range(lead), lead, lead + 3, lead + 1, lead + 4, lead + 2]
    return (reshaped(permuted(split, order, source.name), low.out_shape(node), low.out_name(node)),)


@lowers("conv1d", "conv2d", "conv3d", "convolution")
def _depthwise(low: Lowering, node: Node) -> Lowered:
    """Convolutions in which every output channel reads one input channel; others are for matrix-product kernels."""
    source, weight = low.tensor(node, "input"), low.tensor(node, "weight")
    rank = len(weight.shape) - 2
    groups = int(low.number(node, "groups", 1))
    if node.args.get("transposed") or weight.shape[1] != 1 or len(source.shape) != rank + 2:
        raise NotFusibleError(f"{node.op}: every output reads several channels")
    if groups != source.shape[1] or math.prod(weight.shape[2:]) > WIDEST_CONVOLUTION:
        raise NotFusibleError(f"{node.op}: not a small depthwise convolution")
    stride, dilation = _sizes(low, node, "stride", rank, 1), _sizes(low, node, "dilation", rank, 1)
    padding = _padding(low, node, weight.shape[2:], dilation)
    dtype, name, shape = low.out_dtype(node), low.out_name(node), low.out_shape(node)
    multiplier = weight.shape[0] // groups
    if multiplier > 1:
        source = View(name=source.name, dtype=source.dtype, shape=(source.shape[0], weight.shape[0], *source.shape[2:]),
                      source=source, forward=lambda i: (i[0], i[1] // multiplier, *i[2:]))
    total: Prim = Window(
        name=name, dtype=dtype, shape=shape, kind="sum", source=source, dims=tuple(range(2, rank + 2)),
        kernel=weight.shape[2:], stride=stride, padding=padding, dilation=dilation, compute=dtype, weight=weight,
        weight_index=_weight_index,
    )
    bias = low.operand(node, "bias")
    if bias is not None:
        total = elementwise(f"{name}_bias", "add", total, reshaped(bias, (bias.numel, *([1] * rank)), bias.name),
                            dtype=dtype)
    return (total,)


def _padding(low: Lowering, node: Node, kernel: tuple[int, ...], dilation: tuple[int, ...]) -> tuple[int, ...]:
    """Zeros before each dimension. By name, `same` puts the smaller half there."""
    named = node.args.get("padding")
    if not isinstance(named, str):
        return _sizes(low, node, "padding", len(kernel), 0)
    return tuple(step * (size - 1) // 2 if named == "same" else 0 for size, step in zip(kernel, dilation, strict=True))


def _weight_index(index: Indices, taps: Indices) -> Indices:
    return (index[1], Index(), *taps)
