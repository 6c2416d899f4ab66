"""The contract's cpp_source.cpp as a binding: used whole when it has a PYBIND11_MODULE, else one is written for it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from contracts.errors import ContractError
from engine.evaluate.screen import mask_comments

MODULE = "hiera_ext"
_PYBIND = re.compile(r"\bPYBIND11_MODULE\s*\(\s*(?P<name>\w+)\s*,")
_CONDITION = re.compile(r"^[ \t]*#[ \t]*if", re.M)
_FUNCTION = re.compile(r"^(?P<result>[\w:<>,\s*&\[\]]+?[\s*&>])(?P<name>\w+)\s*\((?P<arguments>.*)\)$", re.S)
_NOT_FUNCTIONS = frozenset(["return", "using", "typedef", "namespace", "template", "struct", "class", "static", "enum"])


@dataclass(frozen=True, slots=True)
class BindingSource:
    """What to compile, and what it offers.

    Attributes:
        text: C++ with a PYBIND11_MODULE.
        module: The extension's own module name.
        exported: Names that Python sees.
        declared: Host functions that cuda_source.cu must define.
        needs_torch: Only torch's own headers give what it says: it defines functions, overloads an exported one, or
            asks the preprocessor.
    """

    text: str
    module: str
    exported: tuple[str, ...]
    declared: tuple[str, ...]
    needs_torch: bool = False


def read_binding(path: Path) -> BindingSource:
    """Read cpp_source.cpp.

    Raises:
        ContractError: It is missing, or declares no function.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ContractError(
            "the contract folder has no cpp_source.cpp", file=path,
            hint="write it with the declaration of the host function that cuda_source.cu defines",
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ContractError(f"cpp_source.cpp cannot be read: {error}", hint="repair the file", file=path) from None
    plain = mask_comments(text)
    declared, defined = _functions(re.sub(r"^[ \t]*#[^\n]*(?:\\\n[^\n]*)*", "", plain, flags=re.M))
    asks = bool(_CONDITION.search(plain))
    module = _PYBIND.search(plain)
    if module:
        name = MODULE if module["name"] == "TORCH_EXTENSION_NAME" else module["name"]
        exported = re.findall(r"\.\s*def\s*\(\s*\"(\w+)\"", plain)
        needs_torch = bool(defined) or asks or len(set(exported)) < len(exported)
        return BindingSource(_with_header(text), name, tuple(exported), tuple(declared), needs_torch)
    exported = defined or declared
    if not exported:
        raise ContractError(
            "cpp_source.cpp declares no function", file=path,
            hint="declare the host function of cuda_source.cu, such as `torch::Tensor f(torch::Tensor x);`",
        )
    lines = "".join(f'  m.def("{name}", &{name});\n' for name in exported)
    # One line is added before the user's text: #line keeps the compiler's messages on their lines.
    made = f"{_with_header(text)}\nPYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {{\n{lines}}}\n"
    return BindingSource(made, MODULE, tuple(exported), tuple(declared), bool(defined) or asks)


def _with_header(text: str) -> str:
    """`text` with torch/extension.h before it, as `load_inline` does."""
    return f'#include <torch/extension.h>\n#line 1 "cpp_source.cpp"\n{text}'


def _functions(text: str) -> tuple[list[str], list[str]]:
    """(declared, defined) functions at the outermost level, in order, each name once."""
    declared: list[str] = []
    defined: list[str] = []
    for statement, is_body in _statements(text):
        statement = re.sub(r"^\s*(?:extern\s+(?:\"C\"\s*)?|inline\s+)", "", statement).strip()
        match = _FUNCTION.match(statement)
        first = re.split(r"\W", statement, maxsplit=1)[0]
        if not match or first in _NOT_FUNCTIONS or match["name"] == "PYBIND11_MODULE":
            continue
        names = defined if is_body else declared
        if match["name"] not in names:
            names.append(match["name"])
    return [name for name in declared if name not in defined], defined


def _statements(text: str) -> list[tuple[str, bool]]:
    """Statements at brace depth 0, each with whether a body follows it."""
    found: list[tuple[str, bool]] = []
    depth = start = parentheses = 0
    for index, character in enumerate(text):
        if character == "(" and not depth:
            parentheses += 1
        elif character == ")" and not depth:
            parentheses -= 1
        elif parentheses:
            continue
        elif character == "{":
            if not depth:
                found.append((text[start:index], True))
            depth += 1
        elif character == "}":
            depth = max(0, depth - 1)
            if not depth:
                start = index + 1
        elif character == ";" and not depth:
            found.append((text[start:index], False))
            start = index + 1
    return found
