"""Device functions that kernels share, by name. Each is written once a source, after what it needs."""

from __future__ import annotations

import re
from collections.abc import Iterable

from engine.codegen.helpers_cluster import CLUSTER_SNIPPETS
from engine.codegen.helpers_reduce import REDUCE_SNIPPETS

_WORD = re.compile(r"[A-Za-z_]\w*")
_DEFINITION = re.compile(r"^struct (?:alignas\(.*\) )?(\w+)|^(?! )[^\n=;]*?\b(\w+)\(", re.MULTILINE)
_HEAD = "template <class T>\n__device__ __forceinline__ "

# Name: (needed snippets, text).
SNIPPETS: dict[str, tuple[tuple[str, ...], str]] = {
    "pack": ((), """\
// kWidth neighbouring elements, moved in one 16-byte access (or two) where they fill it.
template <class T, int kWidth>
struct alignas(sizeof(T) * kWidth < 16 ? sizeof(T) * kWidth : 16) Pack {
    T at[kWidth];
};

template <int kWidth, class T>
__device__ __forceinline__ Pack<T, kWidth> load_pack(T const* __restrict__ address) {
    return *reinterpret_cast<Pack<T, kWidth> const*>(address);
}

template <int kWidth, class T>
__device__ __forceinline__ void store_pack(T* __restrict__ address, Pack<T, kWidth> const& values) {
    *reinterpret_cast<Pack<T, kWidth>*>(address) = values;
}
"""),
    "clamp_low": ((), _HEAD + """T clamp_low(T x, T low) {  // NaN stays NaN.
    return x < low || low != low ? low : x;
}
"""),
    "clamp_high": ((), _HEAD + """T clamp_high(T x, T high) {  // NaN stays NaN.
    return x > high || high != high ? high : x;
}
"""),
    "max_nan": ((), _HEAD + """T max_nan(T a, T b) {  // NaN if either is NaN, unlike fmax.
    return a > b || a != a ? a : b;
}
"""),
    "min_nan": ((), _HEAD + """T min_nan(T a, T b) {  // NaN if either is NaN, unlike fmin.
    return a < b || a != a ? a : b;
}
"""),
    "sigmoid": ((), _HEAD + """T sigmoid(T x) {
    return T(1) / (T(1) + exp(-x));
}
"""),
    "silu": ((), _HEAD + """T silu(T x) {
    return x / (T(1) + exp(-x));
}
"""),
    "gelu": ((), _HEAD + """T gelu(T x) {  // x * Phi(x)
    return T(0.5) * x * (T(1) + erf(x * T(0.70710678118654752440)));
}
"""),
    "gelu_tanh": ((), _HEAD + """T gelu_tanh(T x) {
    T const inner = T(0.79788456080286535588) * (x + T(0.044715) * x * x * x);  // sqrt(2 / pi) * ...
    return T(0.5) * x * (T(1) + tanh(inner));
}
"""),
    "mish": ((), _HEAD + """T mish(T x) {  // x * tanh(log(1 + e^x)); with n = e^x * (e^x + 2) that tanh is n / (n + 2)
    if (x > T(20)) {
        return x;
    }
    T const e = exp(x);
    T const n = e * (e + T(2));
    return x * (n / (n + T(2)));
}
"""),
    "softplus": ((), _HEAD + """T softplus(T x, T beta, T threshold) {
    return x * beta > threshold ? x : log1p(exp(x * beta)) / beta;
}
"""),
    "elu": ((), _HEAD + """T elu(T x, T alpha, T scale, T input_scale) {
    return x <= T(0) ? expm1(x * input_scale) * (alpha * scale) : x * scale;
}
"""),
    "hardsigmoid": (("clamp_low", "clamp_high"), _HEAD + """T hardsigmoid(T x) {
    return clamp_high(clamp_low(x + T(3), T(0)), T(6)) * T(1.0 / 6.0);
}
"""),
    "hardswish": (("clamp_low", "clamp_high"), _HEAD + """T hardswish(T x) {
    return x * clamp_high(clamp_low(x + T(3), T(0)), T(6)) * T(1.0 / 6.0);
}
"""),
    "log_sigmoid": ((), _HEAD + """T log_sigmoid(T x) {
    return (x < T(0) ? x : T(0)) - log1p(exp(-fabs(x)));
}
"""),
    "softshrink": ((), _HEAD + """T softshrink(T x, T lambda) {
    return x > lambda ? x - lambda : (x < -lambda ? x + lambda : x * T(0));
}
"""),
    "lerp_exact": ((), _HEAD + """T lerp_exact(T a, T b, T weight) {  // Exact at both ends.
    return fabs(weight) < T(0.5) ? a + weight * (b - a) : b - (b - a) * (T(1) - weight);
}
"""),
    "sinc": ((), _HEAD + """T sinc(T x) {
    T const angle = x * T(3.14159265358979323846);
    return x == T(0) ? T(1) : sin(angle) / angle;
}
"""),
    "log_add_exp": ((), _HEAD + """T log_add_exp(T a, T b) {
    T const largest = a > b || a != a ? a : b;
    return isinf(a) && a == b ? a : largest + log1p(exp(-fabs(a - b)));
}
"""),
    "x_log_y": ((), _HEAD + """T x_log_y(T x, T y) {
    return y != y ? y : (x == T(0) ? T(0) : x * log(y));
}
"""),
    "floor_divide": ((), _HEAD + """T floor_divide(T a, T b) {  // Rounded towards minus infinity, as Python divides.
    if (b == T(0)) {
        return a / b;
    }
    T const rest = fmod(a, b);
    T quotient = (a - rest) / b;
    if (rest != T(0) && (b < T(0)) != (rest < T(0))) {
        quotient -= T(1);
    }
    if (quotient == T(0)) {
        return copysign(T(0), a / b);
    }
    T const whole = floor(quotient);
    return quotient - whole > T(0.5) ? whole + T(1) : whole;
}

template <class T>
__device__ __forceinline__ T floor_divide_integer(T a, T b) {
    T const quotient = a / b;
    return quotient * b != a && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}
"""),
    "remainder_floor": ((), _HEAD + """T remainder_floor(T a, T b) {  // Has the sign of b.
    T const rest = fmod(a, b);
    return rest != T(0) && (b < T(0)) != (rest < T(0)) ? rest + b : rest;
}

template <class T>
__device__ __forceinline__ T remainder_integer(T a, T b) {
    T const rest = a % b;
    return rest != 0 && (b < 0) != (rest < 0) ? rest + b : rest;
}
"""),
    "power_integer": ((), _HEAD + """T power_integer(T base, T exponent) {
    if (exponent < 0) {
        return base == 1 ? 1 : (base == T(-1) ? (exponent % 2 == 0 ? 1 : -1) : 0);
    }
    T result = 1;
    for (; exponent > 0; exponent /= 2) {
        if (exponent % 2 == 1) {
            result *= base;
        }
        base *= base;
    }
    return result;
}
"""),
    "shift_left": ((), _HEAD + """T shift_left(T x, T bits) {  // Nothing is left after as many bits as there are.
    return bits < 0 || bits >= T(8 * sizeof(T)) ? T(0) : static_cast<T>(static_cast<uint64_t>(x) << bits);
}
"""),
    "shift_right": ((), _HEAD + """T shift_right(T x, T bits) {  // The sign is left after as many bits as there are.
    return bits < 0 || bits >= T(8 * sizeof(T)) ? T(x < 0 ? -1 : 0) : static_cast<T>(x >> bits);
}
"""),
    "replace_nonfinite": ((), _HEAD + """T replace_nonfinite(T x, T nan, T positive, T negative) {
    return x != x ? nan : (isinf(x) ? (x > T(0) ? positive : negative) : x);
}
"""),
    **REDUCE_SNIPPETS,
    **CLUSTER_SNIPPETS,
}


def occurring(names: Iterable[str], code: str) -> set[str]:
    """Those of `names` whose snippet defines something that `code` mentions."""
    mentioned = set(_WORD.findall(code))
    return {name for name in names if mentioned & _defined(SNIPPETS[name][1])}


def _defined(snippet: str) -> set[str]:
    return {found for pair in _DEFINITION.findall(snippet) for found in pair if found}


def helper_text(names: Iterable[str]) -> str:
    """The snippets `names` and what they need, each once, in an order that compiles.

    Raises:
        KeyError: No snippet has that name.
    """
    order: list[str] = []

    def add(name: str) -> None:
        if name in order:
            return
        needs, _ = SNIPPETS[name]
        for need in needs:
            add(need)
        order.append(name)

    for name in sorted(names):
        add(name)
    return "\n".join(SNIPPETS[name][1] for name in order)
