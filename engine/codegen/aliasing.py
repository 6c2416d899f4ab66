"""Which values may share memory with which, by what operators are allowed to return."""

from __future__ import annotations

from contracts.graph import Graph
from engine.codegen.cpp import words

# Operators whose result is, or may be, a view of their first tensor argument.
MAY_ALIAS = words(
    """alias as_strided atleast_1d atleast_2d atleast_3d broadcast_tensors broadcast_to chunk conj contiguous detach
    diagonal dropout expand expand_as feature_dropout flatten hsplit vsplit dsplit imag lift_fresh meshgrid moveaxis
    movedim narrow numpy_T mT mH adjoint permute positive ravel real reshape reshape_as resolve_conj resolve_neg
    select slice split split_with_sizes squeeze swapaxes swapdims t tensor_split to transpose type_as unbind
    unflatten unfold unsafe_chunk unsafe_split unsafe_split_with_sizes unsqueeze view view_as view_as_complex
    view_as_real _reshape_alias _unsafe_view alpha_dropout einsum"""
)


def alias_roots(graph: Graph) -> dict[str, str]:
    """Every value that may be a view, to the value whose memory it may share."""
    roots: dict[str, str] = {}
    for node in graph.nodes:
        if node.base not in MAY_ALIAS:
            continue
        sources = list(node.refs())
        if not sources or (node.base == "einsum" and len(sources) > 1):
            continue
        for index, name in enumerate(node.outputs):
            if name is not None:
                source = sources[index] if node.base in ("broadcast_tensors", "meshgrid") else sources[0]
                roots[name] = roots.get(source, source)
    return roots


# Views that may begin elsewhere than their source.
_MOVES_START = words(
    "select slice narrow split split_with_sizes chunk unbind tensor_split unfold as_strided diagonal unsafe_split"
)


def offset_views(graph: Graph) -> frozenset[str]:
    """Values that may begin in the middle of an allocation, so that wide accesses could be unaligned."""
    found: set[str] = set()
    for node in graph.nodes:
        if node.base in MAY_ALIAS and (node.base in _MOVES_START or any(name in found for name in node.refs())):
            found.update(name for name in node.outputs if name is not None)
    return frozenset(found)
