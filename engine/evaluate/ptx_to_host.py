"""Inline PTX to calls of the emulator: the few instructions that have no C++ form and that kernels need.

`asm volatile("mma.sync... {%0, %1, %2, %3}, ...;" : "+f"(d[0]) ... );` becomes a call with the operands in the order
of the instruction. What is not in `INSTRUCTIONS` stays, and blocks the emulator.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

# Instruction to the function of `hiera_emu` that plays it; operands go by reference, in the instruction's order.
INSTRUCTIONS = {
    "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32": "mma_m16n8k8_tf32",
    "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32": "mma_m16n8k16_half",
    "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32": "mma_m16n8k16_bfloat16",
    "cvt.rna.tf32.f32": "cvt_rna_tf32",
}
_STATEMENT = re.compile(r"\basm\s*(?:volatile|__volatile__)?\s*\(")
_LITERAL = re.compile(r'"((?:\\.|[^"\\])*)"')
_ESCAPED = re.compile(r"\\[nrt]")
_OPERAND = re.compile(r"%(\d+)")


@dataclass(frozen=True, slots=True)
class Statement:
    """One asm statement: where it stands, and the host text for it (None where there is none)."""

    start: int
    end: int
    host: str | None


def statements(source: str, mask: Callable[[str], str]) -> Iterator[Statement]:
    """All asm statements of `source`; `mask` blanks comments and literals at the same length."""
    code = mask(source)
    for found in _STATEMENT.finditer(code):
        end = _closing(code, found.end() - 1)
        if end is None:
            yield Statement(found.start(), found.end(), None)
            continue
        yield Statement(found.start(), end + 1, _host(source[found.end() : end], code[found.end() : end]))


def translated(source: str, mask: Callable[[str], str]) -> str:
    """`source` with every statement that the emulator can play as a call; lines stay."""
    out, last = [], 0
    for statement in statements(source, mask):
        if statement.host is None:
            continue
        lines = source.count("\n", statement.start, statement.end)
        out += [source[last : statement.start], statement.host, "\n" * lines]
        last = statement.end
    return "".join(out) + source[last:]


def _host(text: str, code: str) -> str | None:
    template, *operands = _split(text, code, ":")
    words = _ESCAPED.sub(" ", "".join(_LITERAL.findall(template))).strip().rstrip(";").strip()
    instruction, _, order = words.partition(" ")
    function = INSTRUCTIONS.get(instruction)
    if function is None or ";" in order or re.sub(r"%\d+|[{},\s]", "", order):
        return None
    values: list[str] = []
    for group in operands[:2]:
        for piece in _split(group, _blanked(group), ","):
            bare = piece.strip()
            if bare:
                values.append(bare[bare.index("(") :])
    numbers = [int(number) for number in _OPERAND.findall(order)]
    if any(number >= len(values) for number in numbers):
        return None
    return f"::hiera_emu::{function}({', '.join(values[number] for number in numbers)})"


def _blanked(text: str) -> str:
    return _LITERAL.sub(lambda found: " " * len(found[0]), text)


def _split(text: str, code: str, separator: str) -> list[str]:
    """`text` cut at separators outside of brackets; `::` between operand lists counts as two."""
    pieces, depth, last = [], 0, 0
    for position, letter in enumerate(code):
        depth += (letter in "([{") - (letter in ")]}")
        if letter == separator and depth == 0:
            pieces.append(text[last:position])
            last = position + 1
    return [*pieces, text[last:]]


def _closing(code: str, start: int) -> int | None:
    depth = 0
    for position in range(start, len(code)):
        depth += (code[position] in "([{") - (code[position] in ")]}")
        if depth == 0:
            return position
    return None
