"""Kernels that differ only in names become one: deep networks repeat a few layers, and compiling them takes longest."""

from __future__ import annotations

import re
from collections.abc import Sequence

from engine.codegen.regions import KernelText

_COMMENT = re.compile(r"//[^\n]*")
# A name after a dot or an arrow is a member, not a variable.
_NAME = re.compile(r"(?<![\w.])(?<!->)[A-Za-z_]\w*")


class SameKernels:
    """The kernels of one function so far."""

    def __init__(self) -> None:
        self._first: dict[str, str] = {}

    def replaced(self, kernels: Sequence[KernelText]) -> dict[str, str]:
        """Kernel name to the name of an earlier kernel with the same code; new kernels are remembered."""
        found: dict[str, str] = {}
        for kernel in kernels:
            first = self._first.setdefault(_shape(kernel), kernel.name)
            if first != kernel.name:
                found[kernel.name] = first
        return found


def launched_as(lines: Sequence[str], replaced: dict[str, str]) -> list[str]:
    """Host lines that launch the kernels which `replaced` names."""
    found = []
    for line in lines:
        name, launch, rest = line.partition("<<<")
        found.append(f"{replaced[name]}{launch}{rest}" if launch and name in replaced else line)
    return found


def _shape(kernel: KernelText) -> str:
    """The text without comments, its own names numbered in the order in which they occur."""
    own = {kernel.name, *kernel.identifiers}
    numbers: dict[str, str] = {}

    def numbered(match: re.Match[str]) -> str:
        name = match[0]
        return numbers.setdefault(name, f"${len(numbers)}") if name in own else name

    return _NAME.sub(numbered, _COMMENT.sub("", kernel.text))
