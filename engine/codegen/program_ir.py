"""From primitive values to a loop nest: which index every value has, and how loops merge.

A *nest* has row variables and inner variables. Without reductions every variable is a row variable. With them,
all reductions of the nest fold exactly the inner variables, so one thread group can do them one after the other
on the same elements. `build_nest` finds the indices by walking from one anchor value through element-wise
operators and reversible views; what it cannot reach cannot share the kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from engine.codegen.index import Index, linear, unravel, variable
from engine.codegen.prims import (
    Field,
    Fill,
    Indices,
    Map,
    NotFusibleError,
    Prim,
    Reduce,
    Scan,
    View,
    broadcast_index,
    walk,
)


@dataclass(frozen=True, slots=True)
class Store:
    """An output: its value, and its index in terms of the nest's variables."""

    value: str
    prim: Prim
    index: Indices

    def variables(self) -> frozenset[str]:
        """Loop variables it depends on."""
        return frozenset().union(*(i.variables() for i in self.index)) if self.index else frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Nest:
    """A loop nest over primitive values.

    Attributes:
        rows: Row variables with sizes, outermost first.
        inner: Inner variables with sizes, outermost first; empty without reductions.
        stores: Outputs.
        reduces: Reductions by stage: those of a stage need only results of earlier ones.
        at: Index of every reached value, by id: for reductions, of their result; for `sources`, of what they read.
        sources: Index at which each reduction reads its source, by id of the reduction.
    """

    rows: tuple[tuple[str, int], ...]
    inner: tuple[tuple[str, int], ...]
    stores: tuple[Store, ...]
    reduces: tuple[tuple[Reduce, ...], ...] = ()
    at: Mapping[int, Indices]
    sources: Mapping[int, Indices]

    @property
    def row_count(self) -> int:
        """Rows."""
        return prod(size for _, size in self.rows)

    @property
    def row_length(self) -> int:
        """Elements of a row."""
        return prod(size for _, size in self.inner)

    def substitute(self, values: Mapping[str, Index], rows: Sequence[tuple[str, int]],
                   inner: Sequence[tuple[str, int]]) -> Nest:
        """The same nest over other variables."""
        def move(index: Indices) -> Indices:
            return tuple(i.substitute(values) for i in index)

        return replace(
            self,
            rows=tuple(rows),
            inner=tuple(inner),
            stores=tuple(Store(s.value, s.prim, move(s.index)) for s in self.stores),
            at={key: move(index) for key, index in self.at.items()},
            sources={key: move(index) for key, index in self.sources.items()},
        )


def build_nest(outputs: Sequence[tuple[str, Prim]]) -> Nest:
    """Find the loop nest that computes `outputs` together.

    Raises:
        NotFusibleError: They do not share one nest.
    """
    prims = walk([prim for _, prim in outputs])
    reduces = [prim for prim in prims if isinstance(prim, Reduce)]
    if reduces:
        anchor = max(reduces, key=lambda r: r.source.numel)
        shape = anchor.source.shape
        names = [f"r{d}" if d not in anchor.dims else f"c{d}" for d in range(len(shape))]
        start: Prim = anchor.source
    else:
        start = max((prim for _, prim in outputs), key=lambda p: p.numel)
        shape, anchor = start.shape, None
        names = [f"r{d}" for d in range(len(shape))]
    identity = tuple(variable(name, size) for name, size in zip(names, shape, strict=True))
    rows = [(n, s) for d, (n, s) in enumerate(zip(names, shape, strict=True)) if not anchor or d not in anchor.dims]
    inner = [(n, s) for d, (n, s) in enumerate(zip(names, shape, strict=True)) if anchor and d in anchor.dims]
    inner_names = frozenset(n for n, _ in inner)
    at: dict[int, Indices] = {}
    spread_positions(prims, start, identity, inner_names, at)
    for reduce in reduces:
        # A fold of its own elements in the same shape may run in the same loop.
        same = anchor is not None and reduce.source.shape == shape and reduce.dims == anchor.dims
        if same and id(reduce.source) not in at:
            spread_positions(prims, reduce.source, identity, inner_names, at)
    sources: dict[int, Indices] = {}
    for reduce in reduces:
        index = at.get(id(reduce.source))
        if index is None or id(reduce) not in at:
            raise NotFusibleError(f"{reduce.name} folds other elements than {anchor.name if anchor else ''}")
        sources[id(reduce)] = index
    stores = []
    for value, prim in outputs:
        index = at.get(id(prim)) or _own_position(prim, start, identity, anchor)
        if index is None:
            raise NotFusibleError(f"{value} is not computed at the same positions")
        names_used = frozenset().union(*(i.variables() for i in index)) if index else frozenset()
        full = bool(names_used & inner_names)
        expected = prod(s for _, s in rows) * (prod(s for _, s in inner) if full else 1)
        if prim.numel != expected:
            raise NotFusibleError(f"{value} has {prim.numel} elements, the loop nest {expected}")
        stores.append(Store(value, prim, index))
    return Nest(rows=tuple(rows), inner=tuple(inner), stores=tuple(stores), reduces=_stages(prims), at=at,
                sources=sources)


def _own_position(prim: Prim, start: Prim, identity: Indices, anchor: Reduce | None) -> Indices | None:
    """Where an output may be stored that no reversible path leads to: any one-to-one index will do."""
    if prim.shape == start.shape:
        return identity
    if anchor is None:
        return unravel(linear(identity, start.shape), prim.shape) if prim.numel == start.numel else None
    kept = tuple(value for d, value in enumerate(identity) if d not in anchor.dims)
    return unravel(linear(kept, anchor.shape), prim.shape) if prim.numel == anchor.numel else None


def spread_positions(
    prims: list[Prim], start: Prim, identity: Indices, inner: frozenset[str], at: dict[int, Indices]
) -> None:
    """Give every value that `start` leads to its index, in `at`."""
    users: dict[int, list[Prim]] = {}
    for prim in prims:
        for source in prim.sources():
            users.setdefault(id(source), []).append(prim)
    at[id(start)] = identity
    queue = [start]
    while queue:
        prim = queue.pop(0)
        index = at[id(prim)]

        def reach(other: Prim, position: Indices | None) -> None:
            if position is not None and id(other) not in at:
                at[id(other)] = position
                queue.append(other)

        for user in users.get(id(prim), []):
            reach(user, _forward(prim, user, index, inner))
        if isinstance(prim, Map):
            for arg in prim.args:
                if arg is not None and arg.numel == prim.numel:
                    reach(arg, broadcast_index(index, arg.shape))
        elif isinstance(prim, View) and prim.source.numel == prim.numel and prim.backward is not None:
            reach(prim.source, prim.forward(index))
        elif isinstance(prim, Field):
            reach(prim.reduce, index)


def _forward(prim: Prim, user: Prim, index: Indices, inner: frozenset[str]) -> Indices | None:
    """The index of `user` when `prim`, one of its sources, is at `index`."""
    if isinstance(user, Map):
        if prim.numel != user.numel:
            return None
        return (*([Index()] * (len(user.shape) - len(index))), *index)
    if isinstance(user, View) and user.backward is not None and user.numel == prim.numel:
        return user.backward(index)
    if isinstance(user, Reduce):
        kept = tuple(value for d, value in enumerate(index) if d not in user.dims)
        if any(value.variables() & inner for value in kept):
            return None
        folded = frozenset().union(*(index[d].variables() for d in user.dims)) if user.dims else frozenset()
        if not folded <= inner:
            return None
        return kept
    if isinstance(user, Field):
        return index
    return None


def _stages(prims: list[Prim]) -> tuple[tuple[Reduce, ...], ...]:
    level: dict[int, int] = {}
    stages: dict[int, list[Reduce]] = {}
    for prim in prims:
        below = max((level[id(s)] for s in prim.sources()), default=0)
        if isinstance(prim, Reduce):
            stages.setdefault(below, []).append(prim)
            below += 1
        if isinstance(prim, Scan):
            raise NotFusibleError("a scan has kernels of its own")
        level[id(prim)] = below
    return tuple(tuple(stages[key]) for key in sorted(stages))


def rewrite(outputs: Sequence[tuple[str, Prim]], change: Callable[[Prim], Prim | None]) -> list[tuple[str, Prim]]:
    """Copy the values under `outputs`; where `change` gives a value, it takes the place of the old one.

    `change` sees copies whose sources are rewritten already.
    """
    done: dict[int, Prim] = {}
    known: dict[object, Prim] = {}

    def settle(prim: Prim) -> Prim:
        """Equal values become one, so that they are computed once."""
        key = _identity(prim)
        return prim if key is None else known.setdefault(key, prim)

    for prim in walk([p for _, p in outputs]):
        copy = _with_sources(prim, done)
        fresh = change(copy)
        if fresh is None:
            done[id(prim)] = settle(copy)
            continue
        inner: dict[int, Prim] = {}
        for below in walk([fresh]):
            inner[id(below)] = below if id(below) in {id(p) for p in done.values()} else settle(
                _with_sources(below, inner))
        done[id(prim)] = inner[id(fresh)]
    return [(value, done[id(prim)]) for value, prim in outputs]


def _identity(prim: Prim) -> object:
    """A key that equal values share; None where equality cannot be told."""
    if isinstance(prim, Map):
        args = tuple(("number", a.dtype, a.number) if isinstance(a, Fill) else id(a) for a in prim.args)
        return ("map", prim.op, prim.dtype, prim.compute, prim.shape, args, tuple(sorted(prim.options.items())))
    if isinstance(prim, View) and prim.tag is not None:
        return ("view", prim.tag, prim.shape, id(prim.source))
    if isinstance(prim, Reduce):
        return ("reduce", prim.kind, prim.dims, prim.compute, id(prim.source))
    if isinstance(prim, Field):
        return ("field", prim.part, id(prim.reduce))
    return None


def _with_sources(prim: Prim, done: Mapping[int, Prim]) -> Prim:
    changed: dict[str, object] = {}
    for name in ("source", "reduce", "weight", "otherwise"):
        old = getattr(prim, name, None)
        if isinstance(old, Prim) and done[id(old)] is not old:
            changed[name] = done[id(old)]
    for name in ("args", "indices"):
        old = getattr(prim, name, None)
        if isinstance(old, tuple):
            new = tuple(None if p is None else done[id(p)] for p in old)
            if any(a is not b for a, b in zip(old, new, strict=True)):
                changed[name] = new
    branches = getattr(prim, "branches", None)
    if branches is not None:
        new_branches = tuple(replace(b, source=done[id(b.source)]) for b in branches)
        if any(a.source is not b.source for a, b in zip(branches, new_branches, strict=True)):
            changed["branches"] = new_branches
    return replace(prim, **changed) if changed else prim


def merge_loops(
    variables: Sequence[tuple[str, int]], accesses: Callable[[Mapping[str, Index]], list[Index]]
) -> tuple[list[tuple[str, int]], dict[str, Index]]:
    """Join neighbouring loops where every access stays a plain multiple of the joined variable.

    Args:
        variables: Loops, outermost first.
        accesses: Every index the kernel uses, after a substitution of loop variables.

    Returns:
        The remaining loops, and what the old variables are in terms of them.
    """
    loops = [(name, size) for name, size in variables if size > 1]
    values: dict[str, Index] = {name: Index() for name, size in variables if size == 1}
    position = 0
    while position + 1 < len(loops):
        (outer, a), (inner, b) = loops[position], loops[position + 1]
        joined = variable(inner, a * b)
        trial = {name: index.substitute({outer: joined // b, inner: joined % b}) for name, index in values.items()}
        trial.setdefault(outer, joined // b)
        trial.setdefault(inner, joined % b)
        if all(_plain(index, inner) for index in accesses(trial)):
            values = trial
            loops[position : position + 2] = [(inner, a * b)]
            position = max(position - 1, 0)
        else:
            position += 1
    return loops, values


def _plain(index: Index, name: str) -> bool:
    return name not in index.without(name).variables()
