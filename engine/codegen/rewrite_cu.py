"""Variations of a user's own `.cu` text: the moves an engineer tries before rewriting a kernel.

The text stays the user's: each move is a small local edit, comments and formatting are kept. A move
may break the code; the evaluator decides, not this module.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from contracts.cuda_adaptor import MARK
from contracts.cuda_sites import CudaFile, CudaFunction, Span, parse_cuda
from engine.codegen import Program, Recipe, Tunable

_MASKED = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)
_CONSTANT = re.compile(
    r"(?:^[ \t]*#[ \t]*define[ \t]+(?P<macro>[A-Z_]\w*)[ \t]+(?P<a>\d+)[ \t]*$"
    r"|\b(?:constexpr|const)[ \t]+(?:static[ \t]+)?(?:unsigned[ \t]+)?(?:int|size_t|int32_t|int64_t|unsigned)[ \t]+"
    r"(?P<name>\w+)[ \t]*=[ \t]*(?P<b>\d+)[ \t]*;)",
    re.MULTILINE,
)
_LITERAL_BLOCK = re.compile(r"<<<(?P<grid>[^;]*?),\s*(?P<block>\d+)\s*(?P<rest>(?:,[^;]*?)?)>>>", re.DOTALL)
_FOR = re.compile(r"^(?P<indent>[ \t]*)for[ \t]*\(", re.MULTILINE)
_DOUBLE_LITERAL = re.compile(r"(?<![\w.])(\d+\.\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)(?![\w.])")
_DOUBLE_CALL = re.compile(r"(?<![\w:.>])(exp|log|sqrt|tanh|fabs|fmax|fmin|pow|sin|cos|erf|floor|ceil|rsqrt)\(")
# What a constant's name tells about the direction that moves it; first match wins.
_NAME_DIRECTIONS = (
    (re.compile(r"unroll|vec|items|per_thread|ilp", re.IGNORECASE), "M"),
    (re.compile(r"tile|stage|depth|bk|bm|bn|halo|pipe", re.IGNORECASE), "R"),
    (re.compile(r"block|thread|warp|bdim|size", re.IGNORECASE), "P"),
)


@dataclass(frozen=True, slots=True)
class _Edit:
    start: int
    end: int
    text: str


def rewrite(source: str, recipe: Recipe) -> Program:
    """Apply the recipe's choices to `source`, the user's text with or without our adaptor.

    With no choices the text comes back unchanged.
    """
    text, mark, adaptor = source.partition("\n" + MARK)
    found = parse_cuda(text)
    tunables = tuple(_tunables(text, found))
    known = {tunable.key: tunable for tunable in tunables}
    choices = {key: value for key, value in recipe.choices.items() if key in known}
    edits = [edit for key, value in choices.items() for edit in _edits(text, found, key, value)]
    return Program(
        source=_apply(text, edits) + mark + adaptor,
        tunables=tunables,
        kernels=tuple(kernel.name for kernel in found.kernels),
        notes=tuple(f"{known[key].meaning.rstrip('.')}: {value}" for key, value in choices.items()),
    )


def _tunables(text: str, found: CudaFile) -> Iterator[Tunable]:
    for name, value in _constants(text).items():
        yield Tunable(
            key=f"constant.{name}", direction=_direction_of(name), values=_around(value),
            meaning=f"value of the constant {name}", weight=0.8,
        )
    for number, match in enumerate(_LITERAL_BLOCK.finditer(_mask(text))):
        yield Tunable(
            key=f"block.{number}", direction="P", values=_around(int(match["block"]), low=32),
            meaning=f"threads per block of launch {number + 1}", weight=0.9,
        )
    for kernel in found.kernels:
        body = text[slice(*_offsets(text, kernel.span))]
        if any(p.pointer for p in kernel.parameters) and "__restrict__" not in body:
            yield Tunable(
                key=f"restrict.{kernel.name}", direction="M", values=(False, True),
                meaning=f"__restrict__ on the pointers of {kernel.name}, so that loads may be cached and reordered",
                weight=0.7,
            )
        if "__launch_bounds__" not in body:
            yield Tunable(
                key=f"launch_bounds.{kernel.name}", direction="P", values=(0, 256, 512, 1024, 128),
                meaning=f"__launch_bounds__ of {kernel.name}", weight=0.5,
            )
        if _FOR.search(_mask(body)) and "#pragma unroll" not in body:
            yield Tunable(
                key=f"unroll.{kernel.name}", direction="C", values=(0, 4, 8, 2, 16),
                meaning=f"unroll factor of the loops of {kernel.name}", weight=0.6,
            )
        if "double" not in body and (_DOUBLE_LITERAL.search(_mask(body)) or _DOUBLE_CALL.search(_mask(body))):
            yield Tunable(
                key=f"single.{kernel.name}", direction="T", values=(False, True),
                meaning=f"single-precision literals and functions in {kernel.name}, which computes in float",
                weight=0.6,
            )


def _edits(text: str, found: CudaFile, key: str, value: int | str | bool) -> Iterator[_Edit]:
    move, _, subject = key.partition(".")
    masked = _mask(text)
    if not value:
        return
    if move == "constant":
        for match in _CONSTANT.finditer(masked):
            if (match["macro"] or match["name"]) == subject:
                group = "a" if match["macro"] else "b"
                yield _Edit(match.start(group), match.end(group), str(value))
    elif move == "block":
        match = list(_LITERAL_BLOCK.finditer(masked))[int(subject)]
        old = int(match["block"])
        for number, new in ((old, int(value)), (old - 1, int(value) - 1)):
            for place in re.finditer(rf"(?<![\w.]){number}(?![\w.])", match[0]):
                yield _Edit(match.start() + place.start(), match.start() + place.end(), str(new))
    else:
        kernel = found.named(subject)
        if kernel is not None:
            yield from _kernel_edits(text, masked, kernel, move, value)


def _kernel_edits(
    text: str, masked: str, kernel: CudaFunction, move: str, value: int | str | bool
) -> Iterator[_Edit]:
    start, end = _offsets(text, kernel.span)
    name_start, name_end = _offsets(text, kernel.name_span)
    brace = masked.index("{", name_end)
    if move == "restrict":
        for match in re.finditer(r"\*(?!\s*const\b)\s*(?=\w+\s*[,)])", masked[name_end:brace]):
            yield _Edit(name_end + match.start(), name_end + match.end(), "* __restrict__ ")
    elif move == "launch_bounds":
        yield _Edit(name_start, name_start, f"__launch_bounds__({value}) ")
    elif move == "unroll":
        for match in _FOR.finditer(masked, brace, end):
            yield _Edit(match.start(), match.start(), f"{match['indent']}#pragma unroll {value}\n")
    elif move == "single":
        for match in _DOUBLE_LITERAL.finditer(masked, brace, end):
            yield _Edit(match.end(), match.end(), "f")
        for match in _DOUBLE_CALL.finditer(masked, start, end):
            yield _Edit(match.end() - 1, match.end() - 1, "f")


def _constants(text: str) -> Mapping[str, int]:
    found: dict[str, int] = {}
    for match in _CONSTANT.finditer(_mask(text)):
        name, value = match["macro"] or match["name"], int(match["a"] or match["b"])
        # Sizes of the problem are not ours to change; powers of two up to a block's size usually are tunables.
        if 2 <= value <= 1024 and value & (value - 1) == 0:
            found[name] = value
    return found


def _around(value: int, low: int = 1) -> tuple[int, ...]:
    others = [value * 2, value // 2, value * 4, value // 4]
    return (value, *(v for v in others if low <= v <= 1024))


def _direction_of(name: str) -> str:
    return next((direction for pattern, direction in _NAME_DIRECTIONS if pattern.search(name)), "P")


def _mask(text: str) -> str:
    """`text` with comments and strings blanked, at the same length."""
    return _MASKED.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


def _offsets(text: str, span: Span) -> tuple[int, int]:
    starts = [0]
    for line in text.split("\n"):
        starts.append(starts[-1] + len(line) + 1)
    return starts[span.start_line] + span.start_column, starts[span.end_line] + span.end_column


def _apply(text: str, edits: list[_Edit]) -> str:
    for edit in sorted(edits, key=lambda e: (e.start, e.end), reverse=True):
        text = text[: edit.start] + edit.text + text[edit.end :]
    return text
