"""Kernels that differ only in names become one: deep networks repeat a few layers, and compiling them takes longest."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from engine.codegen.products import ExternCode
from engine.codegen.regions import KernelText

_COMMENT = re.compile(r"//[^\n]*")
_STRUCT = re.compile(r"^struct (\w+)", re.MULTILINE)
_LAUNCHED = re.compile(r"(?<=^launch_cluster\()\w+|^\w+(?=<<<)")
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
    return [_LAUNCHED.sub(lambda found: replaced.get(found[0], found[0]), line, count=1) for line in lines]


def shared_product(code: ExternCode, known: SameKernels) -> ExternCode:
    """The code of a call, with the description of its product left out where an earlier one is equal."""
    struct = _STRUCT.search(code.device_code)
    if struct is None:
        return code
    name = struct[1]
    first = known.replaced([KernelText(name=name, text=code.device_code)]).get(name)
    if first is None:
        return code
    used = re.compile(rf"(?<=<){name}(?=>)|\b{name}(?=::)")
    return replace(
        code, device_code="", host_code=[used.sub(first, line) for line in code.host_code],
        kernels=[used.sub(first, kernel) for kernel in code.kernels],
    )


def _shape(kernel: KernelText) -> str:
    """The text without comments, its own names numbered in the order in which they occur."""
    own = {kernel.name, *kernel.identifiers}
    numbers: dict[str, str] = {}

    def numbered(match: re.Match[str]) -> str:
        name = match[0]
        return numbers.setdefault(name, f"${len(numbers)}") if name in own else name

    return _NAME.sub(numbered, _COMMENT.sub("", kernel.text))
