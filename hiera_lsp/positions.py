"""Between our character columns and the client's code units; nothing else counts positions."""

from __future__ import annotations

from lsprotocol import types
from pygls.workspace import PositionCodec

from contracts.cuda_sites import Span


def to_range(span: Span, lines: list[str], codec: PositionCodec) -> types.Range:
    """A span (0-based lines, character columns) as the client counts it.

    `lines` are the document's lines with their ends; a span past the end is clipped.
    """
    return types.Range(
        start=to_position(span.start_line, span.start_column, lines, codec),
        end=to_position(span.end_line, span.end_column, lines, codec),
    )


def to_position(line: int, column: int, lines: list[str], codec: PositionCodec) -> types.Position:
    """One place as the client counts it."""
    if line >= len(lines):
        return types.Position(line=len(lines), character=0)
    text = lines[line].rstrip("\r\n")[:column]
    return types.Position(line=line, character=codec.client_num_units(text))


def whole(lines: list[str], codec: PositionCodec) -> types.Range:
    """The whole document."""
    if not lines:
        return types.Range(start=types.Position(0, 0), end=types.Position(0, 0))
    last = lines[-1]
    if last.endswith(("\n", "\r")):
        end = types.Position(line=len(lines), character=0)
    else:
        end = types.Position(line=len(lines) - 1, character=codec.client_num_units(last))
    return types.Range(start=types.Position(0, 0), end=end)
