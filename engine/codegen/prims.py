"""The few primitive values that every fused operator is built from.

A primitive is a function from an index to one element. Views change the index, maps compute on elements, reductions
and windows fold many elements into one. Kernels *pull*: they ask an output for its element and everything
below follows, so nothing is stored in between unless a kernel decides to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import prod

from engine.codegen.index import Index

Indices = tuple[Index, ...]


class NotFusibleError(Exception):
    """These nodes cannot share kernels; the message says why."""


@dataclass(eq=False, kw_only=True)
class Prim:
    """A value.

    Attributes:
        name: C++ identifier to name variables after.
        dtype: Element type by torch's name.
        shape: Sizes.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def numel(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    def sources(self) -> Iterator[Prim]:
        """The values it is computed from."""
        return iter(())


@dataclass(eq=False, kw_only=True)
class Load(Prim):
    """A value in memory: an input of the region."""

    value: str


@dataclass(eq=False, kw_only=True)
class Fill(Prim):
    """The same number everywhere."""

    number: float | int | bool


@dataclass(eq=False, kw_only=True)
class Coordinate(Prim):
    """An integer that depends on the position only (`arange`, one-hot positions)."""

    function: Callable[[Indices], Index]


@dataclass(eq=False, kw_only=True)
class Within(Prim):
    """True where `low <= function(index) <= high` (`tril`, bounds)."""

    function: Callable[[Indices], Index]
    low: int | None = None
    high: int | None = None


@dataclass(eq=False, kw_only=True)
class Map(Prim):
    """An element-wise operator; arguments broadcast.

    Attributes:
        op: Row of `scalar_ops.SCALAR_OPS`, or `cast`.
        args: Operands in the operator's order; None where an optional operand is absent.
        options: Further arguments of the operator.
        compute: dtype in which it computes.
    """

    op: str
    args: tuple[Prim | None, ...]
    compute: str
    options: dict[str, object] = field(default_factory=dict)

    def sources(self) -> Iterator[Prim]:  # noqa: D102
        return (arg for arg in self.args if arg is not None)


@dataclass(eq=False, kw_only=True)
class View(Prim):
    """Other indices into the same elements.

    Attributes:
        source: The value viewed.
        forward: From an index here to an index of the source.
        backward: From an index of the source to the index here, if there is exactly one.
        tag: Views of the same source with equal shapes and tags are equal; None where that is not known.
    """

    source: Prim
    forward: Callable[[Indices], Indices]
    backward: Callable[[Indices], Indices] | None = None
    tag: str | None = None

    def sources(self) -> Iterator[Prim]:  # noqa: D102
        yield self.source


@dataclass(frozen=True, slots=True)
class Branch:
    """One case of `Choose`: used where all `low <= test < high` hold."""

    tests: Callable[[Indices], tuple[tuple[Index, int | None, int | None], ...]]
    source: Prim
    forward: Callable[[Indices], Indices]


@dataclass(eq=False, kw_only=True)
class Choose(Prim):
    """The first branch whose test holds, else `otherwise` (concatenation, padding)."""

    branches: tuple[Branch, ...]
    otherwise: Prim | None

    def sources(self) -> Iterator[Prim]:  # noqa: D102
        yield from (branch.source for branch in self.branches)
        if self.otherwise is not None:
            yield self.otherwise


@dataclass(eq=False, kw_only=True)
class Gather(Prim):
    """Elements at run-time positions.

    Attributes:
        source: Where elements come from.
        indices: Integer values, one for each run-time dimension of the source.
        forward: From an index here and the run-time positions to an index of the source.
        index_of: From an index here to an index of each of `indices`.
        bounds: Size of the source along each run-time dimension.
        wrap: Negative positions count from the end.
    """

    source: Prim
    indices: tuple[Prim, ...]
    index_of: tuple[Callable[[Indices], Indices], ...]
    forward: Callable[[Indices, tuple[Index, ...]], Indices]
    bounds: tuple[int, ...]
    wrap: bool = False

    def sources(self) -> Iterator[Prim]:  # noqa: D102
        yield self.source
        yield from self.indices


@dataclass(eq=False, kw_only=True)
class Reduce(Prim):
    """Folds dimensions away; its shape is the source's without them.

    Attributes:
        kind: Row of `reductions.REDUCTIONS`.
        source: What is folded.
        dims: Dimensions of the source, ascending.
        compute: dtype in which it accumulates.
    """

    kind: str
    source: Prim
    dims: tuple[int, ...]
    compute: str

    def sources(self) -> Iterator[Prim]:  # noqa: D102
        yield self.source

    @property
    def count(self) -> int:
        """Elements folded into one."""
        return prod(self.source.shape[d] for d in self.dims)


@dataclass(eq=False, kw_only=True)
class Field(Prim):
    """One part of a reduction's result, such as the mean of `moments`."""

    reduce: Reduce
    part: str

    def sources(self) -> Iterator[Prim]:  # noqa: D102
        yield self.reduce


@dataclass(eq=False, kw_only=True)
class Window(Prim):
    """Folds a small window of the source around each output (pooling, depthwise convolution).

    Attributes:
        kind: `max`, `sum`, or `argmax` (flat position in the source's window dimensions).
        source: What is folded.
        dims: Window dimensions of the source.
        kernel, stride, padding, dilation: One a window dimension; padding may differ before and after.
        weight: Factors of a convolution, with one index a window dimension after its first two.
        weight_index: From an index here and the window position to an index of `weight`.
        factors: Instead of weights, the taps that count and their factors; all others are zero.
    """

    kind: str
    source: Prim
    dims: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    compute: str
    weight: Prim | None = None
    weight_index: Callable[[Indices, Indices], Indices] | None = None
    factors: tuple[tuple[tuple[int, ...], float], ...] = ()

    def sources(self) -> Iterator[Prim]:  # noqa: D102
        yield self.source
        if self.weight is not None:
            yield self.weight


@dataclass(eq=False, kw_only=True)
class Scan(Prim):
    """Running sum, product, maximum or minimum along one dimension, in ascending order, itself included."""

    kind: str
    source: Prim
    dim: int
    compute: str

    def sources(self) -> Iterator[Prim]:  # noqa: D102
        yield self.source


@dataclass(eq=False, kw_only=True)
class Cut(Prim):
    """`source`, stored in memory before anything above it is computed (losses that fold twice)."""

    source: Prim

    def sources(self) -> Iterator[Prim]:  # noqa: D102
        yield self.source


def walk(roots: Iterator[Prim] | list[Prim] | tuple[Prim, ...]) -> list[Prim]:
    """Every value under `roots`, sources before users, each once."""
    order: list[Prim] = []
    seen: set[int] = set()
    stack: list[tuple[Prim, bool]] = [(root, False) for root in reversed(list(roots))]
    while stack:
        prim, expanded = stack.pop()
        if expanded:
            order.append(prim)
            continue
        if id(prim) in seen:
            continue
        seen.add(id(prim))
        stack.append((prim, True))
        stack.extend((source, False) for source in prim.sources() if id(source) not in seen)
    return order


def broadcast_index(index: Indices, shape: tuple[int, ...]) -> Indices:
    """The index of a value of `shape` that broadcasts under an index of equal or more dimensions."""
    tail = index[len(index) - len(shape) :]
    return tuple(Index() if size == 1 else value for value, size in zip(tail, shape, strict=True))
