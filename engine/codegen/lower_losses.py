"""Losses as element-wise values and reductions. A loss that folds twice stores the per-sample part in between."""

from __future__ import annotations

from contracts.graph import Node
from engine.codegen.lower import Lowered, Lowering, broadcast_shapes, cast, elementwise, lowers
from engine.codegen.lower_reductions import log_softmax, mean_of, reduced
from engine.codegen.lower_views import expanded, reshaped, unsqueezed
from engine.codegen.prims import Cut, Fill, Gather, Map, NotFusibleError, Prim

NONE, MEAN = 0, 1


def _reduction(low: Lowering, node: Node, default: int = MEAN) -> int:
    return int(low.number(node, "reduction", default))


def _finish(low: Lowering, node: Node, value: Prim) -> Lowered:
    """Apply `reduction`."""
    kind, name = _reduction(low, node), low.out_name(node)
    if kind == NONE:
        return (value,)
    dims = range(len(value.shape))
    if not value.shape:
        return (value,)
    return (mean_of(value, dims, name, keepdim=False) if kind == MEAN else reduced(value, "sum", dims, name),)


def _pair(low: Lowering, node: Node, second: str = "target") -> tuple[Prim, Prim, str]:
    dtype = low.out_dtype(node)
    a, b = cast(low.tensor(node, next(iter(node.args))), dtype), cast(low.tensor(node, second), dtype)
    shape = broadcast_shapes([a.shape, b.shape])
    return expanded(a, shape, a.name), expanded(b, shape, b.name), dtype


def _compare(op: str, a: Prim, b: Prim | float, dtype: str) -> Map:
    other = b if isinstance(b, Prim) else cast(Fill(name="number", dtype="float64", shape=(), number=b), dtype)
    return Map(name="below", dtype="bool", shape=a.shape, op=op, args=(a, other), compute=dtype)


@lowers("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")
def _distances(low: Lowering, node: Node) -> Lowered:
    a, b, dtype = _pair(low, node)
    name = low.out_name(node)
    difference = elementwise(f"{name}_difference", "sub", a, b, dtype=dtype)
    if node.base == "mse_loss":
        return _finish(low, node, elementwise(f"{name}_each", "square", difference, dtype=dtype))
    size = elementwise(f"{name}_size", "abs", difference, dtype=dtype)
    knee = low.number(node, "beta" if node.base == "smooth_l1_loss" else "delta", 1.0)
    if node.base == "l1_loss" or (node.base == "smooth_l1_loss" and knee == 0):
        return _finish(low, node, size)
    half_square = elementwise(f"{name}_half_square", "mul", elementwise(f"{name}_half", "mul", size, 0.5, dtype=dtype),
                              size, dtype=dtype)
    linear = elementwise(f"{name}_linear", "sub", size, 0.5 * knee, dtype=dtype)
    if node.base == "smooth_l1_loss":
        near = elementwise(f"{name}_near", "div", half_square, float(knee), dtype=dtype)
        far: Prim = linear
    else:
        near, far = half_square, elementwise(f"{name}_far", "mul", linear, float(knee), dtype=dtype)
    test = _compare("lt" if node.base == "smooth_l1_loss" else "le", size, float(knee), dtype)
    return _finish(low, node, elementwise(f"{name}_each", "where", test, near, far, dtype=dtype))


@lowers("kl_div")
def _kl_div(low: Lowering, node: Node) -> Lowered:
    a, target, dtype = _pair(low, node)
    name = low.out_name(node)
    if node.args.get("log_target"):
        weight = elementwise(f"{name}_target", "exp", target, dtype=dtype)
        gap = elementwise(f"{name}_gap", "sub", target, a, dtype=dtype)
        each = elementwise(f"{name}_each", "mul", weight, gap, dtype=dtype)
    else:
        entropy = elementwise(f"{name}_entropy", "xlogy", target, target, dtype=dtype)
        cross = elementwise(f"{name}_cross", "mul", target, a, dtype=dtype)
        each = elementwise(f"{name}_each", "sub", entropy, cross, dtype=dtype)
    return _finish(low, node, each)


@lowers("binary_cross_entropy")
def _bce(low: Lowering, node: Node) -> Lowered:
    a, target, dtype = _pair(low, node)
    name = low.out_name(node)

    def log(value: Prim, label: str, op: str) -> Prim:
        return elementwise(label, "clamp_min", elementwise(f"{label}_raw", op, value, dtype=dtype), -100.0, dtype=dtype)

    negative = elementwise(f"{name}_negative", "neg", a, dtype=dtype)
    # Both logarithms are cut at -100, as PyTorch does.
    first = elementwise(f"{name}_first", "mul", elementwise(f"{name}_t1", "sub", target, 1.0, dtype=dtype),
                        log(negative, f"{name}_log_off", "log1p"), dtype=dtype)
    second = elementwise(f"{name}_second", "mul", target, log(a, f"{name}_log_on", "log"), dtype=dtype)
    return _weighted(low, node, elementwise(f"{name}_each", "sub", first, second, dtype=dtype), dtype)


def _weighted(low: Lowering, node: Node, each: Prim, dtype: str) -> Lowered:
    weight = low.operand(node, "weight")
    if weight is not None:
        each = elementwise(f"{each.name}_weighted", "mul", each, weight, dtype=dtype)
    return _finish(low, node, each)


@lowers("binary_cross_entropy_with_logits")
def _bce_logits(low: Lowering, node: Node) -> Lowered:
    a, target, dtype = _pair(low, node)
    name = low.out_name(node)
    soft = elementwise(f"{name}_log_sigmoid", "log_sigmoid", a, dtype=dtype)
    off = elementwise(f"{name}_off", "mul", elementwise(f"{name}_rest", "rsub", target, 1.0, dtype=dtype), a,
                      dtype=dtype)
    positive = low.operand(node, "pos_weight")
    if positive is not None:
        gain = elementwise(f"{name}_gain", "sub", positive, 1.0, dtype=dtype)
        scaled = elementwise(f"{name}_scaled", "mul", gain, target, dtype=dtype)
        factor = elementwise(f"{name}_factor", "add", scaled, 1.0, dtype=dtype)
        soft = elementwise(f"{name}_soft", "mul", factor, soft, dtype=dtype)
    return _weighted(low, node, elementwise(f"{name}_each", "sub", off, soft, dtype=dtype), dtype)


@lowers("soft_margin_loss")
def _soft_margin(low: Lowering, node: Node) -> Lowered:
    a, target, dtype = _pair(low, node)
    name = low.out_name(node)
    product = elementwise(f"{name}_product", "mul", elementwise(f"{name}_neg", "neg", target, dtype=dtype), a,
                          dtype=dtype)
    return _finish(low, node, elementwise(f"{name}_each", "log1p",
                                          elementwise(f"{name}_exp", "exp", product, dtype=dtype), dtype=dtype))


def _picked(source: Prim, target: Prim, dim: int, name: str, shape: tuple[int, ...]) -> Prim:
    """`source` at the class that `target` names, along `dim`."""
    return Gather(name=name, dtype=source.dtype, shape=shape, source=source, indices=(target,),
                  index_of=(lambda i: i,), forward=lambda i, at: (*i[:dim], at[0], *i[dim:]),
                  bounds=(source.shape[dim],))


@lowers("nll_loss", "nll_loss2d", "nll_loss_nd", "nll_loss_forward", "nll_loss2d_forward", "cross_entropy_loss")
def _cross_entropy(low: Lowering, node: Node) -> Lowered:
    """Negative log-likelihood of the target class, from logits or from log-probabilities."""
    source, target = low.tensor(node), low.tensor(node, "target")
    dtype, name = low.out_dtype(node), next(n for n in node.outputs if n is not None)
    if node.base.endswith("_forward") and len(node.outputs) > 1 and node.outputs[1] is not None:
        raise NotFusibleError(f"{node.op}: the total weight is used")
    rest = [None] * (len(node.outputs) - 1)
    dim = 1 if len(source.shape) > 1 else 0
    smoothing = low.number(node, "label_smoothing", 0.0)
    weight = low.operand(node, "weight")
    logits = node.base == "cross_entropy_loss"
    log_probability = log_softmax(source, dim, name) if logits else source
    if target.dtype not in ("int64", "int32", "uint8"):
        return (_soft_targets(low, node, log_probability, target, dim, smoothing, weight), *rest)
    ignored = int(low.number(node, "ignore_index", -100))
    shape = target.shape
    counted = Map(name="counted", dtype="bool", shape=shape, op="ne", compute=target.dtype,
                  args=(target, Fill(name="number", dtype=target.dtype, shape=(), number=ignored)))
    safe = elementwise(target.name, "where", counted, target, 0, dtype=target.dtype)
    picked = _picked(log_probability, safe, dim, f"{name}_picked", shape)
    each: Prim = elementwise(f"{name}_nll", "neg", picked, dtype=dtype)
    class_weight: Prim | None = None
    if weight is not None:
        class_weight = Gather(name="class_weight", dtype=dtype, shape=shape, source=weight, indices=(safe,),
                              index_of=(lambda i: i,), forward=lambda _i, at: (at[0],), bounds=(weight.shape[0],))
        each = elementwise(f"{name}_weighted", "mul", each, class_weight, dtype=dtype)
    if smoothing:
        classes = source.shape[dim]
        spread = log_probability
        if weight is not None:
            spread = elementwise(f"{name}_spread", "mul", spread,
                                 reshaped(weight, (classes, *([1] * (len(source.shape) - 1 - dim))), weight.name),
                                 dtype=dtype)
        total = reduced(spread, "sum", (dim,), f"{name}_smooth")
        smooth = elementwise(f"{name}_smooth_part", "mul", total, -smoothing / classes, dtype=dtype)
        kept = elementwise(f"{name}_kept", "mul", each, 1.0 - smoothing, dtype=dtype)
        each = elementwise(f"{name}_mixed", "add", kept, smooth, dtype=dtype)
    each = elementwise(f"{name}_each", "where", counted, each, 0.0, dtype=dtype)
    kind = _reduction(low, node)
    if kind == NONE:
        return (each, *rest)
    if not shape:
        return (each, *rest) if kind != MEAN or weight is None else (
            elementwise(name, "div", each, class_weight, dtype=dtype), *rest)
    dims = range(len(shape))
    stored: Prim = Cut(name="per_sample", dtype=dtype, shape=shape, source=each) if logits or smoothing else each
    total_loss = reduced(stored, "sum", dims, f"{name}_total")
    if kind != MEAN:
        return (total_loss, *rest)
    share = class_weight if class_weight is not None else cast(counted, dtype)
    share = elementwise("share", "where", counted, share, 0.0, dtype=dtype)
    count = reduced(share, "sum", dims, f"{name}_count")
    return (elementwise(name, "div", total_loss, count, dtype=dtype), *rest)


def _soft_targets(low: Lowering, node: Node, log_probability: Prim, target: Prim, dim: int, smoothing: float,
                  weight: Prim | None) -> Prim:
    """Cross entropy against probabilities."""
    dtype, name = log_probability.dtype, low.out_name(node)
    classes = log_probability.shape[dim]
    if smoothing:
        scaled = elementwise(f"{name}_target", "mul", target, 1.0 - smoothing, dtype=dtype)
        target = elementwise(f"{name}_smoothed", "add", scaled, smoothing / classes, dtype=dtype)
    product: Prim = elementwise(f"{name}_product", "mul", log_probability, target, dtype=dtype)
    if weight is not None:
        shape = (classes, *([1] * (len(log_probability.shape) - 1 - dim)))
        product = elementwise(f"{name}_weighted", "mul", product, reshaped(weight, shape, weight.name), dtype=dtype)
    total = reduced(product, "sum", (dim,), f"{name}_sum")
    each = elementwise(f"{name}_each", "neg", total, dtype=dtype)
    kind = _reduction(low, node)
    if kind == NONE or not each.shape:
        return each
    stored = Cut(name="per_sample", dtype=dtype, shape=each.shape, source=each)
    dims = range(len(each.shape))
    return mean_of(stored, dims, name, keepdim=False) if kind == MEAN else reduced(stored, "sum", dims, name)


@lowers("cosine_similarity")
def _cosine_similarity(low: Lowering, node: Node) -> Lowered:
    dtype, name = low.out_dtype(node), low.out_name(node)
    return (_cosine(low.tensor(node, "x1"), low.tensor(node, "x2"), int(low.number(node, "dim", 1)),
                    low.number(node, "eps", 1e-8), dtype, name),)


def _cosine(a: Prim, b: Prim, dim: int, eps: float, dtype: str, name: str) -> Prim:
    """sum(a b) / (max(|a|, eps) max(|b|, eps))."""
    shape = broadcast_shapes([a.shape, b.shape])
    a, b = expanded(a, shape, a.name), expanded(b, shape, b.name)
    dim %= len(shape)

    def length(value: Prim, label: str) -> Prim:
        squares = elementwise(f"{label}_squares", "square", value, dtype=dtype)
        root = elementwise(f"{label}_length", "sqrt", reduced(squares, "sum", (dim,), f"{label}_sum"), dtype=dtype)
        return elementwise(f"{label}_safe", "clamp_min", root, eps, dtype=dtype)

    dot = reduced(elementwise(f"{name}_product", "mul", a, b, dtype=dtype), "sum", (dim,), f"{name}_dot")
    lengths = elementwise(f"{name}_lengths", "mul", length(a, f"{name}_a"), length(b, f"{name}_b"), dtype=dtype)
    return elementwise(name, "div", dot, lengths, dtype=dtype)


@lowers("pairwise_distance")
def _pairwise(low: Lowering, node: Node) -> Lowered:
    dtype, name = low.out_dtype(node), low.out_name(node)
    distance = _distance(low.tensor(node, "x1"), low.tensor(node, "x2"), low.number(node, "p", 2.0),
                         low.number(node, "eps", 1e-6), dtype, name)
    return (unsqueezed(distance, (len(distance.shape),), name) if node.args.get("keepdim") else distance,)


def _distance(a: Prim, b: Prim, order: float, eps: float, dtype: str, name: str) -> Prim:
    from engine.codegen.lower_reductions import vector_norm

    shape = broadcast_shapes([a.shape, b.shape])
    gap = elementwise(f"{name}_gap", "sub", expanded(a, shape, a.name), expanded(b, shape, b.name), dtype=dtype)
    moved = elementwise(f"{name}_moved", "add", gap, eps, dtype=dtype)
    return vector_norm(moved, order, (len(shape) - 1,), name, keepdim=False)


@lowers("triplet_margin_loss")
def _triplet(low: Lowering, node: Node) -> Lowered:
    dtype, name = low.out_dtype(node), low.out_name(node)
    order, eps = low.number(node, "p", 2.0), low.number(node, "eps", 1e-6)
    anchor, positive, negative = (low.tensor(node, n) for n in ("anchor", "positive", "negative"))
    near = _distance(anchor, positive, order, eps, dtype, f"{name}_near")
    far = _distance(anchor, negative, order, eps, dtype, f"{name}_far")
    if node.args.get("swap"):
        other = _distance(positive, negative, order, eps, dtype, f"{name}_other")
        far = elementwise(f"{name}_closest", "minimum", far, other, dtype=dtype)
    gap = elementwise(f"{name}_gap", "sub", near, far, dtype=dtype)
    each = elementwise(f"{name}_each", "clamp_min", elementwise(
        f"{name}_margin", "add", gap, low.number(node, "margin", 1.0), dtype=dtype), 0.0, dtype=dtype)
    return _after_rows(low, node, each, dtype)


def _after_rows(low: Lowering, node: Node, each: Prim, dtype: str) -> Lowered:
    if _reduction(low, node) == NONE or not each.shape:
        return (each,)
    return _finish(low, node, Cut(name="per_sample", dtype=dtype, shape=each.shape, source=each))


@lowers("cosine_embedding_loss")
def _cosine_embedding(low: Lowering, node: Node) -> Lowered:
    dtype, name = low.out_dtype(node), low.out_name(node)
    a, b, target = (low.tensor(node, n) for n in ("input1", "input2", "target"))
    dim = len(a.shape) - 1
    epsilon = 1e-12

    def squares(value: Prim, label: str) -> Prim:
        total = reduced(elementwise(f"{label}_squares", "square", value, dtype=dtype), "sum", (dim,), f"{label}_sum")
        return elementwise(f"{label}_safe", "add", total, epsilon, dtype=dtype)

    dot = reduced(elementwise(f"{name}_product", "mul", a, b, dtype=dtype), "sum", (dim,), f"{name}_dot")
    lengths = elementwise(f"{name}_lengths", "sqrt", elementwise(
        f"{name}_both", "mul", squares(a, f"{name}_a"), squares(b, f"{name}_b"), dtype=dtype), dtype=dtype)
    cosine = elementwise(f"{name}_cosine", "div", dot, lengths, dtype=dtype)
    same = elementwise(f"{name}_same", "rsub", cosine, 1.0, dtype=dtype)
    margin = low.number(node, "margin", 0.0)
    apart = elementwise(f"{name}_apart", "clamp_min", elementwise(
        f"{name}_less_margin", "sub", cosine, margin, dtype=dtype), 0.0, dtype=dtype)
    wide = expanded(target, each_shape := cosine.shape, target.name)
    is_same = Map(name="is_same", dtype="bool", shape=each_shape, op="eq", compute=target.dtype,
                  args=(wide, cast(Fill(name="number", dtype="int64", shape=(), number=1), target.dtype)))
    is_apart = Map(name="is_apart", dtype="bool", shape=each_shape, op="eq", compute=target.dtype,
                   args=(wide, cast(Fill(name="number", dtype="int64", shape=(), number=-1), target.dtype)))
    otherwise = elementwise(f"{name}_otherwise", "where", is_apart, apart, 0.0, dtype=dtype)
    each = elementwise(f"{name}_each", "where", is_same, same, otherwise, dtype=dtype)
    return _after_rows(low, node, each, dtype)


@lowers("margin_ranking_loss")
def _margin_ranking(low: Lowering, node: Node) -> Lowered:
    dtype, name = low.out_dtype(node), low.out_name(node)
    a, b, target = (low.tensor(node, n) for n in ("input1", "input2", "target"))
    gap = elementwise(f"{name}_gap", "sub", a, b, dtype=dtype)
    signed = elementwise(f"{name}_signed", "mul", elementwise(f"{name}_sign", "neg", target, dtype=dtype), gap,
                         dtype=dtype)
    moved = elementwise(f"{name}_moved", "add", signed, low.number(node, "margin", 0.0), dtype=dtype)
    return _finish(low, node, elementwise(f"{name}_each", "clamp_min", moved, 0.0, dtype=dtype))


@lowers("hinge_embedding_loss")
def _hinge_embedding(low: Lowering, node: Node) -> Lowered:
    a, target, dtype = _pair(low, node)
    name = low.out_name(node)
    margin = elementwise(f"{name}_margin", "clamp_min", elementwise(
        f"{name}_less", "rsub", a, low.number(node, "margin", 1.0), dtype=dtype), 0.0, dtype=dtype)
    first = elementwise(f"{name}_first", "where", _compare("ne", target, 1.0, dtype), margin, 0.0, dtype=dtype)
    second = elementwise(f"{name}_second", "where", _compare("ne", target, -1.0, dtype), a, 0.0, dtype=dtype)
    return _finish(low, node, elementwise(f"{name}_each", "add", first, second, dtype=dtype))
