"""Convolutions of the graph as products: weights times the image gathered under them.

One to three dimensions, groups, dilation, stride, any strides in memory (so also channels-last), and transposed
convolution in gather form: every output collects the inputs that reach it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from contracts.graph import Arg, Node, Ref
from contracts.tensors import TensorSpec
from engine.codegen import CannotWrite
from engine.codegen.cpp import CPP_TYPE
from engine.codegen.products import Operand, Product, vector_width

CONVOLUTIONS = frozenset(
    ["conv1d", "conv2d", "conv3d", "convolution", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"]
)
_DIMS = ("D", "H", "W")


@dataclass(frozen=True, slots=True, kw_only=True)
class Convolution:
    """A convolution with all geometry spread to three dimensions (missing ones have size 1).

    Attributes:
        input, weight, bias, out: Values.
        batch, groups: Sizes.
        in_channels, out_channels: Channels of one group.
        image, kernel, result: Spatial sizes of input, weight and output.
        stride, padding, dilation: Per dimension.
        transposed: True for transposed convolution.
        input_step, result_step: Steps in elements of batch, channel, D, H, W.
        weight_step: Steps of the weight's first and second dimension, then D, H, W.
        bias_step: Step of the bias.
    """

    input: str
    weight: str
    bias: str | None
    out: str
    batch: int
    groups: int
    in_channels: int
    out_channels: int
    image: tuple[int, int, int]
    kernel: tuple[int, int, int]
    result: tuple[int, int, int]
    stride: tuple[int, int, int]
    padding: tuple[int, int, int]
    dilation: tuple[int, int, int]
    transposed: bool
    input_step: tuple[int, ...]
    result_step: tuple[int, ...]
    weight_step: tuple[int, ...]
    bias_step: int


def parse(node: Node, layouts: Mapping[str, TensorSpec]) -> Convolution:
    """The convolution that a node of `CONVOLUTIONS` computes.

    Raises:
        CannotWrite: Unequal padding on the two sides, or mixed dtypes.
    """
    arguments = node.args
    x, w, bias = arguments["input"], arguments["weight"], arguments["bias"]
    assert isinstance(x, Ref)
    assert isinstance(w, Ref)
    x_spec, w_spec, out = layouts[x.name], layouts[w.name], layouts[node.out]
    if not x_spec.dtype == w_spec.dtype == out.dtype:
        raise CannotWrite(f"{node.op} mixes dtypes")
    dims = len(w_spec.shape) - 2
    transposed = bool(arguments.get("transposed", node.base.startswith("conv_transpose")))
    groups = arguments["groups"]
    assert isinstance(groups, int)
    unbatched = len(x_spec.shape) == dims + 1
    x_shape, x_stride = ((1, *x_spec.shape), (0, *x_spec.stride)) if unbatched else (x_spec.shape, x_spec.stride)
    o_shape, o_stride = ((1, *out.shape), (0, *out.stride)) if unbatched else (out.shape, out.stride)
    kernel = w_spec.shape[2:]
    stride, dilation = _spread(arguments["stride"], dims), _spread(arguments["dilation"], dims)
    return Convolution(
        input=x.name, weight=w.name, bias=bias.name if isinstance(bias, Ref) else None, out=node.out,
        batch=x_shape[0], groups=groups, in_channels=x_shape[1] // groups, out_channels=o_shape[1] // groups,
        image=_three(x_shape[2:], 1), kernel=_three(kernel, 1), result=_three(o_shape[2:], 1),
        stride=_three(stride, 1), padding=_three(_padding(arguments["padding"], kernel, dilation, node), 0),
        dilation=_three(dilation, 1), transposed=transposed,
        input_step=(*x_stride[:2], *_three(x_stride[2:], 0)), result_step=(*o_stride[:2], *_three(o_stride[2:], 0)),
        weight_step=(*w_spec.stride[:2], *_three(w_spec.stride[2:], 0)),
        bias_step=layouts[bias.name].stride[0] if isinstance(bias, Ref) else 0,
    )


def flops(conv: Convolution) -> int:
    """Multiplications and additions."""
    # Transposed convolutions scatter: their products are counted from the input's side.
    pixels = conv.image if conv.transposed else conv.result
    channels = conv.in_channels * conv.out_channels * conv.groups
    return 2 * conv.batch * prod(pixels) * prod(conv.kernel) * channels


def as_product(
    conv: Convolution, *, name: str, dtype: str, expressions: Mapping[str, str], aligned: bool, source: str,
    weight: float,
) -> Product:
    """The product for own kernels: M output channels, N pixels of all images, K weights a channel, one batch a group.

    Args:
        conv: What to compute.
        name: Struct name.
        dtype: Element type.
        expressions: at::Tensor expression of every value.
        aligned: Whether the weight starts on 16 bytes.
        source: The operator, for the comment.
        weight: Share of the module's time.
    """
    terms = conv.in_channels * prod(conv.kernel)
    pixels = conv.batch * prod(conv.result)
    ctype = CPP_TYPE[dtype]
    pointers = {
        "image": (ctype, expressions[conv.input], False), "weight": (ctype, expressions[conv.weight], False),
        "result": (ctype, expressions[conv.out], True),
    }
    value = "sum"
    if conv.bias is not None:
        pointers["bias"] = (ctype, expressions[conv.bias], False)
        step = f" * {conv.bias_step}" if conv.bias_step != 1 else ""
        value = f"sum + wide(arguments.bias[(batch * M + m){step}])"
    a_body, a_vector = _weight_body(conv, dtype, terms, aligned)
    kind = "transposed convolution" if conv.transposed else "convolution"
    return Product(
        name=name, dtype=dtype, batch=conv.groups, m=conv.out_channels, n=pixels, k=terms, weight=weight,
        title=f"{source}: {kind} as a product of {conv.out_channels} x {terms} weights with {pixels} gathered pixels"
              + (f", for each of {conv.groups} groups." if conv.groups > 1 else "."),
        a=Operand(along_k=True, vector=a_vector, body=a_body),
        b=Operand(along_k=False, vector=1, body=(image := tuple(_image_body(conv))),
                  inside=sum("return nullptr" in line for line in image) == 1),
        store=(*_pixel_lines(conv), *_store_lines(conv, value)), pointers=pointers,
    )


def _weight_body(conv: Convolution, dtype: str, terms: int, aligned: bool) -> tuple[tuple[str, ...], int]:
    first, second, *spatial = conv.weight_step
    dense = all(n == 1 or a == b for n, a, b in zip(conv.kernel, spatial, _dense(conv.kernel), strict=True))
    size = prod(conv.kernel)
    if not conv.transposed and dense and second == size:
        # Row-major weights: the terms of a channel are one run in memory.
        vector = vector_width(dtype, terms, first) if aligned else 1
        where = f"int64_t(batch * M + m) * {first} + k"
        return (f"return A_ALWAYS || (m < M && k < K) ? arguments.weight + {where} : nullptr;",), vector
    if conv.transposed:
        where = f"int64_t(batch * {conv.in_channels} + channel) * {first} + int64_t(m) * {second}"
    else:
        where = f"int64_t(batch * M + m) * {first} + int64_t(channel) * {second}"
    where += "".join(f" + k{d} * {step}" for d, step, n in zip(_DIMS, spatial, conv.kernel, strict=True) if n > 1)
    beyond = "if (!A_ALWAYS && (m >= M || k >= K)) return nullptr;"
    return (beyond, *_terms(conv, "k"), f"return arguments.weight + {where};"), 1


def _terms(conv: Convolution, variable: str) -> list[str]:
    """Lines that take a term's number apart into `channel` and `kD`, `kH`, `kW`."""
    lines = []
    rest = variable
    below = 1
    for d, size in reversed(list(zip(_DIMS, conv.kernel, strict=True))):
        if size > 1:
            quotient = rest if below == 1 else f"{rest} / {below}"
            lines.append(f"const int k{d} = {quotient} % {size};")
            below *= size
    lines.append(f"const int channel = {rest}{f' / {below}' if below > 1 else ''};")
    return lines


def _pixel_lines(conv: Convolution) -> list[str]:
    """Lines that take a pixel's number apart into `sample` and `oD`, `oH`, `oW`."""
    lines = []
    below = 1
    for d, size in reversed(list(zip(_DIMS, conv.result, strict=True))):
        if size > 1:
            quotient = "n" if below == 1 else f"n / {below}"
            lines.append(f"const int o{d} = {quotient} % {size};")
            below *= size
    if conv.batch > 1:
        lines.append(f"const int sample = n{f' / {below}' if below > 1 else ''};")
    return lines


def _image_body(conv: Convolution) -> list[str]:
    lines = ["if (!B_ALWAYS && (k >= K || n >= N)) return nullptr;", *_terms(conv, "k"), *_pixel_lines(conv)]
    where = []
    if conv.batch > 1:
        where.append(f"int64_t(sample) * {conv.input_step[0]}")
    channel = f"batch * {conv.in_channels} + channel" if conv.groups > 1 else "channel"
    where.append(f"int64_t({channel}) * {conv.input_step[1]}")
    for position, d in enumerate(_DIMS):
        size, step = conv.image[position], conv.input_step[2 + position]
        if size == 1 and conv.kernel[position] == 1 and conv.result[position] == 1 and not conv.padding[position]:
            continue
        lines += _gather_lines(conv, position, d)
        where.append(_step(f"i{d}", size, step))
    return [*lines, f"return arguments.image + {' + '.join(where) or '0'};"]


def _gather_lines(conv: Convolution, position: int, d: str) -> list[str]:
    """Lines that give `i<d>`, the input position, or return where there is none."""
    stride, padding, dilation = conv.stride[position], conv.padding[position], conv.dilation[position]
    size = conv.image[position]
    out = f"o{d}" if conv.result[position] > 1 else "0"
    tap = f"k{d}" if conv.kernel[position] > 1 else "0"
    tap = f"{tap} * {dilation}" if dilation > 1 else tap
    if conv.transposed:
        lines = [f"const int reach{d} = {out} + {padding} - {tap};"]
        if stride > 1:
            lines.append(f"if (reach{d} < 0 || reach{d} % {stride} != 0) return nullptr;")
            lines.append(f"const int i{d} = reach{d} / {stride};")
            lines.append(f"if (i{d} >= {size}) return nullptr;")
        else:
            lines.append(f"const int i{d} = reach{d};")
            lines.append(f"if (i{d} < 0 || i{d} >= {size}) return nullptr;")
        return lines
    scaled = f"{out} * {stride}" if stride > 1 else out
    lines = [f"const int i{d} = {scaled} + {tap}{f' - {padding}' if padding else ''};"]
    last = (conv.result[position] - 1) * stride + (conv.kernel[position] - 1) * dilation - padding
    tests = ([f"i{d} < 0"] if padding > 0 else []) + ([f"i{d} >= {size}"] if last >= size else [])
    if tests:
        lines.append(f"if ({' || '.join(tests)}) return nullptr;")
    return lines


def _store_lines(conv: Convolution, value: str) -> list[str]:
    where = []
    if conv.batch > 1:
        where.append(f"int64_t(sample) * {conv.result_step[0]}")
    where.append(f"int64_t(batch * M + m) * {conv.result_step[1]}")
    for position, d in enumerate(_DIMS):
        if conv.result[position] > 1:
            where.append(_step(f"o{d}", conv.result[position], conv.result_step[2 + position]))
    return [f"narrow({value}, arguments.result[{' + '.join(where)}]);"]


def _step(variable: str, size: int, step: int) -> str:
    """The offset of a position along one dimension."""
    wide = f"int64_t({variable})" if size * step >= 2**31 else variable
    return f"{wide} * {step}" if step != 1 else wide


def _padding(padding: Arg, kernel: tuple[int, ...], dilation: tuple[int, ...], node: Node) -> tuple[int, ...]:
    if padding == "valid":
        return (0,) * len(kernel)
    if padding == "same":
        total = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        if any(t % 2 for t in total):
            raise CannotWrite(f"{node.op} pads one side more than the other")
        return tuple(t // 2 for t in total)
    return _spread(padding, len(kernel))


def _spread(value: Arg, dims: int) -> tuple[int, ...]:
    if isinstance(value, int):
        return (value,) * dims
    assert isinstance(value, tuple)
    numbers = tuple(v for v in value if isinstance(v, int))
    return numbers * dims if len(numbers) == 1 else numbers


def _three(values: tuple[int, ...], fill: int) -> tuple[int, int, int]:
    padded = (fill,) * (3 - len(values)) + tuple(values)
    return padded[0], padded[1], padded[2]


def _dense(kernel: tuple[int, int, int]) -> tuple[int, ...]:
    return (kernel[1] * kernel[2], kernel[2], 1)
