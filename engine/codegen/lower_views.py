"""Views, joins and gathers as index arithmetic."""

from __future__ import annotations

from collections.abc import Sequence

from contracts.graph import Node, Ref
from engine.codegen.index import Index, linear, unravel
from engine.codegen.lower import Lowered, Lowering, cast, lowers
from engine.codegen.prims import (
    Branch,
    Choose,
    Coordinate,
    Fill,
    Gather,
    Indices,
    Map,
    NotFusibleError,
    Prim,
    View,
    Within,
    broadcast_index,
)


def reshaped(source: Prim, shape: tuple[int, ...], name: str) -> Prim:
    """The same elements in row-major order under another shape."""
    if shape == source.shape:
        return source
    return View(
        name=name, dtype=source.dtype, shape=shape, source=source, tag="reshape",
        forward=lambda i: unravel(linear(i, shape), source.shape),
        backward=lambda i: unravel(linear(i, source.shape), shape),
    )


def permuted(source: Prim, order: Sequence[int], name: str) -> Prim:
    """Dimensions in another order: dimension d of the result is `order[d]` of the source."""
    inverse = [list(order).index(d) for d in range(len(order))]
    return View(
        name=name, dtype=source.dtype, shape=tuple(source.shape[d] for d in order), source=source,
        forward=lambda i: tuple(i[d] for d in inverse),
        backward=lambda i: tuple(i[d] for d in order),
    )


def expanded(source: Prim, shape: tuple[int, ...], name: str) -> Prim:
    """`source` broadcast to `shape`."""
    if shape == source.shape:
        return source
    pad = len(shape) - len(source.shape)
    same = source.numel == Fill(name="", dtype="bool", shape=shape, number=0).numel
    return View(
        name=name, dtype=source.dtype, shape=shape, source=source,
        forward=lambda i: broadcast_index(i, source.shape),
        backward=(lambda i: (*([Index()] * pad), *i)) if same else None,
    )


def squeezed(source: Prim, dims: Sequence[int], name: str) -> Prim:
    """`source` without dimensions of size 1."""
    drop = {d for d in dims if source.shape[d] == 1}
    return reshaped(source, tuple(n for d, n in enumerate(source.shape) if d not in drop), name)


def unsqueezed(source: Prim, dims: Sequence[int], name: str) -> Prim:
    """`source` with dimensions of size 1 inserted at the (final) positions `dims`."""
    rank = len(source.shape) + len(dims)
    kept = iter(source.shape)
    shape = tuple(1 if d in {x % rank for x in dims} else next(kept) for d in range(rank))
    return reshaped(source, shape, name)


@lowers("view", "reshape", "_unsafe_view", "flatten", "unflatten", "squeeze", "unsqueeze", "view_as", "reshape_as",
        role="view")
def _reshapes(low: Lowering, node: Node) -> Lowered:
    source = low.tensor(node)
    if low.out_dtype(node) != source.dtype:
        raise NotFusibleError(f"{node.op} reads the bytes as another dtype")
    return (reshaped(source, low.out_shape(node), low.out_name(node)),)


@lowers("alias", "detach", "lift_fresh", "_assert_tensor_metadata", "_conj", "view_of", role="view")
def _same(low: Lowering, node: Node) -> Lowered:
    return (low.tensor(node),)


@lowers("permute", "transpose", "t", "numpy_T", "movedim", "swapaxes", "swapdims", role="view")
def _permutes(low: Lowering, node: Node) -> Lowered:
    source = low.tensor(node)
    rank = len(source.shape)
    order = list(range(rank))
    if node.base == "permute":
        order = [d % rank for d in low.integers(node, "dims")]
    elif node.base == "movedim":
        origin = [d % rank for d in low.integers(node, "source")]
        target = [d % rank for d in low.integers(node, "destination")]
        rest = iter(d for d in range(rank) if d not in origin)
        order = [origin[target.index(d)] if d in target else next(rest) for d in range(rank)]
    elif rank >= 2:
        names = {"transpose": ("dim0", "dim1"), "swapaxes": ("axis0", "axis1"), "swapdims": ("dim0", "dim1")}
        first, second = names.get(node.base, ("", ""))
        a = int(low.number(node, first, 0)) % rank if first else 0
        b = int(low.number(node, second, 1)) % rank if second else 1
        order[a], order[b] = order[b], order[a]
    return (permuted(source, order, low.out_name(node)),)


@lowers("expand", "broadcast_to", "expand_as", role="view")
def _expands(low: Lowering, node: Node) -> Lowered:
    return (expanded(low.tensor(node), low.out_shape(node), low.out_name(node)),)


@lowers("broadcast_tensors", "meshgrid", role="view")
def _broadcasts(low: Lowering, node: Node) -> Lowered:
    items = node.args.get("tensors")
    if not isinstance(items, tuple):
        raise NotFusibleError(f"{node.op} without tensors")
    out: list[Prim | None] = []
    for position, (item, name) in enumerate(zip(items, node.outputs, strict=True)):
        source = low.as_prim(item)
        if source is None or name is None:
            out.append(None)
            continue
        shape = low.graph.values[name].shape
        if node.base == "meshgrid":
            order = position if node.args.get("indexing", "ij") == "ij" or position > 1 else 1 - position
            source = reshaped(source, tuple(source.numel if d == order else 1 for d in range(len(shape))), name)
        out.append(expanded(source, shape, name))
    return out


def sliced(source: Prim, dim: int, start: int, step: int, size: int, name: str) -> Prim:
    """Every `step`-th element along `dim`."""
    shape = (*source.shape[:dim], size, *source.shape[dim + 1 :])

    def forward(i: Indices) -> Indices:
        return (*i[:dim], i[dim] * step + start, *i[dim + 1 :])

    return View(name=name, dtype=source.dtype, shape=shape, source=source, forward=forward)


@lowers("slice", "narrow", role="view")
def _slices(low: Lowering, node: Node) -> Lowered:
    source = low.tensor(node)
    dim = int(low.number(node, "dim", 0)) % len(source.shape)
    size = source.shape[dim]
    start = node.args.get("start") or 0
    if not isinstance(start, int):
        raise NotFusibleError(f"{node.op}: the start is a tensor")
    start = min(max(start + size if start < 0 else start, 0), size)
    step = int(low.number(node, "step", 1)) or 1
    out = low.out_shape(node)
    if out == source.shape:
        return (source,)
    return (sliced(source, dim, start, step, out[dim], low.out_name(node)),)


@lowers("select", role="view")
def _selects(low: Lowering, node: Node) -> Lowered:
    source = low.tensor(node)
    dim = int(low.number(node, "dim", 0)) % len(source.shape)
    at = int(low.number(node, "index", 0)) % source.shape[dim]
    return (selected(source, dim, at, low.out_name(node)),)


def selected(source: Prim, dim: int, at: int, name: str) -> Prim:
    """One position along `dim`, which goes away."""
    only = source.shape[dim] == 1
    return View(
        name=name, dtype=source.dtype, shape=(*source.shape[:dim], *source.shape[dim + 1 :]), source=source,
        forward=lambda i: (*i[:dim], Index(at), *i[dim:]),
        backward=(lambda i: (*i[:dim], *i[dim + 1 :])) if only else None,
    )


@lowers("split", "split_with_sizes", "chunk", "unbind", "tensor_split", role="view")
def _splits(low: Lowering, node: Node) -> Lowered:
    source = low.tensor(node)
    dim = int(low.number(node, "dim", 0)) % len(source.shape)
    out: list[Prim | None] = []
    if node.base == "unbind":
        return [None if n is None else selected(source, dim, at, n) for at, n in enumerate(node.outputs)]
    sizes = _split_sizes(low, node, source.shape[dim])
    start = 0
    for name, size in zip(node.outputs, sizes, strict=True):
        out.append(None if name is None else sliced(source, dim, start, 1, size, name))
        start += size
    return out


def _split_sizes(low: Lowering, node: Node, size: int) -> list[int]:
    argument = next((a for a in ("split_sizes", "split_size", "chunks", "sections") if a in node.args), None)
    values = low.integers(node, argument) if argument else ()
    if node.base == "split_with_sizes" or len(values) > 1:
        return list(values)
    if not values:
        raise NotFusibleError(f"{node.op}: sizes are not plain integers")
    if node.base == "tensor_split":
        each, more = divmod(size, values[0])
        return [each + (1 if i < more else 0) for i in range(values[0])]
    each = -(-size // values[0]) if node.base == "chunk" else values[0]
    return [min(each, size - start) for start in range(0, size, each)]


@lowers("flip")
def _flips(low: Lowering, node: Node) -> Lowered:
    source = low.tensor(node)
    dims = {d % len(source.shape) for d in low.integers(node, "dims")}

    def turn(i: Indices) -> Indices:
        return tuple(Index(source.shape[d] - 1) - v if d in dims else v for d, v in enumerate(i))

    return (View(name=low.out_name(node), dtype=source.dtype, shape=source.shape, source=source, forward=turn,
                 backward=turn),)


@lowers("roll")
def _rolls(low: Lowering, node: Node) -> Lowered:
    source = low.tensor(node)
    dims = low.integers(node, "dims")
    shifts = low.integers(node, "shifts")
    name = low.out_name(node)
    if not dims:
        flat = reshaped(source, (source.numel,), name)
        return (reshaped(_rolled(flat, {0: shifts[0]}, name), source.shape, name),)
    return (_rolled(source, {d % len(source.shape): s for d, s in zip(dims, shifts, strict=True)}, name),)


def _rolled(source: Prim, shifts: dict[int, int], name: str) -> Prim:
    def move(sign: int) -> object:
        return lambda i: tuple(
            (v + (sign * shifts[d]) % source.shape[d]) % source.shape[d] if d in shifts else v for d, v in enumerate(i)
        )

    return View(name=name, dtype=source.dtype, shape=source.shape, source=source,
                forward=move(-1), backward=move(1))  # type: ignore[arg-type]


@lowers("repeat", "tile")
def _repeats(low: Lowering, node: Node) -> Lowered:
    source = low.tensor(node)
    shape = low.out_shape(node)
    pad = len(shape) - len(source.shape)
    return (View(
        name=low.out_name(node), dtype=source.dtype, shape=shape, source=source,
        forward=lambda i: tuple(v % n for v, n in zip(i[pad:], source.shape, strict=True)),
    ),)


@lowers("repeat_interleave")
def _interleaves(low: Lowering, node: Node) -> Lowered:
    source = low.tensor(node)
    times, dim = node.args.get("repeats"), node.args.get("dim")
    if not isinstance(times, int) or not isinstance(dim, int):
        raise NotFusibleError(f"{node.op}: repeats or dim are not integers")
    dim %= len(source.shape)
    return (View(
        name=low.out_name(node), dtype=source.dtype, shape=low.out_shape(node), source=source,
        forward=lambda i: (*i[:dim], i[dim] // times, *i[dim + 1 :]),
    ),)


@lowers("cat", "concat", "concatenate")
def _joins(low: Lowering, node: Node) -> Lowered:
    items = node.args.get("tensors")
    if not isinstance(items, tuple):
        raise NotFusibleError(f"{node.op} without tensors")
    shape, dtype = low.out_shape(node), low.out_dtype(node)
    dim = int(low.number(node, "dim", 0)) % len(shape)
    parts = [p for p in (low.as_prim(item) for item in items) if p is not None and p.numel > 0]
    branches, start = [], 0
    for part in parts:
        end = start + part.shape[dim]

        def tests(i: Indices, end: int = end) -> tuple[tuple[Index, int | None, int | None], ...]:
            return ((i[dim], None, end),)

        def forward(i: Indices, start: int = start) -> Indices:
            return (*i[:dim], i[dim] - start, *i[dim + 1 :])

        branches.append(Branch(tests, cast(part, dtype), forward))
        start = end
    return (Choose(name=low.out_name(node), dtype=dtype, shape=shape, branches=tuple(branches), otherwise=None),)


@lowers("stack")
def _stacks(low: Lowering, node: Node) -> Lowered:
    items = node.args.get("tensors")
    if not isinstance(items, tuple):
        raise NotFusibleError(f"{node.op} without tensors")
    shape, dtype = low.out_shape(node), low.out_dtype(node)
    dim = int(low.number(node, "dim", 0)) % len(shape)
    branches = []
    for position, item in enumerate(items):
        part = low.as_prim(item)
        if part is None:
            raise NotFusibleError(f"{node.op}: an item is not a tensor")

        def tests(i: Indices, at: int = position) -> tuple[tuple[Index, int | None, int | None], ...]:
            return ((i[dim], None, at + 1),)

        branches.append(Branch(tests, cast(part, dtype), lambda i: (*i[:dim], *i[dim + 1 :])))
    return (Choose(name=low.out_name(node), dtype=dtype, shape=shape, branches=tuple(branches), otherwise=None),)


def padded(source: Prim, before: Sequence[int], shape: tuple[int, ...], fill: float, name: str) -> Prim:
    """`source` inside a larger tensor of `shape`, `before` elements after its start; the rest is `fill`."""

    def tests(i: Indices) -> tuple[tuple[Index, int | None, int | None], ...]:
        return tuple((v, low, low + n) for v, low, n in zip(i, before, source.shape, strict=True))

    def forward(i: Indices) -> Indices:
        return tuple(v - low for v, low in zip(i, before, strict=True))

    outside = cast(Fill(name="number", dtype="float64", shape=(), number=fill), source.dtype)
    return Choose(name=name, dtype=source.dtype, shape=shape, branches=(Branch(tests, source, forward),),
                  otherwise=outside)


@lowers("constant_pad_nd", "pad")
def _pads(low: Lowering, node: Node) -> Lowered:
    source = low.tensor(node)
    if node.args.get("mode", "constant") != "constant":
        raise NotFusibleError(f"{node.op}: only constant padding")
    amounts = low.integers(node, "pad")
    before = [0] * len(source.shape)
    for position in range(len(amounts) // 2):
        before[len(source.shape) - 1 - position] = amounts[2 * position]
    return (padded(source, before, low.out_shape(node), low.number(node, "value", 0), low.out_name(node)),)


@lowers("tril", "triu")
def _triangles(low: Lowering, node: Node) -> Lowered:
    source = low.tensor(node)
    diagonal = int(low.number(node, "diagonal", 0))
    limits = {"high": diagonal} if node.base == "tril" else {"low": diagonal}
    inside = Within(name="inside", dtype="bool", shape=source.shape, function=lambda i: i[-1] - i[-2], **limits)
    zero = cast(Fill(name="number", dtype="int64", shape=(), number=0), source.dtype)
    return (Map(name=low.out_name(node), dtype=source.dtype, shape=source.shape, op="where",
                args=(inside, source, zero), compute=source.dtype),)


@lowers("diagonal", role="view")
def _diagonals(low: Lowering, node: Node) -> Lowered:
    source = low.tensor(node)
    rank = len(source.shape)
    skip = int(low.number(node, "offset", 0))
    a, b = int(low.number(node, "dim1", 0)) % rank, int(low.number(node, "dim2", 1)) % rank
    shape = low.out_shape(node)

    def forward(i: Indices) -> Indices:
        rest = iter(i[:-1])
        along = {a: i[-1] + max(-skip, 0), b: i[-1] + max(skip, 0)}
        return tuple(along[d] if d in along else next(rest) for d in range(rank))

    return (View(name=low.out_name(node), dtype=source.dtype, shape=shape, source=source, forward=forward),)


@lowers("embedding")
def _embeds(low: Lowering, node: Node) -> Lowered:
    weight, indices = low.tensor(node, "weight"), low.tensor(node, "indices")
    rank = len(indices.shape)
    return (Gather(
        name=low.out_name(node), dtype=weight.dtype, shape=low.out_shape(node), source=weight, indices=(indices,),
        index_of=(lambda i: i[:rank],), forward=lambda i, at: (at[0], *i[rank:]), bounds=(weight.shape[0],),
    ),)


@lowers("index_select")
def _index_selects(low: Lowering, node: Node) -> Lowered:
    source, index = low.tensor(node), low.tensor(node, "index")
    dim = int(low.number(node, "dim", 0)) % len(source.shape)
    return (Gather(
        name=low.out_name(node), dtype=source.dtype, shape=low.out_shape(node), source=source, indices=(index,),
        index_of=(lambda i: (i[dim],),), forward=lambda i, at: (*i[:dim], at[0], *i[dim + 1 :]),
        bounds=(source.shape[dim],),
    ),)


@lowers("gather")
def _gathers(low: Lowering, node: Node) -> Lowered:
    source, index = low.tensor(node), low.tensor(node, "index")
    dim = int(low.number(node, "dim", 0)) % len(source.shape)
    return (Gather(
        name=low.out_name(node), dtype=source.dtype, shape=index.shape, source=source, indices=(index,),
        index_of=(lambda i: i,), forward=lambda i, at: (*i[:dim], at[0], *i[dim + 1 :]), bounds=(source.shape[dim],),
    ),)


@lowers("index")
def _indexes(low: Lowering, node: Node) -> Lowered:
    """Advanced indexing by integer tensors on neighbouring dimensions."""
    source = low.tensor(node)
    items = node.args.get("indices")
    if not isinstance(items, tuple):
        raise NotFusibleError(f"{node.op} without indices")
    dims = [d for d, item in enumerate(items) if isinstance(item, Ref)]
    tensors = [low.prim(items[d].name) for d in dims]  # type: ignore[union-attr]
    if not dims or dims != list(range(dims[0], dims[-1] + 1)) or any(t.dtype == "bool" for t in tensors):
        raise NotFusibleError(f"{node.op}: only integer tensors on neighbouring dimensions")
    from engine.codegen.lower import broadcast_shapes

    common = broadcast_shapes([t.shape for t in tensors])
    first, rank = dims[0], len(common)

    def index_of(shape: tuple[int, ...]) -> object:
        return lambda i: broadcast_index(i[first : first + rank], shape)

    return (Gather(
        name=low.out_name(node), dtype=source.dtype, shape=low.out_shape(node), source=source, indices=tuple(tensors),
        index_of=tuple(index_of(t.shape) for t in tensors),  # type: ignore[arg-type]
        forward=lambda i, at: (*i[:first], *at, *i[first + rank :]),
        bounds=tuple(source.shape[d] for d in dims), wrap=True,
    ),)


@lowers("one_hot")
def _one_hot(low: Lowering, node: Node) -> Lowered:
    source = low.tensor(node)
    shape = low.out_shape(node)
    at = Coordinate(name="class_index", dtype="int64", shape=shape, function=lambda i: i[-1])
    wide = expanded(unsqueezed(source, (len(source.shape),), source.name), shape, source.name)
    same = Map(name="hit", dtype="bool", shape=shape, op="eq", args=(wide, at), compute="int64")
    return (cast(same, "int64"),)
