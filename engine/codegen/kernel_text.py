"""The frame around a kernel's body: header comment, signature, launch."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from contracts.tensors import TensorSpec
from engine.codegen import Tunable
from engine.codegen.cpp import CPP_TYPE
from engine.codegen.naming import Namer
from engine.codegen.program_ir import Nest
from engine.codegen.regions import Temporary
from engine.codegen.writer import Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One written kernel and the host lines that launch it; `identifiers` are its parameters and variables."""

    name: str
    text: str
    helpers: frozenset[str]
    host: tuple[str, ...]
    tunables: tuple[Tunable, ...] = ()
    temporaries: tuple[Temporary, ...] = ()
    notes: tuple[str, ...] = ()
    identifiers: frozenset[str] = frozenset()


def span(spec: TensorSpec) -> int:
    """Elements between the first and one past the last of a strided tensor."""
    if spec.numel == 0:
        return 0
    return sum((n - 1) * abs(s) for n, s in zip(spec.shape, spec.stride, strict=True)) + 1


def index_type(count: int, nest: Nest, layouts: Mapping[str, TensorSpec]) -> str:
    """`int` where every offset fits, else `int64_t`."""
    del nest
    largest = max([count, *(span(spec) for spec in layouts.values())])
    return "int" if largest + 1024 * 1024 < 2**31 else "int64_t"


def parameters(usage: Usage) -> list[tuple[str, bool]]:
    """Values a kernel takes, and whether it writes them: loads in order of use, then stores."""
    return [(value, False) for value in usage.loads if value not in usage.stores] + [
        (value, True) for value in usage.stores
    ]


def header(
    name: str,
    title: Sequence[str],
    layouts: Mapping[str, TensorSpec],
    usage: Usage,
    *,
    launch: str,
    tunables: Mapping[str, object],
    idea: str = "",
) -> list[str]:
    """The comment over a kernel: what it computes, of which tensors, how it is launched."""
    lines = [f"// {name}: {title[0] if title else ''}".rstrip()]
    lines += [f"//     {line}" for line in title[1:]]
    lines.append("//")
    for value, written in parameters(usage):
        lines.append(f"// {'Writes' if written else 'Reads '}     {value}: {layouts[value]}")
    lines.append(f"// Launch     {launch}")
    lines.append("// Tunables   " + ", ".join(f"{key} = {value}" for key, value in tunables.items()))
    if idea:
        lines.append("//")
        lines += [f"// {line}" for line in textwrap.wrap(idea, width=110)]
    return lines


def signature(name: str, usage: Usage, namer: Namer, layouts: Mapping[str, TensorSpec]) -> str:
    """`name(float const* __restrict__ x, ...) {`."""
    parts = []
    for value, written in parameters(usage):
        const = "" if written else " const"
        parts.append(f"{CPP_TYPE[layouts[value].dtype]}{const}* __restrict__ {namer.pointer(value)}")
    one_line = f"{name}({', '.join(parts)}) {{"
    if len(one_line) <= 110:
        return one_line
    return f"{name}(\n    " + ",\n    ".join(parts) + ") {"


def launch(
    name: str,
    grid: int | str,
    block: int | str,
    usage: Usage,
    layouts: Mapping[str, TensorSpec],
    names: Mapping[str, str],
    *,
    cluster: tuple[int, int] | None = None,
) -> list[str]:
    """Host lines that launch a kernel on `stream`.

    `cluster` is the number of blocks in a cluster, and of bytes of dynamic shared memory of each block.
    """
    arguments = []
    for value, written in parameters(usage):
        const = "" if written else " const"
        arguments.append(f"static_cast<{CPP_TYPE[layouts[value].dtype]}{const}*>({names[value]}.data_ptr())")
    call = f"{name}<<<{grid}, {block}, 0, stream>>>("
    if cluster:
        call = f"launch_cluster({name}, {cluster[0]}, {grid}, {block}, {cluster[1]}, stream,"
    lines = [call] + [f"    {argument}," for argument in arguments]
    lines[-1] = lines[-1].rstrip(",") + ");"
    return lines
