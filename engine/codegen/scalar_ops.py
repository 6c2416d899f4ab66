"""What each element-wise ATen operator computes on one element, as a C++ expression.

A row says which arguments are tensors or numbers operands, in which dtype the operator computes, and how its
expression reads. Expressions keep PyTorch's semantics for NaN, infinities, signed zeros and integers.
`ctype` below is the compute type: float for float16, bfloat16 and float32; double; or the integer type itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from engine.codegen.scalar_types import SMALL_INTEGERS, literal

# Builds the expression: compute type, operand expressions (simple names or literals), further arguments.
Builder = Callable[..., str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalarOp:
    """One element-wise operator.

    Attributes:
        operands: Names of the arguments that vary per element (tensors or numbers).
        build: `build(ctype, *operands, **options)` gives the expression.
        options: Names of the other arguments that matter.
        kind: `result` computes in the result's dtype, `operands` in the operands' common dtype with a bool result.
        cost: Rough instructions an element; 20 and more count as expensive to repeat.
        helpers: Shared snippets the expression needs.
    """

    operands: tuple[str, ...]
    build: Builder
    options: tuple[str, ...] = ()
    kind: str = "result"
    cost: int = 1
    helpers: tuple[str, ...] = ()


def _float(ctype: str) -> bool:
    return ctype in ("float", "double")


def _narrow(ctype: str, text: str) -> str:
    """C++ computes small integers as int; torch wraps them around."""
    return f"static_cast<{ctype}>({text})" if ctype in SMALL_INTEGERS else text


def _call(name: str) -> Builder:
    return lambda ctype, *x: f"{name}({', '.join(x)})"  # noqa: ARG005


def _compare(sign: str) -> Builder:
    return lambda ctype, a, b: f"{a} {sign} {b}"  # noqa: ARG005


def _scaled(sign: str) -> Builder:
    def build(ctype: str, a: str, b: str, alpha: float = 1) -> str:
        if ctype == "bool":
            return f"{a} || {b}" if alpha else a
        scaled = b if alpha == 1 else f"{b} * {literal(alpha, ctype)}"
        return _narrow(ctype, f"{a} {sign} {scaled}")

    return build


def _rsub(ctype: str, a: str, b: str, alpha: float = 1) -> str:
    return _scaled("-")(ctype, b, a, alpha)


def _mul(ctype: str, a: str, b: str) -> str:
    return f"{a} && {b}" if ctype == "bool" else _narrow(ctype, f"{a} * {b}")


def _div(ctype: str, a: str, b: str, rounding_mode: str | None = None) -> str:
    if rounding_mode is None:
        return f"{a} / {b}"
    if rounding_mode == "trunc":
        return f"trunc({a} / {b})" if _float(ctype) else _narrow(ctype, f"{a} / {b}")
    return f"floor_divide({a}, {b})" if _float(ctype) else _narrow(ctype, f"floor_divide_integer({a}, {b})")


def _pow(ctype: str, x: str, y: str) -> str:
    if not _float(ctype):
        return _narrow(ctype, f"power_integer({x}, {y})")
    try:
        exponent = float(y.rstrip("f"))
    except ValueError:
        return f"pow({x}, {y})"
    one = literal(1, ctype)
    products = {2.0: f"{x} * {x}", 3.0: f"{x} * {x} * {x}", 4.0: f"({x} * {x}) * ({x} * {x})", 1.0: x}
    if exponent == 0.0:
        return one
    if exponent in products:
        return products[exponent]
    if -exponent in products:
        return f"{one} / ({products[-exponent]})"
    if exponent == 0.5:
        return f"sqrt({x})"
    if exponent == -0.5:
        return f"rsqrt({x})"
    return f"pow({x}, {y})"


def _sign(ctype: str, x: str) -> str:
    if ctype == "bool":
        return x
    zero, one = literal(0, ctype), literal(1, ctype)
    return _narrow(ctype, f"{x} > {zero} ? {one} : ({x} < {zero} ? -{one} : {zero})")


def _abs(ctype: str, x: str) -> str:
    if _float(ctype):
        return f"fabs({x})"
    return x if ctype in ("bool", "uint8_t") else _narrow(ctype, f"{x} < 0 ? -{x} : {x}")


def _clamp(ctype: str, x: str, low: str | None = None, high: str | None = None) -> str:  # noqa: ARG001
    if high is None:
        return x if low is None else f"clamp_low({x}, {low})"
    return f"clamp_high({x}, {high})" if low is None else f"clamp_high(clamp_low({x}, {low}), {high})"


def _round(ctype: str, x: str, decimals: int = 0) -> str:
    if not _float(ctype):
        return x
    if decimals == 0:
        return f"nearbyint({x})"
    scale = literal(10.0 ** abs(decimals), ctype)
    return f"nearbyint({x} * {scale}) / {scale}" if decimals > 0 else f"nearbyint({x} / {scale}) * {scale}"


def _gelu(ctype: str, x: str, approximate: str = "none") -> str:  # noqa: ARG001
    return f"gelu_tanh({x})" if approximate == "tanh" else f"gelu({x})"


def _typed(name: str, *options: str) -> Builder:
    """A helper call whose options are written as literals of the compute type."""

    def build(ctype: str, *x: str, **values: float) -> str:
        extra = [literal(values[option], ctype) for option in options]
        return f"{name}({', '.join([*x, *extra])})"

    return build


def _celu(ctype: str, x: str, alpha: float = 1.0) -> str:
    return f"elu({x}, {literal(alpha, ctype)}, {literal(1, ctype)}, {literal(1 / alpha, ctype)})"


def _selu(ctype: str, x: str) -> str:
    alpha, scale = 1.6732632423543772, 1.0507009873554805
    return f"elu({x}, {literal(alpha, ctype)}, {literal(scale, ctype)}, {literal(1, ctype)})"


def _logit(ctype: str, x: str, eps: float | None = None) -> str:
    one = literal(1, ctype)
    if eps is None:
        return f"log({x} / ({one} - {x}))"
    low, high = literal(eps, ctype), literal(1 - eps, ctype)
    inner = f"clamp_high(clamp_low({x}, {low}), {high})"
    return f"log({inner} / ({one} - {inner}))"


def _nan_to_num(
    ctype: str, x: str, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> str:
    if not _float(ctype):
        return x
    largest = 3.4028234663852886e38 if ctype == "float" else 1.7976931348623157e308
    values = [nan or 0.0, largest if posinf is None else posinf, -largest if neginf is None else neginf]
    return f"replace_nonfinite({x}, {', '.join(literal(v, ctype) for v in values)})"


def _bitwise(sign: str, logical: str) -> Builder:
    return lambda ctype, a, b: f"{a} {logical} {b}" if ctype == "bool" else _narrow(ctype, f"{a} {sign} {b}")


def _logical(sign: str) -> Builder:
    return lambda ctype, a, b: f"({a} != {literal(0, ctype)}) {sign} ({b} != {literal(0, ctype)})"


def _addcmul(ctype: str, x: str, a: str, b: str, value: float = 1) -> str:
    product = f"{a} * {b}" if value == 1 else f"{literal(value, ctype)} * {a} * {b}"
    return _narrow(ctype, f"{x} + {product}")


def _addcdiv(ctype: str, x: str, a: str, b: str, value: float = 1) -> str:
    return f"{x} + {a} / {b}" if value == 1 else f"{x} + {literal(value, ctype)} * ({a} / {b})"


def _integers_unchanged(name: str) -> Builder:
    return lambda ctype, x: f"{name}({x})" if _float(ctype) else x


def _float_test(name: str, otherwise: str) -> Builder:
    return lambda ctype, x: f"{name}({x})" if _float(ctype) else otherwise


def _one(build: Builder, **more: object) -> ScalarOp:
    return ScalarOp(operands=("self",), build=build, **more)  # type: ignore[arg-type]


def _two(build: Builder, **more: object) -> ScalarOp:
    return ScalarOp(operands=("self", "other"), build=build, **more)  # type: ignore[arg-type]


def _maths(*names: str, cost: int = 20) -> dict[str, ScalarOp]:
    return {name: _one(_call(name), cost=cost) for name in names}


def _compares(**signs: str) -> dict[str, ScalarOp]:
    return {name: _two(_compare(sign), kind="operands") for name, sign in signs.items()}


_CLAMP = ("clamp_low", "clamp_high")

SCALAR_OPS: dict[str, ScalarOp] = {
    # Arithmetic.
    "add": _two(_scaled("+"), options=("alpha",)),
    "sub": _two(_scaled("-"), options=("alpha",)),
    "rsub": _two(_rsub, options=("alpha",)),
    "mul": _two(_mul),
    "div": _two(_div, options=("rounding_mode",), cost=8, helpers=("floor_divide",)),
    "floor_divide": _two(lambda ctype, a, b: _div(ctype, a, b, "floor"), cost=10, helpers=("floor_divide",)),
    "remainder": _two(
        lambda ctype, a, b: (
            f"remainder_floor({a}, {b})" if _float(ctype) else _narrow(ctype, f"remainder_integer({a}, {b})")
        ),
        cost=20,
        helpers=("remainder_floor",),
    ),
    "fmod": _two(lambda ctype, a, b: f"fmod({a}, {b})" if _float(ctype) else _narrow(ctype, f"{a} % {b}"), cost=20),
    "pow": ScalarOp(operands=("self", "exponent"), build=_pow, cost=20, helpers=("power_integer",)),
    "neg": _one(lambda ctype, x: _narrow(ctype, f"-{x}")),
    "positive": _one(lambda ctype, x: x),  # noqa: ARG005
    "abs": _one(_abs),
    "sign": _one(_sign),
    "sgn": _one(_sign),
    "square": _one(lambda ctype, x: _narrow(ctype, f"{x} * {x}")),
    "reciprocal": _one(lambda ctype, x: f"{literal(1, ctype)} / {x}", cost=8),
    "addcmul": ScalarOp(operands=("self", "tensor1", "tensor2"), build=_addcmul, options=("value",)),
    "addcdiv": ScalarOp(operands=("self", "tensor1", "tensor2"), build=_addcdiv, options=("value",), cost=8),
    "lerp": ScalarOp(operands=("self", "end", "weight"), build=_call("lerp_exact"), helpers=("lerp_exact",), cost=4),
    "copysign": _two(_call("copysign")),
    "hypot": _two(_call("hypot"), cost=20),
    "atan2": _two(_call("atan2"), cost=30),
    "ldexp": _two(lambda ctype, a, b: f"{a} * exp2({b})", cost=10),  # noqa: ARG005
    # Exponentials, roots, trigonometry.
    **_maths("exp", "exp2", "expm1", "log", "log2", "log10", "log1p"),
    **_maths("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh"),
    **_maths("erf", "erfc", "erfinv", "lgamma", cost=30),
    "sqrt": _one(_call("sqrt"), cost=8),
    "rsqrt": _one(_call("rsqrt"), cost=8),
    "sinc": _one(_call("sinc"), helpers=("sinc",), cost=25),
    "deg2rad": _one(lambda ctype, x: f"{x} * {literal(0.017453292519943295, ctype)}"),
    "rad2deg": _one(lambda ctype, x: f"{x} * {literal(57.29577951308232, ctype)}"),
    "logit": _one(_logit, options=("eps",), cost=20, helpers=_CLAMP),
    "logaddexp": _two(_call("log_add_exp"), cost=40, helpers=("log_add_exp",)),
    "xlogy": _two(_call("x_log_y"), cost=25, helpers=("x_log_y",)),
    # Rounding.
    "floor": _one(_integers_unchanged("floor")),
    "ceil": _one(_integers_unchanged("ceil")),
    "trunc": _one(_integers_unchanged("trunc")),
    "round": _one(_round, options=("decimals",)),
    "frac": _one(lambda ctype, x: f"{x} - trunc({x})"),  # noqa: ARG005
    # Activations.
    "relu": _one(lambda ctype, x: f"clamp_low({x}, {literal(0, ctype)})", helpers=_CLAMP),
    "relu6": _one(lambda ctype, x: _clamp(ctype, x, literal(0, ctype), literal(6, ctype)), helpers=_CLAMP),
    "sigmoid": _one(_call("sigmoid"), helpers=("sigmoid",), cost=20),
    "silu": _one(_call("silu"), helpers=("silu",), cost=20),
    "gelu": _one(_gelu, options=("approximate",), helpers=("gelu", "gelu_tanh"), cost=30),
    "mish": _one(_call("mish"), helpers=("mish",), cost=40),
    "softplus": _one(
        _typed("softplus", "beta", "threshold"), options=("beta", "threshold"), helpers=("softplus",), cost=30
    ),
    "elu": _one(
        _typed("elu", "alpha", "scale", "input_scale"),
        options=("alpha", "scale", "input_scale"),
        helpers=("elu",),
        cost=20,
    ),
    "celu": _one(_celu, options=("alpha",), helpers=("elu",), cost=20),
    "selu": _one(_selu, helpers=("elu",), cost=20),
    "leaky_relu": _one(
        lambda ctype, x, negative_slope=0.01: (
            f"{x} > {literal(0, ctype)} ? {x} : {x} * {literal(negative_slope, ctype)}"
        ),
        options=("negative_slope",),
    ),
    "prelu": ScalarOp(
        operands=("self", "weight"), build=lambda ctype, x, w: f"{x} > {literal(0, ctype)} ? {x} : {x} * {w}"
    ),
    "hardtanh": ScalarOp(operands=("self", "min_val", "max_val"), build=_clamp, helpers=_CLAMP),
    "hardsigmoid": _one(_call("hardsigmoid"), helpers=("hardsigmoid",), cost=4),
    "hardswish": _one(_call("hardswish"), helpers=("hardswish",), cost=4),
    "log_sigmoid": _one(_call("log_sigmoid"), helpers=("log_sigmoid",), cost=40),
    "hardshrink": _one(
        lambda ctype, x, lambd=0.5: (
            f"{x} >= {literal(-lambd, ctype)} && {x} <= {literal(lambd, ctype)} ? {literal(0, ctype)} : {x}"
        ),
        options=("lambd",),
    ),
    "softshrink": _one(_typed("softshrink", "lambd"), options=("lambd",), helpers=("softshrink",)),
    "threshold": ScalarOp(
        operands=("self", "threshold", "value"),
        build=lambda ctype, x, t, v: f"{x} <= {t} ? {v} : {x}",  # noqa: ARG005
    ),
    # Choice and limits.
    "where": ScalarOp(operands=("condition", "self", "other"), build=lambda ctype, c, a, b: f"{c} ? {a} : {b}"),  # noqa: ARG005
    "masked_fill": ScalarOp(operands=("self", "mask", "value"), build=lambda ctype, x, m, v: f"{m} ? {v} : {x}"),  # noqa: ARG005
    "clamp": ScalarOp(operands=("self", "min", "max"), build=_clamp, helpers=_CLAMP),
    "clamp_min": ScalarOp(operands=("self", "min"), build=_clamp, helpers=_CLAMP),
    "clamp_max": ScalarOp(
        operands=("self", "max"), build=lambda ctype, x, high: _clamp(ctype, x, None, high), helpers=_CLAMP
    ),
    "maximum": _two(_call("max_nan"), helpers=("max_nan",)),
    "minimum": _two(_call("min_nan"), helpers=("min_nan",)),
    "fmax": _two(lambda ctype, a, b: f"fmax({a}, {b})" if _float(ctype) else _narrow(ctype, f"{a} > {b} ? {a} : {b}")),
    "fmin": _two(lambda ctype, a, b: f"fmin({a}, {b})" if _float(ctype) else _narrow(ctype, f"{a} < {b} ? {a} : {b}")),
    "nan_to_num": _one(_nan_to_num, options=("nan", "posinf", "neginf"), helpers=("replace_nonfinite",)),
    "heaviside": ScalarOp(
        operands=("self", "values"),
        build=lambda ctype, x, v: (
            f"{x} == {literal(0, ctype)} ? {v} : ({x} > {literal(0, ctype)} ? {literal(1, ctype)} : "
            f"{literal(0, ctype)})"
        ),
    ),
    # Comparison, logic, bits.
    **_compares(eq="==", ne="!=", lt="<", le="<=", gt=">", ge=">="),
    "isnan": _one(_float_test("isnan", "false"), kind="operands"),
    "isinf": _one(_float_test("isinf", "false"), kind="operands"),
    "isfinite": _one(_float_test("isfinite", "true"), kind="operands"),
    "signbit": _one(
        lambda ctype, x: f"signbit({x})" if _float(ctype) else f"{x} < {literal(0, ctype)}", kind="operands"
    ),
    "logical_not": _one(lambda ctype, x: f"{x} == {literal(0, ctype)}", kind="operands"),
    "logical_and": _two(_logical("&&"), kind="operands"),
    "logical_or": _two(_logical("||"), kind="operands"),
    "logical_xor": _two(_logical("!="), kind="operands"),
    "bitwise_not": _one(lambda ctype, x: f"!{x}" if ctype == "bool" else _narrow(ctype, f"~{x}")),
    "bitwise_and": _two(_bitwise("&", "&&")),
    "bitwise_or": _two(_bitwise("|", "||")),
    "bitwise_xor": _two(_bitwise("^", "!=")),
    "bitwise_left_shift": _two(_call("shift_left"), helpers=("shift_left",)),
    "bitwise_right_shift": _two(_call("shift_right"), helpers=("shift_right",)),
}

# Other names of the same operators.
ALIASES: dict[str, str] = {
    "multiply": "mul",
    "divide": "div",
    "true_divide": "div",
    "subtract": "sub",
    "negative": "neg",
    "absolute": "abs",
    "clip": "clamp",
    "greater": "gt",
    "greater_equal": "ge",
    "less": "lt",
    "less_equal": "le",
    "not_equal": "ne",
    "fix": "trunc",
    "arctan2": "atan2",
    "arctan": "atan",
    "arcsin": "asin",
    "arccos": "acos",
    "arcsinh": "asinh",
    "arccosh": "acosh",
    "arctanh": "atanh",
    "__and__": "bitwise_and",
    "__or__": "bitwise_or",
    "__xor__": "bitwise_xor",
    "__lshift__": "bitwise_left_shift",
    "__rshift__": "bitwise_right_shift",
    "special_expit": "sigmoid",
    "special_exp2": "exp2",
    "special_erf": "erf",
    "special_erfc": "erfc",
    "special_expm1": "expm1",
    "special_log1p": "log1p",
    "special_xlogy": "xlogy",
    "special_logit": "logit",
    "add_": "add",
    "mul_": "mul",
    "relu_": "relu",
    "silu_": "silu",
    "hardtanh_": "hardtanh",
    "hardswish_": "hardswish",
    "leaky_relu_": "leaky_relu",
    "elu_": "elu",
    "celu_": "celu",
    "selu_": "selu",
    "hardsigmoid_": "hardsigmoid",
    "log_sigmoid_forward": "log_sigmoid",
}


def scalar_op(base: str) -> ScalarOp | None:
    """The row of an ATen operator by its base name, or None if it is not element-wise."""
    return SCALAR_OPS.get(ALIASES.get(base, base))


def canonical(base: str) -> str:
    """The name under which `SCALAR_OPS` knows an operator."""
    return ALIASES.get(base, base)
