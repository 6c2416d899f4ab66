"""Feature: diagnostics. Results are events, so they are pushed: on the name, and on hot lines of a `.cu` file."""

from __future__ import annotations

from pathlib import Path

from lsprotocol import types
from pygls import uris

from contracts.errors import InputError
from hiera_lsp import positions, texts
from hiera_lsp.documents import Document
from hiera_lsp.jobs import JobEnd
from hiera_lsp.pages import page_uri
from hiera_lsp.results import Result, Standing
from hiera_lsp.session import Session
from hiera_lsp.sites import EditorSite

HOT_SHARE = 0.1
HOT_LINES = 5
SOURCE = "hiera"
PRAGMA = "hiera.pragma"


def diagnostics(session: Session, document: Document) -> list[types.Diagnostic]:
    """All diagnostics of a document as it is now; an empty list clears."""
    found: list[types.Diagnostic] = []
    everything = session.finder.found(document)
    sites = everything.sites
    found += [_pragma(session, document, error) for error in everything.problems]
    for site in sites:
        result = session.live_result(document.uri, site.symbol)
        if result is None:
            interim = session.interim_result(document.uri, site.symbol)
            if interim is not None and session.standing(interim, sites) == "offered":
                found.append(_bottleneck(session, document, site, interim, "still searching"))
            continue
        standing = session.standing(result, sites)
        if standing == "offered":
            found.append(_bottleneck(session, document, site, result))
            if result.summary.profiled:
                found.append(_no_counters(session, document, site, result))
        if document.is_cuda and profiled_text_is_here(result, standing):
            found += _hot_lines(session, document, result)
    return found


def profiled_text_is_here(result: Result, standing: Standing) -> bool:
    """True when the lines of the profiled source are the lines of the buffer."""
    profiled = result.summary.profiled_candidate
    if profiled is None:
        return False
    if standing == "accepted":
        return result.chosen == profiled.id
    return standing == "offered" and profiled.author == "user"


def problem(session: Session, document: Document, site: EditorSite | None, end: JobEnd) -> types.Diagnostic:
    """A job that could not be done, at its line of this document or at the site's name."""
    own = end.file is not None and Path(end.file) == Path(uris.to_fs_path(document.uri) or "")
    if own and end.line is not None and 1 <= end.line <= len(document.lines):
        place = positions.whole_line(end.line - 1, document.lines, document.position_codec)
    elif site is not None:
        place = positions.to_range(site.name_span, document.lines, document.position_codec)
    else:
        place = types.Range(types.Position(0, 0), types.Position(0, 0))
    where = "" if own or not end.file else f"{end.file}{f':{end.line}' if end.line else ''}: "
    return _made(session, place, f"{where}{end.problem}\nTo fix: {end.hint}", end.code,
                 {"symbol": site.symbol if site is not None else None})


def documentation(code: str) -> str | None:
    """Where a code is explained: the page that comes with HIERA."""
    if code == PRAGMA:
        return page_uri("cuda-files.md")
    return page_uri("diagnostics.md", code.replace(".", ""))


def _bottleneck(
    session: Session, document: Document, site: EditorSite, result: Result, note: str = ""
) -> types.Diagnostic:
    place = positions.to_range(site.name_span, document.lines, document.position_codec)
    data = {"run": result.summary.run, "symbol": site.symbol}
    message = texts.diagnostic_message(result) + (f" ({note})" if note else "")
    found = _made(session, place, message, texts.diagnostic_code(result.summary), data)
    candidate = result.candidate
    if session.client.related_information and candidate is not None and Path(candidate.source).exists():
        start = types.Position(0, 0)
        found.related_information = [
            types.DiagnosticRelatedInformation(
                location=types.Location(uri=uris.from_fs_path(candidate.source) or "", range=types.Range(start, start)),
                message=f"candidate {candidate.id}: {candidate.title or 'the best verified source'}",
            )
        ]
    return found


def _pragma(session: Session, document: Document, error: InputError) -> types.Diagnostic:
    """A `// hiera:` line that cannot be used, or that is missing, at the line that shows it."""
    line = min(max(error.line or 1, 1), max(len(document.lines), 1)) - 1
    place = positions.whole_line(line, document.lines, document.position_codec)
    return _made(session, place, f"{error.problem}\nTo fix: {error.hint}", PRAGMA, {})


def _no_counters(session: Session, document: Document, site: EditorSite, result: Result) -> types.Diagnostic:
    place = positions.to_range(site.name_span, document.lines, document.position_codec)
    found = _made(session, place, f"GPU counters: {result.summary.profiled}", "hiera.no-counters",
                  {"symbol": site.symbol})
    found.severity = types.DiagnosticSeverity.Hint
    return found


def _hot_lines(session: Session, document: Document, result: Result) -> list[types.Diagnostic]:
    hints = []
    for hot in result.summary.hot_lines[:HOT_LINES]:
        if hot.share < HOT_SHARE or not 1 <= hot.line <= len(document.lines):
            continue
        place = positions.whole_line(hot.line - 1, document.lines, document.position_codec)
        message = f"{100 * hot.share:.0f} % of the stall samples (measured), mostly {hot.stall}"
        hint = _made(session, place, message, "hiera.hot-line", {"symbol": result.symbol})
        hint.severity = types.DiagnosticSeverity.Hint
        hints.append(hint)
    return hints


def _made(session: Session, place: types.Range, message: str, code: str, data: dict[str, object]) -> types.Diagnostic:
    made = types.Diagnostic(
        range=place, message=message, severity=types.DiagnosticSeverity.Information, source=SOURCE, code=code, data=data
    )
    if session.client.code_description and (page := documentation(code)):
        made.code_description = types.CodeDescription(href=page)
    return made
