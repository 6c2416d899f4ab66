"""Matrix products of the graph in one form: batch x (M x K) x (K x N), every operand with its own strides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from contracts.graph import Node, Ref
from contracts.tensors import TensorSpec
from engine.codegen import CannotWrite
from engine.codegen.cpp import CPP_TYPE, number
from engine.codegen.products import Operand, Product, vector_width

MATMULS = frozenset(["linear", "matmul", "mm", "bmm", "mv", "dot", "addmm", "addmv", "baddbmm"])


@dataclass(frozen=True, slots=True)
class BatchDim:
    """One batch dimension and the step of each operand along it, in elements."""

    size: int
    a: int
    b: int
    c: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Matmul:
    """`out[batch, m, n] = alpha * sum_k a[batch, m, k] * b[batch, k, n] + beta * added[batch, m, n]`.

    Attributes:
        a, b: Values multiplied.
        out: Value made.
        batch: Batch dimensions, outermost first.
        m, n, k: Sizes.
        a_m, a_k, b_k, b_n, c_m, c_n: Steps in elements.
        added: Value added (a bias), or None.
        added_steps: Its steps along the batch dimensions, then m, then n; 0 where it is broadcast.
        alpha, beta: Factors.
    """

    a: str
    b: str
    out: str
    batch: tuple[BatchDim, ...]
    m: int
    n: int
    k: int
    a_m: int
    a_k: int
    b_k: int
    b_n: int
    c_m: int
    c_n: int
    added: str | None = None
    added_steps: tuple[int, ...] = ()
    alpha: float = 1
    beta: float = 1

    @property
    def batches(self) -> int:
        """Products in all."""
        size = 1
        for dim in self.batch:
            size *= dim.size
        return size

    @property
    def flops(self) -> int:
        """Multiplications and additions."""
        return 2 * self.batches * self.m * self.n * self.k


def parse(node: Node, layouts: Mapping[str, TensorSpec]) -> Matmul:
    """The product that a node of `MATMULS` computes, at the layouts given (its output's included).

    Raises:
        CannotWrite: The operands do not share a dtype.
    """
    arguments = node.args
    names = {
        "linear": ("input", "weight", "bias"), "matmul": ("self", "other", ""), "mm": ("self", "mat2", ""),
        "bmm": ("self", "mat2", ""), "mv": ("self", "vec", ""), "dot": ("self", "tensor", ""),
        "addmm": ("mat1", "mat2", "self"), "addmv": ("mat", "vec", "self"), "baddbmm": ("batch1", "batch2", "self"),
    }[node.base]
    a, b = (arguments[name] for name in names[:2])
    added = arguments.get(names[2]) if names[2] else None
    assert isinstance(a, Ref)
    assert isinstance(b, Ref)
    out = layouts[node.out]
    if not layouts[a.name].dtype == layouts[b.name].dtype == out.dtype:
        raise CannotWrite(f"{node.op} mixes dtypes")
    a_spec, b_spec = layouts[a.name], layouts[b.name]
    a_shape, a_stride = _at_least_two(a_spec, row=True)
    b_shape, b_stride = _at_least_two(b_spec, row=False)
    if node.base == "linear":
        b_shape, b_stride = b_shape[:-2] + b_shape[:-3:-1], b_stride[:-2] + b_stride[:-3:-1]
        if len(b_spec.shape) == 1:
            b_shape, b_stride = (b_spec.shape[0], 1), (b_spec.stride[0], 0)
    m, k, n = a_shape[-2], a_shape[-1], b_shape[-1]
    c_stride = list(out.stride)
    if len(a_spec.shape) == 1:
        c_stride.insert(len(c_stride) - (len(b_spec.shape) > 1 and node.base != "linear"), 0)
    if len(b_spec.shape) == 1:
        c_stride.append(0)
    batch_rank = len(c_stride) - 2
    batch = []
    batch_shape = _batch_shape(a_shape[:-2], b_shape[:-2])
    assert len(batch_shape) == batch_rank, node.op
    for d, size in enumerate(batch_shape):
        batch.append(BatchDim(
            size, _step(a_shape[:-2], a_stride[:-2], batch_rank, d), _step(b_shape[:-2], b_stride[:-2], batch_rank, d),
            c_stride[d],
        ))
    added_steps: tuple[int, ...] = ()
    if isinstance(added, Ref):
        spec = layouts[added.name]
        if spec.dtype != out.dtype:
            raise CannotWrite(f"{node.op} mixes dtypes")
        steps = [_step(spec.shape, spec.stride, len(out.shape), d) for d in range(len(out.shape))]
        if len(b_spec.shape) == 1:
            steps.append(0)
        while len(steps) < batch_rank + 2:
            steps.insert(0, 0)
        added_steps = tuple(steps)
    matmul = Matmul(
        a=a.name, b=b.name, out=node.out, batch=tuple(batch), m=m, n=n, k=k, a_m=a_stride[-2], a_k=a_stride[-1],
        b_k=b_stride[-2], b_n=b_stride[-1], c_m=c_stride[-2], c_n=c_stride[-1],
        added=added.name if isinstance(added, Ref) else None, added_steps=added_steps,
        alpha=_factor(arguments.get("alpha")), beta=_factor(arguments.get("beta")),
    )
    return _folded(matmul)


def as_product(
    matmul: Matmul, *, name: str, dtype: str, expressions: Mapping[str, str], aligned: tuple[bool, bool],
    source: str, weight: float,
) -> Product:
    """The product for own kernels.

    Args:
        matmul: What to compute.
        name: Struct name.
        dtype: Element type.
        expressions: at::Tensor expression of every value.
        aligned: Whether A and B start on 16 bytes.
        source: The operator, for the comment.
        weight: Share of the module's time.
    """
    a_along_k = matmul.a_k == 1 or matmul.a_m != 1
    b_along_k = matmul.b_n != 1 and matmul.b_k == 1
    a_across, b_across = (matmul.a_m, matmul.b_n) if a_along_k else (matmul.a_k, matmul.b_n)
    a_vector = _vector(
        dtype, aligned[0], matmul.a_k if a_along_k else matmul.a_m, matmul.k if a_along_k else matmul.m,
        (a_across, *(d.a for d in matmul.batch)),
    )
    b_across = matmul.b_n if b_along_k else matmul.b_k
    b_vector = _vector(
        dtype, aligned[1], matmul.b_k if b_along_k else matmul.b_n, matmul.k if b_along_k else matmul.n,
        (b_across, *(d.b for d in matmul.batch)),
    )
    ctype = CPP_TYPE[dtype]
    pointers = {
        "a": (ctype, expressions[matmul.a], False), "b": (ctype, expressions[matmul.b], False),
        "c": (ctype, expressions[matmul.out], True),
    }
    value = "sum" if matmul.alpha == 1 else f"Sum({number(matmul.alpha)}) * sum"
    if matmul.added is not None:
        pointers["added"] = (ctype, expressions[matmul.added], False)
        *outer, along_m, along_n = matmul.added_steps
        where = _offset(matmul, outer, ("m", along_m), ("n", along_n))
        extra = f"wide(arguments.added[{where}])"
        value += f" + {extra}" if matmul.beta == 1 else f" + Sum({number(matmul.beta)}) * {extra}"
    c_where = _offset(matmul, [d.c for d in matmul.batch], ("m", matmul.c_m), ("n", matmul.c_n))
    return Product(
        name=name,
        title=f"{source}: {matmul.batches} x ({matmul.m} x {matmul.k}) times ({matmul.k} x {matmul.n}).",
        dtype=dtype, batch=matmul.batches, m=matmul.m, n=matmul.n, k=matmul.k,
        a=Operand(along_k=a_along_k, vector=a_vector, body=_address(
            "a", "m", "M",
            _offset(matmul, [d.a for d in matmul.batch], ("m", matmul.a_m), ("k", matmul.a_k)))),
        b=Operand(along_k=b_along_k, vector=b_vector, body=_address(
            "b", "n", "N",
            _offset(matmul, [d.b for d in matmul.batch], ("k", matmul.b_k), ("n", matmul.b_n)))),
        store=(f"narrow({value}, arguments.c[{c_where}]);",),
        pointers=pointers, weight=weight,
    )


def _address(operand: str, index: str, bound: str, where: str) -> tuple[str, ...]:
    always = f"{operand.upper()}_ALWAYS"
    return (f"return {always} || ({index} < {bound} && k < K) ? arguments.{operand} + {where} : nullptr;",)


def _offset(matmul: Matmul, outer: list[int], *inner: tuple[str, int]) -> str:
    """Element offset as C++ text, from batch steps and the two inner steps."""
    terms = []
    below = 1
    for dim, step in reversed(list(zip(matmul.batch, outer, strict=True))):
        if step and dim.size > 1:
            index = "batch" if below == 1 else f"batch / {below}"
            if below * dim.size < matmul.batches:
                index = f"({index}) % {dim.size}" if below > 1 else f"{index} % {dim.size}"
            terms.insert(0, f"int64_t({index}) * {step}" if step != 1 else f"int64_t({index})")
        below *= dim.size
    for variable, step in inner:
        if step:
            terms.append(f"int64_t({variable}) * {step}" if step != 1 else variable)
    return " + ".join(terms) or "0"


def _vector(dtype: str, aligned: bool, step: int, size: int, others: tuple[int, ...]) -> int:
    return vector_width(dtype, size, *others) if aligned and step == 1 else 1


def _at_least_two(spec: TensorSpec, *, row: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
    if len(spec.shape) >= 2:
        return spec.shape, spec.stride
    size, step = (spec.shape[0], spec.stride[0]) if spec.shape else (1, 0)
    return ((1, size), (0, step)) if row else ((size, 1), (step, 0))


def _batch_shape(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    rank = max(len(a), len(b))
    padded = [(1,) * (rank - len(s)) + s for s in (a, b)]
    return tuple(x if y == 1 else y for x, y in zip(*padded, strict=True))


def _step(shape: tuple[int, ...], stride: tuple[int, ...], rank: int, d: int) -> int:
    own = d - (rank - len(shape))
    return stride[own] if own >= 0 and shape[own] != 1 else 0


def _factor(value: object) -> float:
    return value if isinstance(value, (int, float)) else 1


def _folded(matmul: Matmul) -> Matmul:
    """Batch dimensions that are really more rows become rows; neighbours that step alike become one."""
    import dataclasses

    while matmul.batch:
        last, steps = matmul.batch[-1], matmul.added_steps
        rows = last.b == 0 and last.a == matmul.m * matmul.a_m and last.c == matmul.m * matmul.c_m
        if last.size == 1:
            rows = True
        if steps and last.size > 1 and steps[-3] != matmul.m * steps[-2]:
            rows = False
        if not rows:
            break
        matmul = dataclasses.replace(
            matmul, batch=matmul.batch[:-1], m=matmul.m * last.size,
            added_steps=(*steps[:-3], *steps[-2:]) if steps else (),
        )
    return matmul
