"""Places in a document that can be optimised: classes, functions and kernels, found in the buffer's text."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Literal

from contracts.errors import InputError
from contracts.spans import Span
from hiera_lsp.documents import CUDA_SUFFIXES, Document, plain, split_lines

if TYPE_CHECKING:  # Loaded with the first document of its kind: the editor waits for the server to start.
    from contracts.cuda_pragmas import Pragmas
    from contracts.cuda_sites import CudaFile, CudaFunction, Earlier, Launch


@dataclass(frozen=True, slots=True, kw_only=True)
class EditorSite:
    """One class, function or kernel.

    Attributes:
        kind: `module`, `function` or `cuda`.
        symbol: Qualified name.
        name_span: The name in the text; 0-based lines, character columns.
        span: The whole definition.
        text_hash: Hash of what a result depends on: the definition, or the whole `.cu` file; empty while it
            cannot be read because the text does not parse.
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

    def touches(self, start_line: int, end_line: int) -> bool:
        """True when the lines overlap the definition."""
        return self.span.start_line <= end_line and start_line <= self.span.end_line


@dataclass(frozen=True, slots=True)
class Found:
    """What a text holds: its sites, for CUDA the launches and wrong `// hiera:` lines, and why parts may be missing."""

    sites: tuple[EditorSite, ...]
    launches: tuple[Launch, ...] = ()
    trouble: str = ""
    problems: tuple[InputError, ...] = ()


class SiteFinder:
    """Finds sites and remembers the last good answer of each document, for buffers that do not parse."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, bool, Found]] = {}
        self._earlier: dict[str, Earlier] = {}

    def sites(self, document: Document) -> tuple[EditorSite, ...]:
        """Sites of the document's current text, in order."""
        return self.found(document).sites

    def found(self, document: Document) -> Found:
        """Everything found in the document's current text."""
        text, is_cuda = document.source, document.is_cuda
        known = self._known.get(document.uri)
        if known is not None and known[0] == text and known[1] == is_cuda:
            return known[2]
        found = self._find_cuda(document.uri, text) if is_cuda else find_python(text)
        if found.trouble and known is not None and known[1] == is_cuda:
            found = _with_lost(found, known[2].sites, text)
        self._known[document.uri] = (text, is_cuda, found)
        return found

    def forget(self, uri: str) -> None:
        """Drop what is known of a closed document."""
        self._known.pop(uri, None)
        self._earlier.pop(uri, None)

    def _find_cuda(self, uri: str, text: str) -> Found:
        from contracts.cuda_sites import Earlier

        return find_cuda(text, self._earlier.setdefault(uri, Earlier()))


def find(uri: str, text: str) -> tuple[EditorSite, ...]:
    """Sites of `text`, without memory."""
    if PurePosixPath(uri.split("?")[0]).suffix.lower() in CUDA_SUFFIXES:
        return find_cuda(text).sites
    return find_python(text).sites


def find_python(text: str) -> Found:
    """Sites of Python text."""
    from contracts.python_sites import read_sites

    sites, error = read_sites(text)
    found = tuple(
        EditorSite(
            kind=site.kind, symbol=site.name, name_span=site.name_span, span=site.span, text_hash=site.text_sha256,
            missing="" if site.has_example_inputs else f"nothing says what {site.name}'s example inputs are",
            stub="" if site.has_example_inputs else _inputs_stub(site.kind),
        )
        for site in sites
    )
    return Found(found, trouble=f"line {error.lineno or 1} does not parse: {error.msg}" if error is not None else "")


def find_cuda(text: str, earlier: Earlier | None = None) -> Found:
    """Sites of CUDA text; all of them share the hash of the whole text, because a candidate is a whole text."""
    from contracts.cuda_pragmas import Pragmas, pragma_template, read_pragmas
    from contracts.cuda_sites import parse_cuda

    found = parse_cuda(text, earlier)
    digest = text_hash(text)
    problems: list[InputError] = []
    try:
        pragmas, trouble = read_pragmas(text, ""), ""
    except InputError as error:
        pragmas, trouble = Pragmas(), error.problem
        problems.append(error)
    offered = [
        function for function in found.functions
        if not function.template and (function.kind != "host" or function.takes_tensors)
    ]
    sites = []
    for function in offered:
        missing = InputError(trouble, hint="correct the line") if trouble else _missing(function, pragmas, found)
        sites.append(
            EditorSite(
                kind="cuda", symbol=function.name, name_span=function.name_span, span=function.span,
                text_hash=digest, missing=missing.problem if missing else "",
                stub=pragma_template(function) if missing and not trouble else "",
            )
        )
        # Whoever has begun to describe a function is told what is wrong; whoever has not is left in peace.
        begun = pragmas.entry == function.name or (bool(pragmas.arguments) and len(offered) == 1)
        if missing and begun and not trouble:
            problems.append(missing)
    return Found(tuple(sites), found.launches, problems=tuple(problems))


def text_hash(text: str) -> str:
    """Hash of a whole text, the same for every kind of line end and with or without a byte order mark."""
    return hashlib.sha256(plain(text).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _with_lost(found: Found, earlier: tuple[EditorSite, ...], text: str) -> Found:
    """Add the sites of the last good text whose first line is still there, at their new place."""
    here = {site.symbol for site in found.sites}
    lines = split_lines(text)
    lost = []
    for site in earlier:
        if site.symbol in here:
            continue
        name = site.symbol.rpartition(".")[2]
        header = re.compile(rf"\s*(?:class|def|async\s+def)\s+({re.escape(name)})\b")
        places = [(n, match) for n, line in enumerate(lines) if (match := header.match(line))]
        if not places:
            continue
        line, match = _nearest(places, site.name_span.start_line)
        height = site.span.end_line - site.name_span.start_line
        lost.append(
            replace(
                site, text_hash="", stub="", missing=found.trouble,
                name_span=Span(start_line=line, start_column=match.start(1), end_line=line, end_column=match.end(1)),
                span=Span(start_line=line, start_column=0, end_line=min(line + height, len(lines) - 1), end_column=0),
            )
        )
    if not lost:
        return found
    return replace(found, sites=tuple(sorted((*found.sites, *lost), key=lambda site: site.span.start_line)))


def _nearest(places: list[tuple[int, re.Match[str]]], line: int) -> tuple[int, re.Match[str]]:
    return min(places, key=lambda place: abs(place[0] - line))


def _inputs_stub(kind: str) -> str:
    inputs = (
        "\n\ndef get_inputs():\n"
        f'    """Example inputs, as {"forward" if kind == "module" else "the function"} takes them."""\n'
        "    return [torch.randn(16, 1024)]\n"
    )
    if kind != "module":
        return inputs
    return inputs + (
        "\n\ndef get_init_inputs():\n"
        '    """Arguments of the constructor."""\n'
        "    return []\n"
    )


def _missing(function: CudaFunction, pragmas: Pragmas, found: CudaFile) -> InputError | None:
    from contracts.cuda_adaptor import contract_arguments

    line = function.name_span.start_line + 1
    if pragmas.entry not in (None, function.name):
        return InputError(f"the file's `// hiera: entry` line names {pragmas.entry}", hint="name another", line=line)
    try:
        contract_arguments(function, pragmas, "")
    except InputError as error:
        return error
    if function.kind == "kernel" and pragmas.launch is None:
        by = next((launch.function for launch in found.launches if launch.kernel == function.name), "")
        also = f"; {by} launches it, optimize that one" if by else ""
        return InputError(f"nothing says how kernel {function.name} is launched{also}", line=line,
                          hint="put `extern \"C\"` before a host function that launches it, or add a line such as "
                               "`// hiera: launch grid=(64) block=(256)`")
    return None
