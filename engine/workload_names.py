"""Operator names by what they cost, for `workload_costs`. Names are without namespace, overload and underscore."""

from __future__ import annotations

# They move no data.
VIEWS = (
    "view _unsafe_view unsqueeze squeeze transpose t permute expand expand_as broadcast_to slice select narrow split "
    "split_with_sizes chunk unbind unflatten view_as alias detach diagonal as_strided movedim swapaxes moveaxis mT T "
    "unfold view_as_real view_as_complex real imag tensor_split numpy_T adjoint mH squeeze_dims swapdims identity "
    "lift_fresh sym_size _reshape_alias broadcast_tensors atleast_1d atleast_2d atleast_3d"
)
# They move data but compute nothing.
COPIES = (
    "clone contiguous to _to_copy copy reshape flatten cat concat concatenate stack hstack vstack dstack repeat "
    "repeat_interleave flip roll rot90 tile pad constant_pad_nd reflection_pad1d reflection_pad2d reflection_pad3d "
    "replication_pad1d replication_pad2d replication_pad3d _pad_circular tril triu type_as float half bfloat16 double "
    "slice_scatter select_scatter diagonal_scatter as_strided_scatter pixel_shuffle pixel_unshuffle channel_shuffle "
    "im2col col2im lift_fresh_copy diag diag_embed "
    "block_diag meshgrid cartesian_prod"
)
CREATES = (
    "zeros ones full empty arange linspace logspace eye zeros_like ones_like full_like empty_like new_zeros new_ones "
    "new_full new_empty scalar_tensor rand randn rand_like randn_like randint tril_indices triu_indices bernoulli "
    "normal uniform fill one_hot"
)
# FLOPs an output element.
POINTWISE = {
    1: "add sub rsub mul neg abs relu relu6 hardtanh clamp clamp_min clamp_max clip maximum minimum max_other "
       "min_other square sign sgn where masked_fill threshold eq ne lt le gt ge logical_and logical_or "
       "logical_not logical_xor "
       "bitwise_and bitwise_or bitwise_not bitwise_xor __and__ __or__ __xor__ ceil floor round trunc frac "
       "heaviside isnan isinf isfinite subtract multiply negative positive nan_to_num logical_xor native_dropout conj",
    2: "addcmul lerp leaky_relu prelu hardsigmoid softshrink hardshrink add_relu rrelu hypot copysign dist",
    3: "hardswish addcdiv",
    4: "div true_divide divide reciprocal sqrt rsqrt exp exp2 log log2 log10 log1p expm1 sin cos floor_divide "
       "remainder fmod bucketize",
    6: "sigmoid elu celu selu softsign tan asin acos atan sinh cosh asinh acosh atanh pow erf erfc logaddexp xlogy "
       "logit sinc atan2 float_power",
    8: "tanh silu softplus gelu log_sigmoid log_sigmoid_forward polar angle erfinv lgamma digamma glu",
    14: "mish",
}
