"""What each operator costs: arithmetic, eager launches, serial steps. A table from operator name to a rule.

Multiply-adds of matrix-like operators count 2 FLOPs (`matrix_flops`: they may run on tensor cores).
Everything else is `vector_flops`: FLOPs an element by the tables below, where a transcendental counts
4 because the special-function unit has a quarter of the fused multiply-add lanes' rate or less.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from contracts.graph import Arg, Const, Graph, Node, Ref
from contracts.tensors import TensorSpec
from engine.workload_names import COPIES, CREATES, POINTWISE, VIEWS

Family = Literal["view", "copy", "pointwise", "reduce", "norm", "softmax", "scan", "pool", "gather", "sort",
                 "matmul", "conv", "attention", "rnn", "loss", "create", "other"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """One operator call.

    Attributes:
        family: What kind of work it is.
        matrix_flops: Multiply-adds times two, of products, convolutions, attention and recurrences.
        vector_flops: The other arithmetic.
        launches: Kernels that eager PyTorch launches for it.
        serial_steps: Grid-wide steps that cannot overlap (time steps of a recurrence); 1 for all else.
        tensor_cores: False where tensor cores can not do the products (depthwise convolution).
    """

    family: Family
    matrix_flops: int = 0
    vector_flops: int = 0
    launches: int = 1
    serial_steps: int = 1
    tensor_cores: bool = True


class Call:
    """One node with its layouts at hand."""

    def __init__(self, node: Node, graph: Graph) -> None:
        self.node = node
        self.graph = graph

    def spec(self, *names: str) -> TensorSpec | None:
        """Layout of the first of the named arguments that is a tensor."""
        for name in names:
            value = self.node.args.get(name)
            if isinstance(value, Ref):
                return self.graph.values.get(value.name)
        return None

    def specs(self, name: str) -> list[TensorSpec]:
        """Layouts of a list argument's tensors."""
        value = self.node.args.get(name)
        items = value if isinstance(value, tuple) else ()
        return [self.graph.values[v.name] for v in items if isinstance(v, Ref) and v.name in self.graph.values]

    def value(self, *names: str, default: Arg = None) -> Arg:
        """The first of the named arguments that is there and not None."""
        found = (self.node.args.get(name) for name in names)
        return next((value for value in found if value is not None), default)

    @property
    def inputs(self) -> list[TensorSpec]:
        """Layouts of all tensor arguments, each value once."""
        return [self.graph.values[name] for name in dict.fromkeys(self.node.refs()) if name in self.graph.values]

    @property
    def outputs(self) -> list[TensorSpec]:
        """Layouts of the used outputs."""
        return [self.graph.values[name] for name in self.node.outputs if name in self.graph.values]

    @property
    def out_numel(self) -> int:
        """Elements of the first output."""
        return self.outputs[0].numel if self.outputs else 0

    @property
    def in_numel(self) -> int:
        """Elements of the largest tensor argument, or of the output where there is none."""
        return max((spec.numel for spec in self.inputs), default=self.out_numel)


def node_cost(node: Node, graph: Graph) -> Cost:
    """The cost of one operator call. An operator that the table lacks counts one FLOP an output element."""
    rule = RULES.get(operator_name(node))
    call = Call(node, graph)
    return rule(call) if rule is not None else Cost(family="other", vector_flops=call.out_numel)


def operator_name(node: Node) -> str:
    """The operator without namespace, overload and in-place underscore."""
    base = node.base
    return base.rstrip("_") if not base.startswith("_") else "_" + base[1:].rstrip("_")


# --- rules ---------------------------------------------------------------------------------------


def _view(_: Call) -> Cost:
    return Cost(family="view", launches=0)


def _copy(call: Call) -> Cost:
    # `contiguous`, `reshape` and `to` copy only when the layout or dtype changes.
    source, out = call.spec("self", "input"), call.outputs[:1]
    changes = not out or source is None or (source.dtype, source.stride) != (out[0].dtype, out[0].stride)
    if operator_name(call.node) in MAYBE_COPY and not changes:
        return Cost(family="view", launches=0)
    if operator_name(call.node) in ("reshape", "flatten") and source is not None and source.is_contiguous:
        return Cost(family="view", launches=0)
    return Cost(family="copy")


def _pointwise(flops: int) -> Callable[[Call], Cost]:
    return lambda call: Cost(family="pointwise", vector_flops=flops * call.out_numel)


def _per_input(family: Family, flops: int, launches: int = 1) -> Callable[[Call], Cost]:
    return lambda call: Cost(family=family, vector_flops=flops * call.in_numel, launches=launches)


def _create(call: Call) -> Cost:
    return Cost(family="create", launches=1 if call.outputs else 0)


def _matmul(left: str, right: str) -> Callable[[Call], Cost]:
    """Products: the output's elements times the inner size. Works for vectors, matrices and batches."""

    def rule(call: Call) -> Cost:
        a, b = call.spec(left), call.spec(right)
        if a is None or b is None or not a.shape:
            return Cost(family="matmul", vector_flops=call.out_numel)
        inner = a.shape[-1]
        bias = call.out_numel if call.spec("bias") or operator_name(call.node) in BIASED else 0
        return Cost(family="matmul", matrix_flops=2 * call.out_numel * inner, vector_flops=bias)

    return rule


def _bilinear(call: Call) -> Cost:
    weight = call.spec("weight")
    if weight is None:
        return Cost(family="matmul", vector_flops=call.out_numel)
    left, right = weight.shape[1:3]
    return Cost(family="matmul", matrix_flops=2 * call.out_numel * right * left, launches=2)


def _outer(call: Call) -> Cost:
    return Cost(family="pointwise", vector_flops=call.out_numel)


def _einsum(call: Call) -> Cost:
    equation = str(call.value("equation", default="")).replace(" ", "")
    operands = call.specs("tensors")
    terms = equation.split("->")[0].split(",")
    sizes: dict[str, int] = {}
    for term, operand in zip(terms, operands, strict=False):
        head, dots, tail = term.partition("...")
        pairs = list(zip(head, operand.shape, strict=False))
        if tail:
            pairs += list(zip(reversed(tail), reversed(operand.shape), strict=False))
        if dots:
            for place, size in enumerate(operand.shape[len(head): len(operand.shape) - len(tail)]):
                key = f"...{place - (len(operand.shape) - len(head) - len(tail))}"
                sizes[key] = max(sizes.get(key, 1), size)
        for letter, size in pairs:
            sizes[letter] = max(sizes.get(letter, 1), size)
    # Without a better order, a product of n operands is n-1 products over the whole index space.
    products = max(len(operands) - 1, 1)
    flops = 2 * math.prod(sizes.values()) * products if sizes else call.out_numel
    return Cost(family="matmul", matrix_flops=flops, launches=products)


def _conv(call: Call) -> Cost:
    weight, source = call.spec("weight"), call.spec("input", "self")
    if weight is None or source is None:
        return Cost(family="conv", vector_flops=call.out_numel)
    transposed = "transpose" in operator_name(call.node) or call.value("transposed", default=False) is True
    taps = math.prod(weight.shape[2:])
    # weight is (out, in/groups, taps) or, transposed, (in, out/groups, taps): shape[1] counts what one
    # element of the side that is walked (output, or input when transposed) is multiplied with.
    walked = source.numel if transposed else call.out_numel
    bias = call.out_numel if call.spec("bias") is not None else 0
    return Cost(family="conv", matrix_flops=2 * walked * weight.shape[1] * taps, vector_flops=bias,
                launches=2 if bias else 1, tensor_cores=weight.shape[1] > 1 or weight.shape[0] == 1)


def _attention(call: Call) -> Cost:
    query, key, value = call.spec("query"), call.spec("key"), call.spec("value")
    if query is None or key is None or value is None:
        return Cost(family="attention", vector_flops=call.out_numel)
    rows = math.prod(query.shape[:-1])
    keys, width, value_width = key.shape[-2], query.shape[-1], value.shape[-1]
    # Half of a causal mask's products are never needed.
    part = 2 if call.value("is_causal", default=False) is True else 1
    flops = 2 * rows * keys * (width + value_width) // part
    return Cost(family="attention", matrix_flops=flops, vector_flops=SOFTMAX_FLOPS * rows * keys // part)


def _rnn(gates: int, cell_flops: int) -> Callable[[Call], Cost]:
    """Recurrences over `params` (w_ih, w_hh and biases of each layer and direction)."""

    def rule(call: Call) -> Cost:
        source = call.spec("input")
        weights = [spec for spec in call.specs("params") or call.specs("weights") if len(spec.shape) == 2]
        if source is None or not weights:
            return Cost(family="rnn", vector_flops=call.out_numel)
        rows = math.prod(source.shape[:-1])
        batch_first = call.value("batch_first", default=False) is True
        steps = source.shape[1 if batch_first and len(source.shape) == 3 else 0] if len(source.shape) > 1 else 1
        flops = sum(2 * rows * weight.numel for weight in weights)
        layers = max(len(weights) // 2, 1)
        hidden = weights[0].shape[0] // gates
        return Cost(family="rnn", matrix_flops=flops, vector_flops=cell_flops * rows * hidden * layers,
                    launches=layers * (1 + steps), serial_steps=layers * steps)

    return rule


def _cell(gates: int, cell_flops: int) -> Callable[[Call], Cost]:
    def rule(call: Call) -> Cost:
        source, hidden = call.spec("input"), call.spec("w_hh")
        first = call.spec("w_ih")
        if source is None or hidden is None or first is None:
            return Cost(family="rnn", vector_flops=call.out_numel)
        rows = math.prod(source.shape[:-1])
        return Cost(family="rnn", matrix_flops=2 * rows * (first.numel + hidden.numel),
                    vector_flops=cell_flops * rows * hidden.shape[0] // gates, launches=3)

    return rule


def _pool(call: Call) -> Cost:
    window = call.value("kernel_size", default=1)
    dims = max(len(call.outputs[0].shape) - 2, 1) if call.outputs else 1
    size = math.prod(v for v in window if isinstance(v, int)) if isinstance(window, tuple) else int(window or 1)
    taps = size if isinstance(window, tuple) and len(window) > 1 else size**dims
    return Cost(family="pool", vector_flops=taps * call.out_numel)


def _adaptive_pool(call: Call) -> Cost:
    return Cost(family="pool", vector_flops=max(call.in_numel, call.out_numel))


def _norm(flops: int, launches: int) -> Callable[[Call], Cost]:
    def rule(call: Call) -> Cost:
        source = call.spec("input", "self")
        numel = source.numel if source is not None else call.out_numel
        training = call.value("training", "train", "use_input_stats", default=False) is True
        return Cost(family="norm", vector_flops=flops * numel, launches=launches + (1 if training else 0))

    return rule


def _softmax(call: Call) -> Cost:
    return Cost(family="softmax", vector_flops=SOFTMAX_FLOPS * call.in_numel)


def _sort(call: Call) -> Cost:
    length = max((spec.shape[-1] for spec in call.inputs if spec.shape), default=1)
    return Cost(family="sort", vector_flops=call.in_numel * max(1, math.ceil(math.log2(max(length, 2)))), launches=2)


def _gather(_: Call) -> Cost:
    return Cost(family="gather")


def _loss(flops: int) -> Callable[[Call], Cost]:
    # The eager losses make an intermediate of the input's size, then reduce it.
    return lambda call: Cost(family="loss", vector_flops=flops * call.in_numel, launches=2)


def _dropout(call: Call) -> Cost:
    if call.value("train", "training", default=False) is not True:
        return Cost(family="view", launches=0)
    return Cost(family="pointwise", vector_flops=2 * call.out_numel)


SOFTMAX_FLOPS = 7  # max 1, subtract 1, exp 4, sum and scale 1 an element
MAYBE_COPY = frozenset({"contiguous", "to", "_to_copy", "type_as", "float", "half", "bfloat16", "double",
                        "reshape", "flatten", "_assert_tensor_metadata"})
BIASED = frozenset({"addmm", "addmv", "baddbmm", "addbmm"})


def _each(rule: Callable[[Call], Cost], names: str) -> dict[str, Callable[[Call], Cost]]:
    return dict.fromkeys(names.split(), rule)


RULES: dict[str, Callable[[Call], Cost]] = {
    **_each(_view, VIEWS),
    **_each(_copy, COPIES),
    **_each(_create, CREATES),
    **{name: _pointwise(flops) for flops, names in POINTWISE.items() for name in names.split()},
    "dropout": _dropout, "feature_dropout": _dropout, "alpha_dropout": _dropout, "feature_alpha_dropout": _dropout,
    # Products.
    "mm": _matmul("self", "mat2"), "bmm": _matmul("self", "mat2"), "matmul": _matmul("self", "other"),
    "mv": _matmul("self", "vec"), "dot": _matmul("self", "tensor"), "vdot": _matmul("self", "other"),
    "inner": _matmul("self", "other"), "linear": _matmul("input", "weight"), "addmm": _matmul("mat1", "mat2"),
    "addmv": _matmul("mat", "vec"), "baddbmm": _matmul("batch1", "batch2"), "addbmm": _matmul("batch1", "batch2"),
    "chain_matmul": _per_input("matmul", 2), "bilinear": _bilinear, "_trilinear": _bilinear, "outer": _outer,
    "einsum": _einsum, "ger": _outer,
    # Convolutions.
    **_each(_conv, "conv1d conv2d conv3d convolution _convolution conv_transpose1d conv_transpose2d conv_transpose3d "
            "cudnn_convolution conv_tbc conv_depthwise3d _conv_depthwise2d thnn_conv2d slow_conv3d"),
    # Attention and recurrences. Cell FLOPs: activations of the gates and the blend, an element.
    **_each(_attention,
            "scaled_dot_product_attention _scaled_dot_product_flash_attention _scaled_dot_product_efficient_attention "
            "_scaled_dot_product_cudnn_attention _scaled_dot_product_flash_attention_for_cpu "
            "_scaled_dot_product_attention_math _scaled_dot_product_fused_attention_overrideable"),
    "lstm": _rnn(4, 40), "gru": _rnn(3, 28), "rnn_tanh": _rnn(1, 10), "rnn_relu": _rnn(1, 3),
    "lstm_cell": _cell(4, 40), "gru_cell": _cell(3, 28), "rnn_tanh_cell": _cell(1, 10), "rnn_relu_cell": _cell(1, 3),
    # Norms: FLOPs an element for the statistics, the scaling and the affine part; eager launches.
    "batch_norm": _norm(4, 1), "_native_batch_norm_legit": _norm(8, 1), "native_batch_norm": _norm(8, 1),
    "_native_batch_norm_legit_no_training": _norm(4, 1), "cudnn_batch_norm": _norm(8, 1),
    "_batch_norm_no_update": _norm(4, 1), "_batch_norm_with_update": _norm(8, 1),
    "_native_batch_norm_legit_functional": _norm(8, 1), "_batch_norm_with_update_functional": _norm(8, 1),
    "layer_norm": _norm(8, 1), "native_layer_norm": _norm(8, 1), "instance_norm": _norm(8, 2),
    "group_norm": _norm(8, 3), "native_group_norm": _norm(8, 3), "rms_norm": _norm(5, 4),
    "_fused_rms_norm": _norm(5, 1),
    "local_response_norm": _norm(9, 6), "normalize": _norm(5, 3), "renorm": _norm(5, 3),
    "cosine_similarity": _norm(6, 5), "weight_norm": _norm(4, 2), "_weight_norm": _norm(4, 2),
    # Softmax family, scans, sorts.
    **_each(_softmax, "softmax _softmax log_softmax _log_softmax logsumexp softmin"),
    **_each(_per_input("scan", 1, 1), "cumsum cumprod cummax cummin logcumsumexp _cummax_helper"),
    **_each(_sort, "sort argsort topk kthvalue median nanmedian msort unique _unique2 unique_dim "
            "mode searchsorted multinomial"),
    # Reductions.
    **_each(_per_input("reduce", 1),
             "sum mean prod max min amax amin argmax argmin any all nansum nanmean count_nonzero aminmax trace "
       "max_dim min_dim"),
    **_each(_per_input("reduce", 2), "norm linalg_vector_norm frobenius_norm nuclear_norm"),
    **_each(_per_input("reduce", 4), "var std var_mean std_mean cov corrcoef"),
    # Pooling and resampling.
    **_each(_pool,
            "max_pool1d max_pool2d max_pool3d max_pool1d_with_indices max_pool2d_with_indices max_pool3d_with_indices "
            "avg_pool1d avg_pool2d avg_pool3d lp_pool1d lp_pool2d lp_pool3d"),
    **_each(_adaptive_pool,
            "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d _adaptive_avg_pool2d _adaptive_avg_pool3d "
            "adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d fractional_max_pool2d "
            "fractional_max_pool3d"),
    **_each(_pointwise(8),
             "upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_bilinear2d upsample_linear1d "
       "upsample_bicubic2d upsample_trilinear3d _upsample_nearest_exact2d grid_sampler grid_sampler_2d "
       "grid_sampler_3d affine_grid_generator"),
    # Gathers and scatters.
    **_each(_gather,
            "embedding gather index index_select take take_along_dim scatter scatter_add scatter_reduce index_add "
            "index_copy index_fill index_put masked_select masked_scatter put embedding_bag _embedding_bag nonzero "
            "index_reduce bincount histc"),
    # Losses.
    "cross_entropy_loss": _loss(SOFTMAX_FLOPS), "nll_loss": _loss(1), "nll_loss_nd": _loss(1), "nll_loss2d": _loss(1),
    "nll_loss_forward": _loss(1), "mse_loss": _loss(3), "l1_loss": _loss(3), "smooth_l1_loss": _loss(4),
    "huber_loss": _loss(4), "kl_div": _loss(6), "binary_cross_entropy": _loss(10),
    "binary_cross_entropy_with_logits": _loss(12), "cosine_embedding_loss": _loss(6), "triplet_margin_loss": _loss(6),
    "margin_ranking_loss": _loss(4), "hinge_embedding_loss": _loss(3), "soft_margin_loss": _loss(8),
    "multi_margin_loss": _loss(3), "multilabel_margin_loss": _loss(3), "poisson_nll_loss": _loss(6),
    "gaussian_nll_loss": _loss(8), "ctc_loss": _loss(10), "pairwise_distance": _loss(5), "cdist": _loss(3),
    "_cdist_forward": _loss(3), "cross_entropy": _loss(SOFTMAX_FLOPS),
}


def is_view(node: Node, graph: Graph) -> bool:
    """True when the call moves no data."""
    return node_cost(node, graph).family == "view"


def output_dtype(node: Node, graph: Graph) -> str:
    """Element type that decides the arithmetic: the widest floating input's, else the output's."""
    call = Call(node, graph)
    floats = [spec for spec in call.inputs if spec.is_floating] or call.outputs
    wanted = call.value("dtype")
    if isinstance(wanted, Const) and wanted.kind == "dtype" and wanted.value in ("float32", "float64"):
        return wanted.value
    return max(floats, key=lambda spec: spec.item_bytes).dtype if floats else "float32"
