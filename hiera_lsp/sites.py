"""Places in a document that can be optimised: classes, functions and kernels, found in the buffer's text."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal

from contracts.cuda_adaptor import contract_arguments
from contracts.cuda_pragmas import Pragmas, pragma_template, read_pragmas
from contracts.cuda_sites import CudaFunction, Span, parse_cuda
from contracts.errors import InputError
from contracts.python_sites import find_sites

CUDA_SUFFIXES = (".cu", ".cuh")


@dataclass(frozen=True, slots=True, kw_only=True)
class EditorSite:
    """One class, function or kernel.

    Attributes:
        kind: `module`, `function` or `cuda`.
        symbol: Qualified name.
        name_span: The name in the text; 0-based lines, character columns.
        span: The whole definition.
        text_hash: Hash of what a result depends on: the definition, or the whole `.cu` file.
        missing: What is missing before it can be optimised, in words; empty when nothing is.
        stub: Text that a quick fix inserts for it; empty where there is none.
    """

    kind: Literal["module", "function", "cuda"]
    symbol: str
    name_span: Span
    span: Span
    text_hash: str
    missing: str = ""
    stub: str = ""

    def holds(self, line: int) -> bool:
        """True when `line` lies in the definition."""
        return self.span.start_line <= line <= self.span.end_line

    def touches(self, start_line: int, end_line: int) -> bool:
        """True when the lines overlap the definition."""
        return self.span.start_line <= end_line and start_line <= self.span.end_line


class SiteFinder:
    """Finds sites and remembers the last good answer of each document, for buffers that do not parse."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, tuple[EditorSite, ...]]] = {}

    def sites(self, uri: str, text: str) -> tuple[EditorSite, ...]:
        """Sites of the document's current text, in order."""
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        known = self._known.get(uri)
        if known is not None and known[0] == digest:
            return known[1]
        found = find(uri, text)
        if not found and known is not None and _is_broken(uri, text):
            found = known[1]
        self._known[uri] = (digest, found)
        return found

    def forget(self, uri: str) -> None:
        """Drop what is known of a closed document."""
        self._known.pop(uri, None)


def is_cuda(uri: str) -> bool:
    """True for `.cu` and `.cuh` documents."""
    return PurePosixPath(uri.split("?")[0]).suffix.lower() in CUDA_SUFFIXES


def find(uri: str, text: str) -> tuple[EditorSite, ...]:
    """Sites of `text`, without memory."""
    return _cuda_sites(uri, text) if is_cuda(uri) else _python_sites(text)


def _python_sites(text: str) -> tuple[EditorSite, ...]:
    return tuple(
        EditorSite(
            kind=site.kind, symbol=site.name, name_span=site.name_span, span=site.span, text_hash=site.text_sha256,
            missing="" if site.has_example_inputs else f"nothing says what {site.name}'s example inputs are",
            stub="" if site.has_example_inputs else _inputs_stub(),
        )
        for site in find_sites(text)
    )


def _inputs_stub() -> str:
    return (
        "\n\ndef get_inputs():\n"
        '    """Example inputs, as forward takes them."""\n'
        "    return [torch.randn(16, 1024)]\n"
        "\n\ndef get_init_inputs():\n"
        '    """Arguments of the constructor."""\n'
        "    return []\n"
    )


def _cuda_sites(uri: str, text: str) -> tuple[EditorSite, ...]:
    found = parse_cuda(text)
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    try:
        pragmas, trouble = read_pragmas(text, uri.rsplit("/", 1)[-1]), ""
    except InputError as error:
        pragmas, trouble = Pragmas(), error.message()
    sites = []
    for function in found.functions:
        if function.template or (function.kind == "host" and not function.takes_tensors):
            continue
        missing = trouble or _missing(function, pragmas)
        sites.append(
            EditorSite(
                kind="cuda", symbol=function.name, name_span=function.name_span, span=function.span,
                text_hash=digest, missing=missing, stub=pragma_template(function) if missing else "",
            )
        )
    return tuple(sites)


def _missing(function: CudaFunction, pragmas: Pragmas) -> str:
    if pragmas.entry not in (None, function.name):
        return f"the file's `// hiera: entry` line names {pragmas.entry}"
    try:
        contract_arguments(function, pragmas, "")
    except InputError as error:
        return error.problem
    if function.kind == "kernel" and pragmas.launch is None:
        return f"nothing says how kernel {function.name} is launched"
    return ""


def _is_broken(uri: str, text: str) -> bool:
    """True when an empty answer may only mean that the text does not parse now."""
    if is_cuda(uri):
        return "__global__" in text
    return "class " in text or "def " in text
