"""Between our character columns and the client's code units; nothing else counts positions."""

from __future__ import annotations

from collections.abc import Sequence

from lsprotocol import types
from pygls.workspace import PositionCodec

from contracts.spans import Span


def to_range(span: Span, lines: Sequence[str], codec: PositionCodec) -> types.Range:
    """A span (0-based lines, character columns) as the client counts it.

    `lines` are the document's lines with their ends; a span past the end is clipped.
    """
    return types.Range(
        start=to_position(span.start_line, span.start_column, lines, codec),
        end=to_position(span.end_line, span.end_column, lines, codec),
    )


def to_position(line: int, column: int, lines: Sequence[str], codec: PositionCodec) -> types.Position:
    """One place as the client counts it."""
    if line >= len(lines):
        return types.Position(line=len(lines), character=0)
    text = lines[line].rstrip("\r\n")[:column]
    return types.Position(line=line, character=codec.client_num_units(text))


def whole_line(line: int, lines: Sequence[str], codec: PositionCodec) -> types.Range:
    """A line's text without its indentation and its end."""
    text = lines[line].rstrip() if line < len(lines) else ""
    start = len(text) - len(text.lstrip())
    return types.Range(
        start=to_position(line, start, lines, codec), end=to_position(line, len(text), lines, codec)
    )


def line_start(line: int, lines: Sequence[str], codec: PositionCodec) -> types.Position:
    """The beginning of a line, or the end of the text."""
    return types.Position(line, 0) if line < len(lines) else whole(lines, codec).end


def whole(lines: Sequence[str], codec: PositionCodec) -> types.Range:
    """The whole document."""
    start = types.Position(0, 0)
    if not lines:
        return types.Range(start=start, end=start)
    last = lines[-1]
    if last.endswith(("\n", "\r")):
        return types.Range(start=start, end=types.Position(line=len(lines), character=0))
    return types.Range(start=start, end=types.Position(line=len(lines) - 1, character=codec.client_num_units(last)))
