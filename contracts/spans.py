"""A place in a text."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A place in the text: 0-based lines and character columns, end exclusive."""

    start_line: int
    start_column: int
    end_line: int
    end_column: int
