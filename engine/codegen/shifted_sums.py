"""Sums of shifted copies of one tensor, `c * x[1:-1, 1:-1] + n * x[2:, 1:-1] + ...`, as the stencils that they are.

Written with slices of a padded tensor, a stencil is dozens of operators over views. They become one node here, which
lowers to a window whose factors are numbers; where the tensor is padded with zeros, so is the window.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from contracts.graph import Arg, Graph, Node, Ref
from engine.codegen.lower import Lowered, Lowering, lowers
from engine.codegen.prims import Window

SHIFTED_SUM = "shifted_sum"
_DTYPES = ("float32", "float64")
_LEAST_TERMS = 4
_WIDEST = 17

Offsets = tuple[int, ...]
Terms = tuple[str, dict[Offsets, float]]  # A tensor, and the factor of each of its shifts.


def join_shifted_sums(graph: Graph, left: AbstractSet[str] = frozenset()) -> Graph:
    """The graph in which each such sum is one node, of the name of the sum's last node; those in `left` stay."""
    uses = Counter(name for node in graph.nodes for name in node.refs())
    uses.update(value.name for value in graph.outputs if isinstance(value, Ref))
    uses.update(graph.mutations.values())
    found = _Sums(graph, uses)
    roots = {name: terms for name, terms in found.sums.items() if name not in found.absorbed and _is_stencil(terms)}
    nodes = [
        dataclasses.replace(node, op=f"hiera.{SHIFTED_SUM}.default", args=_arguments(*roots[node.out]))
        if node.out in roots and node.name not in left else node
        for node in graph.nodes
    ]
    if nodes == list(graph.nodes):
        return graph
    return dataclasses.replace(graph, nodes=_needed(graph, nodes, found.absorbed | found.shifted.keys()))


class _Sums:
    """Follows shifts and sums forward through the graph."""

    def __init__(self, graph: Graph, uses: Mapping[str, int]) -> None:
        self.values, self.uses = graph.values, uses
        self.shifted: dict[str, tuple[str, Offsets]] = {}
        self.sums: dict[str, Terms] = {}
        self.absorbed: set[str] = set()
        for node in graph.nodes:
            if node.base in ("pad", "constant_pad_nd"):
                self._pad(node)
            elif node.base == "slice":
                self._slice(node)
            elif node.base in ("add", "sub", "mul", "div", "neg"):
                self._combine(node)

    def _pad(self, node: Node) -> None:
        source, amounts = node.args.get("self"), node.args.get("pad")
        zeros = node.args.get("mode", "constant") == "constant" and not node.args.get("value")
        if not isinstance(source, Ref) or not isinstance(amounts, tuple) or not zeros:
            return
        before = [0] * len(self.values[source.name].shape)
        for position, amount in enumerate(amounts[::2]):
            before[-1 - position] -= amount if isinstance(amount, int) else 0
        if all(isinstance(amount, int) and amount >= 0 for amount in amounts):
            self.shifted[node.out] = (source.name, tuple(before))

    def _slice(self, node: Node) -> None:
        source, start, dim = node.args.get("self"), node.args.get("start") or 0, node.args.get("dim") or 0
        if not isinstance(source, Ref) or not isinstance(start, int) or not isinstance(dim, int):
            return
        shape = self.values[source.name].shape
        size = shape[dim % len(shape)]
        if node.args.get("step", 1) != 1:
            return
        base, offsets = self.shifted.get(source.name, (source.name, (0,) * len(shape)))
        moved = list(offsets)
        moved[dim % len(shape)] += min(max(start + size if start < 0 else start, 0), size)
        self.shifted[node.out] = (base, tuple(moved))

    def _combine(self, node: Node) -> None:
        if self.values[node.out].dtype not in _DTYPES or node.args.get("rounding_mode") is not None:
            return
        first, second = node.args.get("self"), node.args.get("other")
        factor = node.args.get("alpha", 1)
        left = self._terms(first, node)
        if left is None or not isinstance(factor, (int, float)):
            return
        if node.base == "neg":
            self._keep(node, left, -1.0)
        elif node.base in ("mul", "div") and isinstance(second, (int, float)) and second:
            self._keep(node, left, float(second) if node.base == "mul" else 1.0 / second)
        elif node.base in ("add", "sub"):
            right = self._terms(second, node)
            if right is None or right[0] != left[0]:
                return
            sign = -factor if node.base == "sub" else factor
            total = Counter(left[1])
            for offsets, number in right[1].items():
                total[offsets] += sign * number  # type: ignore[assignment]
            self._keep(node, (left[0], dict(total)), 1.0)

    def _keep(self, node: Node, terms: Terms, factor: float) -> None:
        self.sums[node.out] = (terms[0], {offsets: number * factor for offsets, number in terms[1].items()})
        self.absorbed.update(name for name in node.refs() if name in self.sums and self.uses[name] == 1)

    def _terms(self, value: Arg, node: Node) -> Terms | None:
        """An operand as shifts of a tensor; what is needed elsewhere too is a tensor by itself."""
        if not isinstance(value, Ref):
            return None
        name, out = value.name, self.values[node.out]
        if (self.values[name].shape, self.values[name].dtype) != (out.shape, out.dtype):
            return None
        if name in self.sums and self.uses[name] == 1:
            return self.sums[name]
        base, offsets = self.shifted.get(name, (name, (0,) * len(out.shape)))
        return base, {offsets: 1.0}


def _is_stencil(terms: Terms) -> bool:
    """True for several shifts along the last two dimensions, not too far."""
    offsets = list(terms[1])
    if len(offsets) < _LEAST_TERMS or len(offsets[0]) < 2 or any(any(one[:-2]) for one in offsets):
        return False
    reach = [max(one[dim] for one in offsets) - min(one[dim] for one in offsets) + 1 for dim in (-2, -1)]
    return min(reach) > 1 and max(reach) <= _WIDEST


def _arguments(base: str, terms: Mapping[Offsets, float]) -> dict[str, Arg]:
    taps = tuple((*offsets[-2:], number) for offsets, number in sorted(terms.items()))
    return {"self": Ref(base), "taps": taps}


def _needed(graph: Graph, nodes: list[Node], may_go: AbstractSet[str]) -> tuple[Node, ...]:
    """Without the views and sums that nothing reads any more."""
    live = {value.name for value in graph.outputs if isinstance(value, Ref)} | set(graph.mutations.values())
    kept = []
    for node in reversed(nodes):
        if node.out in may_go and node.out not in live:
            continue
        live.update(node.refs())
        kept.append(node)
    return tuple(reversed(kept))


@lowers(SHIFTED_SUM)
def _shifted_sum(low: Lowering, node: Node) -> Lowered:
    source, taps = low.tensor(node), taps_of(node)
    rows, columns = [row for row, _, _ in taps], [column for _, column, _ in taps]
    top, left, rank = min(rows), min(columns), len(source.shape)
    return (Window(
        name=low.out_name(node), dtype=source.dtype, shape=low.out_shape(node), kind="sum", source=source,
        dims=(rank - 2, rank - 1), kernel=(max(rows) - top + 1, max(columns) - left + 1), stride=(1, 1),
        padding=(-top, -left), dilation=(1, 1), compute=source.dtype,
        factors=tuple(((row - top, column - left), number) for row, column, number in taps),
    ),)


def taps_of(node: Node) -> tuple[tuple[int, int, float], ...]:
    """Rows and columns below and beside the point that a shifted sum reads, with their factors."""
    taps = node.args["taps"]
    assert isinstance(taps, tuple)
    return taps  # type: ignore[return-value]
