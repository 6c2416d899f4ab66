"""Normalisations as primitive values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from contracts.graph import Node
from engine.codegen.lower import Lowered, Lowering, cast, elementwise, lowers
from engine.codegen.lower_reductions import mean_of, parts_of, updated_mean
from engine.codegen.lower_views import reshaped
from engine.codegen.prims import NotFusibleError, Prim

EPSILON_OF = {"float64": 2.220446049250313e-16, "float32": 1.1920928955078125e-07, "float16": 0.0009765625,
              "bfloat16": 0.0078125}


class Normalised(NamedTuple):
    """A normalised value and its statistics, whose folded dimensions are kept with size 1."""

    value: Prim
    mean: Prim
    scale: Prim  # 1 / sqrt(variance + eps)
    squares: Prim  # Sum of squared distances from the mean.


def normalised(source: Prim, dims: Sequence[int], eps: float, name: str) -> Normalised:
    """(x - mean) / sqrt(variance + eps) over `dims`."""
    dtype = source.dtype
    mean, squares = parts_of(source, "moments", dims, name, parts=("mean", "squares"), keepdim=True)
    count = math.prod(source.shape[d] for d in dims)
    variance = elementwise(f"{name}_variance", "div", squares, float(count), dtype=dtype)
    shifted = elementwise(f"{name}_variance_eps", "add", variance, float(eps), dtype=dtype)
    scale = elementwise(f"{name}_scale", "rsqrt", shifted, dtype=dtype)
    centred = elementwise(f"{name}_centred", "sub", source, mean, dtype=dtype)
    value = elementwise(f"{name}_normal", "mul", centred, scale, dtype=dtype)
    return Normalised(value, mean, scale, squares)


def affine(value: Prim, weight: Prim | None, bias: Prim | None, name: str) -> Prim:
    """Times weight, plus bias; either may be absent."""
    dtype = value.dtype
    if weight is not None:
        value = elementwise(f"{name}_scaled" if bias is not None else name, "mul", value, weight, dtype=dtype)
    return value if bias is None else elementwise(name, "add", value, bias, dtype=dtype)


def per_channel(weight: Prim | None, rank: int) -> Prim | None:
    """A vector of channels laid along dimension 1 of `rank`."""
    return None if weight is None else reshaped(weight, (weight.numel, *([1] * (rank - 2))), weight.name)


@lowers("layer_norm", "native_layer_norm")
def _layer_norm(low: Lowering, node: Node) -> Lowered:
    source = low.tensor(node, "input")
    count = len(low.integers(node, "normalized_shape"))
    rank = len(source.shape)
    dims = range(rank - count, rank)
    name = low.out_name(node)
    normal, mean, scale, _ = normalised(source, dims, low.number(node, "eps", 1e-5), name)
    out = affine(normal, low.operand(node, "weight"), low.operand(node, "bias"), name)
    if node.base == "layer_norm":
        return (out,)
    return (out, *_statistics(low, node, mean, scale))


def _statistics(low: Lowering, node: Node, mean: Prim, scale: Prim) -> list[Prim | None]:
    found: list[Prim | None] = []
    for prim, output in zip((mean, scale), node.outputs[1:3], strict=False):
        if output is None:
            found.append(None)
            continue
        spec = low.graph.values[output]
        found.append(cast(reshaped(prim, spec.shape, output), spec.dtype) if prim.numel == spec.numel else None)
    return found


@lowers("rms_norm", "_fused_rms_norm")
def _rms_norm(low: Lowering, node: Node) -> Lowered:
    source = low.tensor(node, "input")
    dtype = source.dtype
    rank = len(source.shape)
    dims = range(rank - len(low.integers(node, "normalized_shape")), rank)
    eps = node.args.get("eps")
    eps = EPSILON_OF.get(dtype, 0.0) if not isinstance(eps, (int, float)) else eps
    name = low.out_name(node)
    squares = elementwise(f"{name}_squares", "square", source, dtype=dtype)
    mean = mean_of(squares, dims, f"{name}_mean_square", keepdim=True)
    scale = elementwise(f"{name}_scale", "rsqrt", elementwise(f"{name}_eps", "add", mean, eps, dtype=dtype),
                        dtype=dtype)
    normal = elementwise(f"{name}_normal", "mul", source, scale, dtype=dtype)
    out = affine(normal, low.operand(node, "weight"), None, name)
    return (out,) if node.base == "rms_norm" else (out, scale)


@lowers("group_norm", "native_group_norm")
def _group_norm(low: Lowering, node: Node) -> Lowered:
    source = low.tensor(node, "input")
    groups = int(low.number(node, "num_groups", low.number(node, "group", 1)))
    name = low.out_name(node)
    batch = source.shape[0]
    inside = source.numel // (batch * groups)
    grouped = reshaped(source, (batch, groups, inside), name)
    normal, mean, scale, _ = normalised(grouped, (2,), low.number(node, "eps", 1e-5), name)
    flat = reshaped(normal, source.shape, name)
    rank = len(source.shape)
    out = affine(flat, per_channel(low.operand(node, "weight"), rank), per_channel(low.operand(node, "bias"), rank),
                 name)
    return (out,) if node.base == "group_norm" else (out, *_statistics(low, node, mean, scale))


@lowers("instance_norm")
def _instance_norm(low: Lowering, node: Node) -> Lowered:
    source = low.tensor(node, "input")
    if not node.args.get("use_input_stats", True):
        return _with_running(low, node, source)[:1]
    if low.operand(node, "running_mean") is not None:
        raise NotFusibleError("instance norm that updates running statistics")
    rank = len(source.shape)
    name = low.out_name(node)
    normal = normalised(source, range(2, rank), low.number(node, "eps", 1e-5), name).value
    weight, bias = low.operand(node, "weight"), low.operand(node, "bias")
    return (affine(normal, per_channel(weight, rank), per_channel(bias, rank), name),)


def _with_running(low: Lowering, node: Node, source: Prim) -> Lowered:
    """Batch norm with given statistics: one multiplication and one addition an element."""
    rank, dtype, name = len(source.shape), source.dtype, low.out_name(node)
    mean = per_channel(low.tensor(node, "running_mean"), rank)
    variance = per_channel(low.tensor(node, "running_var"), rank)
    eps = low.number(node, "eps", 1e-5)
    kind = variance.dtype  # type: ignore[union-attr]
    scale = elementwise(f"{name}_scale", "rsqrt", elementwise(f"{name}_eps", "add", variance, float(eps), dtype=kind),
                        dtype=kind)
    weight, bias = per_channel(low.operand(node, "weight"), rank), per_channel(low.operand(node, "bias"), rank)
    if weight is not None:
        scale = elementwise(f"{name}_gain", "mul", scale, weight, dtype=kind)
    centred = elementwise(f"{name}_centred", "sub", source, mean, dtype=dtype)
    return (affine(centred, scale, bias, name), None, None)


@lowers("_native_batch_norm_legit_no_training", "batch_norm", "native_batch_norm", "cudnn_batch_norm",
        "_native_batch_norm_legit_functional", "_native_batch_norm_legit", "_batch_norm_no_update",
        "_batch_norm_with_update_functional")
def _batch_norm(low: Lowering, node: Node) -> Lowered:
    source = low.tensor(node, "input")
    training = node.args.get("training", node.base in ("_batch_norm_with_update_functional",))
    if node.base in ("_native_batch_norm_legit_no_training", "_batch_norm_no_update"):
        training = False
    if not training:
        return (*_with_running(low, node, source), *([None] * (len(node.outputs) - 3)))
    return _batch_norm_training(low, node, source)


def _batch_norm_training(low: Lowering, node: Node, source: Prim) -> Lowered:
    rank = len(source.shape)
    dims = [d for d in range(rank) if d != 1]
    eps, momentum = low.number(node, "eps", 1e-5), low.number(node, "momentum", 0.1)
    name = next((n for n in node.outputs if n is not None), node.name)
    dtype = source.dtype
    normal, mean, scale, squares = normalised(source, dims, eps, name)
    weight, bias = per_channel(low.operand(node, "weight"), rank), per_channel(low.operand(node, "bias"), rank)
    out: list[Prim | None] = [affine(normal, weight, bias, name)]
    if len(node.outputs) == 1:
        return out
    out += _statistics(low, node, mean, scale)
    running = [low.operand(node, "running_mean"), low.operand(node, "running_var")]
    rest = list(node.outputs[3:])
    if "functional" in node.base:
        count = source.numel // source.shape[1]
        unbiased = elementwise(f"{name}_unbiased", "div", squares, float(max(count - 1, 1)), dtype=dtype)
        news = [(running[0], updated_mean(mean, squares, f"{name}_mean")), (running[1], unbiased)]
        positions = rest[-2:]
        out += [None] * (len(rest) - len(positions))
        for output, (old, new) in zip(positions, news, strict=True):
            if output is None or old is None:
                out.append(None)
                continue
            given = low.graph.values[output].dtype  # float32 also where the buffers are of half types.
            fresh = cast(reshaped(new, old.shape, output), given)
            kept = elementwise(f"{output}_kept", "mul", old, 1.0 - momentum, dtype=given)
            added = elementwise(f"{output}_added", "mul", fresh, float(momentum), dtype=given)
            out.append(elementwise(output, "add", kept, added, dtype=given))
    out += [None] * (len(node.outputs) - len(out))
    return out
