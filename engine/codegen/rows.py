"""Reduction kernels: softmax, norms, sums, extremes, and everything element-wise around them on the same rows.

A kernel is a sequence of passes over a row. Each pass folds what the next one needs; the last one stores. Short
rows stay in registers between passes, longer ones in the shared memory of a cluster of blocks where that is chosen;
else they are read again, and when rows are few their parts are folded by
several blocks and joined by a second kernel (`rows_split`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from contracts.tensors import TensorSpec
from engine.codegen.exact import exact
from engine.codegen.index import Index
from engine.codegen.kernel_text import Kernel
from engine.codegen.naming import Namer
from engine.codegen.prims import Field, Indices, NotFusibleError, Prim
from engine.codegen.program_ir import Nest, build_nest, merge_loops
from engine.codegen.regions import Choices
from engine.codegen.rows_kernel import write_row_kernel
from engine.codegen.rows_plan import plan_rows
from engine.codegen.writer import Lanes, Scalar, Usage, Writer
from engine.records import Device


def write_rows(
    name: str,
    title: Sequence[str],
    outputs: Sequence[tuple[str, Prim]],
    *,
    layouts: Mapping[str, TensorSpec],
    names: Mapping[str, str],
    choices: Choices,
    device: Device,
) -> list[Kernel]:
    """Write the kernels that compute `outputs`.

    Raises:
        NotFusibleError: They do not share one set of rows.
    """
    nest, usage = prepared(outputs, layouts)
    plan, tunables = plan_rows(name, nest, usage, layouts, choices, device)
    if plan.splits > 1:
        from engine.codegen.rows_split import write_split

        return write_split(name, title, outputs, nest, plan, tunables, layouts=layouts, names=names, choices=choices,
                           device=device)
    if (plan.resident and not plan.cluster) or plan.items * plan.width <= 2:
        nest, usage = prepared(exact(outputs), layouts)
        if len(nest.reduces) > 1:
            plan = replace(plan, resident=True)
    kernel = write_row_kernel(name, title, nest, plan, layouts=layouts, names=names, tunables=tunables)
    return [kernel]


def prepared(outputs: Sequence[tuple[str, Prim]], layouts: Mapping[str, TensorSpec]) -> tuple[Nest, Usage]:
    """The nest of `outputs` with loops in memory order and merged, and what it touches."""
    nest = build_nest(outputs)
    usage = dry_run(nest, layouts)
    nest = _in_memory_order(nest, usage, layouts)

    def accesses(trial: Mapping[str, Index]) -> list[Index]:
        return [i.substitute(trial) for _, i, _ in usage.accesses] + [i.substitute(trial) for i in usage.indices]

    rows, row_values = merge_loops(nest.rows, accesses)
    nest = nest.substitute(row_values, rows, nest.inner)
    usage = dry_run(nest, layouts)
    inner, inner_values = merge_loops(nest.inner, accesses)
    nest = nest.substitute(inner_values, nest.rows, inner)
    return nest, dry_run(nest, layouts)


def dry_run(nest: Nest, layouts: Mapping[str, TensorSpec]) -> Usage:
    """What the nest loads, stores and computes.

    Raises:
        NotFusibleError: Some value needs a reduction at another row.
    """

    def field_of(prim: Field, index: Indices) -> Scalar:
        check_row(nest, prim, index)
        return Scalar("field", 1)

    writer = Writer(layouts, Namer(), Lanes(), field_of)
    writer.open(frozenset(name for name, _ in nest.rows))
    writer.open(frozenset(name for name, _ in nest.inner))
    for stage in nest.reduces:
        for reduce in stage:
            writer.value(reduce.source, nest.sources[id(reduce)])
    for store in nest.stores:
        writer.store(store.value, store.prim.dtype, store.index, writer.value(store.prim, store.index))
    return writer.usage


def check_row(nest: Nest, prim: Field, index: Indices) -> None:
    """A part of a reduction may only be read at its own row.

    Raises:
        NotFusibleError: It is read elsewhere.
    """
    if nest.at.get(id(prim.reduce)) != index:
        raise NotFusibleError(f"{prim.name} is needed at another row than the one it is computed for")


def _in_memory_order(nest: Nest, usage: Usage, layouts: Mapping[str, TensorSpec]) -> Nest:
    """Loops sorted by their step in the largest tensor, longest first."""
    leader = max(usage.accesses, key=lambda a: (layouts[a[0]].size_bytes, len(a[1].terms)), default=None)
    if leader is None:
        return nest

    def sort(loops: Sequence[tuple[str, int]]) -> tuple[tuple[str, int], ...]:
        steps = {name: abs(leader[1].coefficient(name)) for name, size in loops if size > 1}
        if not all(steps.values()):
            return tuple(loops)
        return tuple(sorted(loops, key=lambda loop: -steps.get(loop[0], 1 << 62)))

    return replace(nest, rows=sort(nest.rows), inner=sort(nest.inner))
