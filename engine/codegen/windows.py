"""Windows (pooling, depthwise convolution) inside a kernel: a small loop around each output element."""

from __future__ import annotations

from engine.codegen.index import Index, variable
from engine.codegen.prims import Indices, NotFusibleError, Window
from engine.codegen.scalar_types import COMPUTE_TYPE, bitwise_extreme, literal
from engine.codegen.writer import Scalar, Writer


def write_window(writer: Writer, prim: Window, index: Indices, key: object) -> Scalar:
    """Statements that fold the window of one output element; gives the result.

    Positions outside the source are skipped, so a maximum ignores padding and a sum takes it as zero.
    """
    if prim.kind not in ("sum", "max", "argmax"):
        raise NotFusibleError(f"{prim.name}: no window of kind {prim.kind}")
    ctype = COMPUTE_TYPE[prim.compute]
    writer.usage.windows += _product(prim.kernel)
    name = writer.namer.fresh(prim.name)
    at_name = writer.namer.fresh(prim.name + "_at") if prim.kind == "argmax" else ""
    worst = literal(bitwise_extreme(prim.compute, largest=True), ctype)
    lines = [f"{ctype} {name} = {literal(0, ctype) if prim.kind == 'sum' else worst};"]
    if at_name:
        lines.append(f"int64_t {at_name} = -1;")
    if prim.factors:
        lines += _with_factors(writer, prim, index, name)
        depth = max(writer.depth_of(frozenset().union(*(i.variables() for i in index))), 0)
        writer.scopes[depth].lines += lines
        return writer.kept_if_resident(key, ctype, prim.name, Scalar(name, depth))
    taps: list[Index] = []
    places: list[Index] = []
    loops: list[str] = []
    tests: list[tuple[Index, int | None, int | None]] = []
    for position, dim in enumerate(prim.dims):
        size = prim.kernel[position]
        tap = writer.namer.fresh(f"tap_{'dhw'[position + 3 - len(prim.dims)]}") if size > 1 else ""
        taps.append(variable(tap, size) if tap else Index())
        if tap:
            loops.append(f"for (int {tap} = 0; {tap} < {size}; ++{tap}) {{")
        place = index[dim] * prim.stride[position] + taps[-1] * prim.dilation[position] - prim.padding[position]
        places.append(place)
        tests.append((place, 0, prim.source.shape[dim]))
    writer.open(frozenset(), barrier=True)
    test = writer.test_text(tests)
    source_index = list(index)
    for dim, place in zip(prim.dims, places, strict=True):
        source_index[dim] = place
    if prim.weight is not None and prim.weight_index is not None:
        value = writer.value(prim.source, tuple(source_index))
        factor = writer.value(prim.weight, prim.weight_index(index, tuple(taps)))
        writer.line(f"{name} += {value.text} * {factor.text};")
    else:
        value = writer.value(prim.source, tuple(source_index))
        if prim.kind == "sum":
            writer.line(f"{name} += {value.text};")
        elif prim.kind == "max":
            writer.usage.helpers.add("max_nan")
            writer.line(f"{name} = max_nan({value.text}, {name});")
        else:
            flat = Index()
            for dim, place in zip(prim.dims, places, strict=True):
                flat = flat * prim.source.shape[dim] + place
            # The first place counts even where nothing is larger than the start.
            better = f"{value.text} > {name} || {value.text} != {value.text} || {at_name} < 0"
            writer.line(f"if ({better}) {{ {name} = {value.text}; {at_name} = {flat}; }}")
    body = writer.close()
    unroll = _product(prim.kernel) <= 32
    indent = ""
    for loop in loops:
        if unroll:
            lines.append(indent + "#pragma unroll")
        lines.append(indent + loop)
        indent += "    "
    if test != "true":
        lines.append(f"{indent}if ({test}) {{")
        lines += [f"{indent}    {line}" for line in body]
        lines.append(indent + "}")
    else:
        lines += [indent + line for line in body]
    for _ in loops:
        indent = indent[:-4]
        lines.append(indent + "}")
    variables = frozenset().union(*(i.variables() for i in index)) if index else frozenset()
    depth = max(writer.depth_of(variables), 0)
    writer.scopes[depth].lines += lines
    result_type = "int64_t" if at_name else ctype
    return writer.kept_if_resident(key, result_type, prim.name, Scalar(at_name or name, depth))


def _with_factors(writer: Writer, prim: Window, index: Indices, name: str) -> list[str]:
    """One statement a tap: most of the window may not count."""
    lines: list[str] = []
    for taps, factor in prim.factors:
        place = list(index)
        for tap, dim, stride, dilation, padding in zip(
            taps, prim.dims, prim.stride, prim.dilation, prim.padding, strict=True
        ):
            place[dim] = index[dim] * stride + tap * dilation - padding
        writer.open(frozenset(), barrier=True)
        test = writer.test_text([(place[dim], 0, prim.source.shape[dim]) for dim in prim.dims])
        value = writer.value(prim.source, tuple(place))
        writer.line(f"{name} += {value.text} * {literal(factor, COMPUTE_TYPE[prim.compute])};")
        body = [f"    {line}" for line in writer.close()]
        lines += [f"if ({test}) {{" if test != "true" else "{", *body, "}"]
    return lines


def _product(values: tuple[int, ...]) -> int:
    total = 1
    for value in values:
        total *= value
    return total
