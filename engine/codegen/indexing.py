"""`x[i, j]` and `x[i, j] = v` by tensors of indices, without the list type their overloads take.

The indexed dimensions are brought to the front and flattened, so that one index_select (or index_copy,
index_add) does the work.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from contracts.graph import Ref
from engine.codegen import CannotWrite, cpp

if TYPE_CHECKING:
    from engine.codegen.aten_calls import CallWriter


def index(writer: CallWriter) -> list[str]:
    """`self[indices]`."""
    plan = _Plan(writer)
    if plan.masks:
        raise CannotWrite(f"{writer.node.op} by a mask has a shape that depends on data{writer.place}")
    lines = plan.linear_lines()
    rows = f"{plan.permuted()}.index_select(0, {plan.linear})"
    picked = f"{rows}.reshape({cpp.sizes((*plan.index_shape, *plan.kept_shape))})"
    if plan.back is not None:
        picked += f".permute({cpp.sizes(plan.back)})"
    return [*lines, f"at::Tensor {writer.names(writer.node.out)} = {picked};"]


def index_put(writer: CallWriter) -> list[str]:
    """`self[indices] = values`, or `+=` with accumulate, as a new tensor."""
    arguments = writer.node.args
    plan = _Plan(writer)
    out = writer.names(writer.node.out)
    self_, values = writer.argument(arguments["self"]), writer.argument(arguments["values"])
    if plan.masks:
        if len(plan.dims) != 1 or writer.spec("values").numel != 1 or arguments["accumulate"]:
            raise CannotWrite(f"{writer.node.op} by a mask with several values{writer.place}")
        before, after = plan.dims[0], len(plan.shape) - plan.dims[0] - len(plan.index_shape)
        mask = f"{plan.indices[0]}.reshape({cpp.sizes((*(1,) * before, *plan.index_shape, *(1,) * after))})"
        return [f"at::Tensor {out} = at::where({mask}, {values}.reshape({{}}), {self_});"]
    lines = plan.linear_lines()
    result_shape = _put_shape(plan)
    spread = f"{values}.expand({cpp.sizes(result_shape)})"
    if plan.back is not None:
        inverse = [plan.back.index(d) for d in range(len(plan.back))]
        spread += f".permute({cpp.sizes(inverse)})"
    rows = f"{spread}.reshape({cpp.sizes((math.prod(plan.index_shape), *plan.kept_shape))})"
    function = "index_add" if arguments["accumulate"] else "index_copy"
    order = [*plan.dims, *plan.kept]
    inverse = [order.index(d) for d in range(len(order))]
    whole = f".reshape({cpp.sizes(plan.shape[d] for d in order)}).permute({cpp.sizes(inverse)})"
    return [*lines, f"at::Tensor {out} = at::{function}({plan.permuted()}, 0, {plan.linear}, {rows}){whole};"]


def _put_shape(plan: _Plan) -> tuple[int, ...]:
    """Shape of `self[indices]`."""
    front = (*plan.index_shape, *plan.kept_shape)
    return front if plan.back is None else tuple(front[d] for d in plan.back)


class _Plan:
    """Which dimensions are indexed, and where the result's dimensions come from."""

    def __init__(self, writer: CallWriter) -> None:
        arguments = writer.node.args
        given = arguments["indices"]
        assert isinstance(given, tuple)
        self.writer = writer
        self.shape = writer.spec("self").shape
        self.self_ = writer.argument(arguments["self"])
        used = [(d, i) for d, i in enumerate(given) if isinstance(i, Ref)]
        specs = [writer.values[i.name] for _, i in used]
        self.masks = any(s.dtype in ("bool", "uint8") for s in specs)
        self.dims = [d for d, _ in used]
        self.indices = [writer.names(i.name) for _, i in used]
        self.index_specs = specs
        self.index_shape = _broadcast([s.shape for s in specs])
        self.kept = [d for d in range(len(self.shape)) if d not in self.dims]
        self.kept_shape = tuple(self.shape[d] for d in self.kept)
        self.linear = "" if self.masks else writer.names.fresh(f"{writer.node.name}_rows")
        adjacent = self.dims == list(range(self.dims[0], self.dims[0] + len(self.dims)))
        first, rank = self.dims[0], len(self.index_shape)
        # Indices that stand together leave their dimensions where they stood; otherwise these go to the front.
        self.back: list[int] | None = None
        if adjacent and first > 0:
            kept = [rank + d for d in range(len(self.kept))]
            self.back = [*kept[:first], *range(rank), *kept[first:]]

    def permuted(self) -> str:
        """`self` with the indexed dimensions first and flattened."""
        order = [*self.dims, *self.kept]
        text = self.self_
        if order != list(range(len(order))):
            text += f".permute({cpp.sizes(order)})"
        if len(self.dims) > 1:
            text += f".reshape({cpp.sizes((math.prod(self.shape[d] for d in self.dims), *self.kept_shape))})"
        return text

    def linear_lines(self) -> list[str]:
        """The row number of every index, negative ones counted from the end."""
        terms, step = [], 1
        for d, name, spec in reversed(list(zip(self.dims, self.indices, self.index_specs, strict=True))):
            term = f"at::remainder({name}, {self.shape[d]})"
            if spec.dtype != "int64":
                term = f"at::remainder({name}.to(at::kLong), {self.shape[d]})"
            terms.append(term if step == 1 else f"at::mul({term}, {step})")
            step *= self.shape[d]
        total = terms[0]
        for term in terms[1:]:
            total = f"at::add({total}, {term})"
        flat = f"{total}.expand({cpp.sizes(self.index_shape)}).reshape({{-1}})"
        return [f"const at::Tensor {self.linear} = {flat};"]


def _broadcast(shapes: list[tuple[int, ...]]) -> tuple[int, ...]:
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(s)) + s for s in shapes]
    return tuple(max(column) if 0 not in column else 0 for column in zip(*padded, strict=True))
