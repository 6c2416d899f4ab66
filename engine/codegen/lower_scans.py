"""Running sums and products as primitive values."""

from __future__ import annotations

from contracts.graph import Node
from engine.codegen.lower import Lowered, Lowering, cast, lowers
from engine.codegen.prims import NotFusibleError, Scan

_KINDS = {"cumsum": "sum", "cumprod": "product", "cummax": "largest", "cummin": "smallest"}


@lowers("cumsum", "cumprod", "cummax", "cummin")
def _scans(low: Lowering, node: Node) -> Lowered:
    name = low.out_name(node)
    if len(node.outputs) > 1 and node.outputs[1] is not None:
        raise NotFusibleError(f"{node.op}: the positions are used")
    source = cast(low.tensor(node), low.out_dtype(node))
    if not source.shape:
        return (source, *([None] * (len(node.outputs) - 1)))
    dim = int(low.number(node, "dim", 0)) % len(source.shape)
    scan = Scan(name=name, dtype=source.dtype, shape=source.shape, kind=_KINDS[node.base], source=source, dim=dim,
                compute=source.dtype)
    return (scan, *([None] * (len(node.outputs) - 1)))
