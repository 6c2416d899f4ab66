"""Few, long rows: several blocks fold parts of each row, a small kernel joins the parts.

Without this a loss over a whole batch (one row) would run on one block of the device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from contracts.tensors import TensorSpec
from engine.codegen import Tunable
from engine.codegen.index import variable
from engine.codegen.kernel_text import Kernel, header, index_type, launch, signature
from engine.codegen.naming import Namer
from engine.codegen.pointwise import write_pointwise
from engine.codegen.prims import Field, Indices, Load, NotFusibleError, Prim, Reduce, walk
from engine.codegen.program_ir import Nest, Store, rewrite
from engine.codegen.reductions import REDUCTIONS, accumulator_dtype, joined_type, part_text, start_text
from engine.codegen.regions import Choices, Temporary
from engine.codegen.rows_kernel import RowWriter, decode, indented
from engine.codegen.rows_plan import RowPlan
from engine.codegen.scalar_types import COMPUTE_TYPE
from engine.codegen.writer import Lanes, Scalar, Writer
from engine.records import Device

JOIN_THREADS = 128
_STORED = {"float": "float32", "double": "float64", "int64_t": "int64", "int32_t": "int32", "int16_t": "int16",
           "int8_t": "int8", "uint8_t": "uint8", "bool": "bool"}


def write_split(
    name: str,
    title: Sequence[str],
    outputs: Sequence[tuple[str, Prim]],
    nest: Nest,
    plan: RowPlan,
    tunables: tuple[Tunable, ...],
    *,
    layouts: Mapping[str, TensorSpec],
    names: Mapping[str, str],
    choices: Choices,
    device: Device,
) -> list[Kernel]:
    """The kernels, in launch order: for each stage the parts and their join, then what remains element by element."""
    from engine.codegen.rows import prepared

    kernels: list[Kernel] = []
    layouts, names = dict(layouts), dict(names)
    remaining = list(outputs)
    settled: list[tuple[str, Prim]] = []  # Outputs that wait for no further fold.
    stage = 0
    while True:
        settled += [pair for pair in remaining if not _folds(pair[1])]
        remaining = [pair for pair in remaining if _folds(pair[1])]
        if not remaining:
            break
        nest, _ = prepared(remaining, layouts)
        suffix = f"_{stage + 1}" if len(nest.reduces) > 1 or stage else ""
        parts, fields = _write_parts(f"{name}_parts{suffix}", title, nest, plan, layouts, names, tunables)
        kernels.append(parts)
        layouts |= {t.name: TensorSpec.contiguous(t.dtype, (t.numel,)) for t in parts.temporaries}
        names |= {t.name: t.name for t in parts.temporaries}
        stores = _row_stores(nest)
        written = {store.value for store in stores}
        finished = len(stores) == len(nest.stores)
        last = finished and not settled
        join, loads = _write_join(name if last else f"{name}_join{suffix}", title, nest, plan, fields, layouts, names,
                                  stores, finish=finished)
        kernels.append(join)
        remaining = [(value, prim) for value, prim in remaining if value not in written]
        if finished:
            break
        layouts |= {load.value: TensorSpec.contiguous(load.dtype, load.shape) for load in loads.values()}
        names |= {load.value: load.value for load in loads.values()}

        def change(prim: Prim, loads: Mapping[tuple[int, str], Load] = loads, nest: Nest = nest) -> Prim | None:
            if not isinstance(prim, Field):
                return None
            del nest
            return loads.get((id(prim.reduce), prim.part))

        remaining = rewrite(remaining, change)
        stage += 1
    groups = _by_size(settled)
    for position, group in enumerate(groups):
        kernel_name = name if position == len(groups) - 1 else f"{name}_rows"
        kernels.append(write_pointwise(kernel_name, title, group, layouts=layouts, names=names, choices=choices,
                                       device=device, key=f"{name}.apply"))
    return kernels


def _folds(prim: Prim) -> bool:
    return any(isinstance(below, Reduce) for below in walk([prim]))


def _row_stores(nest: Nest) -> list[Store]:
    """Outputs of one element a row that need no more than the first stage's reductions."""
    inner = {name for name, _ in nest.inner}
    known = {id(reduce) for reduce in nest.reduces[0]}
    return [
        store for store in nest.stores
        if not store.variables() & inner
        and all(id(below) in known for below in walk([store.prim]) if isinstance(below, Reduce))
    ]


def _by_size(outputs: Sequence[tuple[str, Prim]]) -> list[list[tuple[str, Prim]]]:
    sizes: dict[int, list[tuple[str, Prim]]] = {}
    for value, prim in outputs:
        sizes.setdefault(prim.numel, []).append((value, prim))
    return [sizes[size] for size in sorted(sizes)]


def _field_dtype(reduce: Reduce, kind: str) -> str:
    number = COMPUTE_TYPE[accumulator_dtype(reduce.kind, reduce.compute)]
    return _STORED[number if kind == "T" else kind]


def _write_parts(
    name: str,
    title: Sequence[str],
    nest: Nest,
    plan: RowPlan,
    layouts: Mapping[str, TensorSpec],
    names: Mapping[str, str],
    tunables: tuple[Tunable, ...],
) -> tuple[Kernel, dict[tuple[int, str], Temporary]]:
    first = replace(nest, reduces=nest.reduces[:1], stores=())
    body = RowWriter(name, first, replace(plan, resident=False), layouts, part="blockIdx.y", parts=plan.splits)
    writer = body.writer
    writer.open(frozenset(n for n, _ in body.rows))
    body.fold(body.nest.reduces[0])
    temporaries: dict[tuple[int, str], Temporary] = {}
    stores = []
    for reduce in body.nest.reduces[0]:
        for member, kind in REDUCTIONS[reduce.kind].fields.items():
            label = "_".join(x for x in (name, reduce.name, member) if x)
            temporary = Temporary(name=label, dtype=_field_dtype(reduce, kind), numel=nest.row_count * plan.splits)
            temporaries[id(reduce), member] = temporary
            joined = body.joined[id(reduce)]
            stores.append(f"{writer.namer.pointer(label)}[row * {plan.splits} + blockIdx.y] = "
                          f"{joined + '.' + member if member else joined};")
            writer.usage.stores[label] = None
    tests = (["lane == 0"] if plan.sharing > 1 else []) + (["in_range"] if body.guard_row else [])
    for line in [f"if ({' && '.join(tests)}) {{", *indented(stores), "}"] if tests else stores:
        writer.line(line)
    inside = writer.close()
    lines = [*writer.close(), *body.coordinates(), *inside]
    usage = writer.usage
    grid = f"dim3({-(-nest.row_count // plan.rows)}, {plan.splits})"
    block = f"dim3({plan.rows}, {plan.sharing})" if plan.mapping == "column" else str(plan.threads)
    local = {**layouts, **{t.name: TensorSpec.contiguous(t.dtype, (t.numel,)) for t in temporaries.values()}}
    known = {**names, **{t.name: t.name for t in temporaries.values()}}
    text = "\n".join([
        *header(name, [*title, f"first step: {plan.splits} blocks fold parts of each row"], local, usage,
                launch=f"grid {grid}, block {block}",
                tunables={"splits": plan.splits, "width": plan.width, "unroll": plan.unroll}),
        f"__global__ void __launch_bounds__({plan.threads})",
        signature(name, usage, writer.namer, local),
        *indented(lines), "}",
    ])
    kernel = Kernel(name=name, text=text, helpers=frozenset(usage.helpers), identifiers=writer.namer.given,
                  tunables=tunables,
                    host=tuple(launch(name, grid, block, usage, local, known)),
                    temporaries=tuple(temporaries.values()))
    return kernel, temporaries


def _write_join(
    name: str,
    title: Sequence[str],
    nest: Nest,
    plan: RowPlan,
    parts: Mapping[tuple[int, str], Temporary],
    layouts: Mapping[str, TensorSpec],
    names: Mapping[str, str],
    stores: Sequence[Store],
    *,
    finish: bool,
) -> tuple[Kernel, dict[tuple[int, str], Load]]:
    """A warp joins the parts of one row; then it stores `stores`, and what later stages need unless this ends it."""
    rows = [("row", nest.rows[0][1])] if len(nest.rows) == 1 else [(f"row{i}", s) for i, (_, s) in enumerate(nest.rows)]
    renamed = {old: variable(new, size) for (old, size), (new, _) in zip(nest.rows, rows, strict=True)}
    nest = nest.substitute(renamed, rows, nest.inner)
    fields: dict[tuple[int, str], Scalar] = {}

    def field_of(prim: Field, index: Indices) -> Scalar:
        if nest.at.get(id(prim.reduce)) != index:
            raise NotFusibleError(f"{prim.name} is needed at another row")
        return fields[id(prim.reduce), prim.part]

    writer = Writer(layouts, Namer(), Lanes(), field_of)
    nest_stores = {store.value: store for store in nest.stores}
    stores = [nest_stores[store.value] for store in stores]  # Over the variables of this kernel.
    for store in stores:
        writer.namer.pointer(store.value)
    writer.open(frozenset(n for n, _ in rows))
    loads: dict[tuple[int, str], Load] = {}
    local, known = dict(layouts), dict(names)
    temporaries: list[Temporary] = []
    stage = nest.reduces[0]
    for reduce in stage:
        row = REDUCTIONS[reduce.kind]
        kind = joined_type(reduce.kind, reduce.compute)
        total = writer.namer.fresh(reduce.name)
        zero = start_text(reduce.kind, reduce.compute) if row.kind != "moments" else "{}"
        members = []
        for member in row.fields:
            value = parts[id(reduce), member].name
            writer.usage.loads[value] = None
            members.append(f"{writer.namer.pointer(value)}[row * {plan.splits} + part]")
        item = f"{kind}{{{', '.join(members)}}}" if len(row.fields) > 1 else members[0]
        writer.usage.helpers.update((*row.helpers, "group_reduce"))
        writer.line(f"{kind} {total}{' = ' + zero if zero != '{}' else ' = {}'};")
        writer.line(f"for (int part = lane; part < {plan.splits}; part += 32) {{")
        writer.line(f"    {total} = {row.join}::combine({total}, {item});")
        writer.line("}")
        writer.line(f"{total} = group_reduce<32, {row.join}>({total});")
        for part in row.parts:
            fields[id(reduce), part] = Scalar(part_text(reduce.kind, part, total), 1)
    elements = [writer.value(s.prim, s.index) for s in stores]
    writer.open(frozenset(), barrier=True)
    for store, element in zip(stores, elements, strict=True):
        writer.store(store.value, store.prim.dtype, store.index, element)
    if not finish:
        for (identity, part), scalar in fields.items():
            reduce = next(r for r in stage if id(r) == identity)
            dtype = "int64" if part == "at" else _field_dtype(reduce, "T")
            label = f"{name}_{reduce.name}_{part}"
            load = Load(name=f"{reduce.name}_{part}", dtype=dtype, shape=reduce.shape, value=label)
            loads[identity, part] = load
            local[label] = TensorSpec.contiguous(dtype, reduce.shape)
            known[label] = label
            temporaries.append(Temporary(name=label, dtype=dtype, numel=nest.row_count))
            writer.layouts = local
            writer.store(label, dtype, nest.at[identity], scalar)
    stored = writer.close()
    inside = [*writer.close(), "if (lane == 0) {", *indented(stored), "}"]
    constants = writer.close()
    wide = index_type(nest.row_count * plan.splits, nest, {})
    per_block = JOIN_THREADS // 32
    guard = [f"if (row >= {nest.row_count}) {{", "    return;  // Whole warps leave together.", "}"]
    lines = [*constants, "int const lane = threadIdx.x % 32;",
             f"{wide} const row = {wide}(blockIdx.x) * {per_block} + threadIdx.x / 32;",
             *(guard if nest.row_count % per_block else []), *decode(rows, "row", wide), *inside]
    usage = writer.usage
    grid = -(-nest.row_count // per_block)
    text = "\n".join([
        *header(name, [*title, f"joins {plan.splits} parts of each row"], local, usage,
                launch=f"grid {grid}, block {JOIN_THREADS}", tunables={"splits": plan.splits}),
        f"__global__ void __launch_bounds__({JOIN_THREADS})",
        signature(name, usage, writer.namer, local),
        *indented(lines), "}",
    ])
    kernel = Kernel(name=name, text=text, helpers=frozenset(usage.helpers), identifiers=writer.namer.given,
                  temporaries=tuple(temporaries),
                    host=tuple(launch(name, grid, JOIN_THREADS, usage, local, known)))
    return kernel, loads

