"""Feature: diagnostics. Results are events, so they are pushed: on the name, and on hot lines of a `.cu` file."""

from __future__ import annotations

from pathlib import Path

from lsprotocol import types
from pygls import uris
from pygls.workspace import TextDocument

from hiera_lsp import positions, texts
from hiera_lsp.results import Result
from hiera_lsp.session import Session
from hiera_lsp.sites import EditorSite, is_cuda

HOT_SHARE = 0.1
HOT_LINES = 5


def diagnostics(session: Session, document: TextDocument) -> list[types.Diagnostic]:
    """All diagnostics of a document as it is now; an empty list clears."""
    found: list[types.Diagnostic] = []
    sites = session.finder.sites(document.uri, document.source)
    for site in sites:
        result = session.live_result(document.uri, site.symbol)
        if result is None or result.state != "offered" or session.is_stale(result, sites):
            continue
        found.append(_bottleneck(session, document, site, result))
        if is_cuda(document.uri):
            found += _hot_lines(document, result)
    return found


def _bottleneck(session: Session, document: TextDocument, site: EditorSite, result: Result) -> types.Diagnostic:
    diagnostic = types.Diagnostic(
        range=positions.to_range(site.name_span, document.lines, document.position_codec),
        message=texts.diagnostic_message(result),
        severity=types.DiagnosticSeverity.Information,
        source="hiera",
        code=texts.diagnostic_code(result.summary),
        data={"run": result.summary.run, "symbol": site.symbol},
    )
    candidate = result.candidate
    if session.client.related_information and candidate is not None and Path(candidate.source).exists():
        start = types.Position(0, 0)
        diagnostic.related_information = [
            types.DiagnosticRelatedInformation(
                location=types.Location(uri=uris.from_fs_path(candidate.source) or "", range=types.Range(start, start)),
                message=f"candidate {candidate.id}: {candidate.title or 'the best verified source'}",
            )
        ]
    return diagnostic


def _hot_lines(document: TextDocument, result: Result) -> list[types.Diagnostic]:
    """Hot lines of the text in the buffer: only where the profiled source is the user's own."""
    best = result.summary.best_candidate
    if best is None or best.author != "user":
        return []
    hints = []
    for hot in result.summary.hot_lines[:HOT_LINES]:
        if hot.share < HOT_SHARE or hot.line > len(document.lines):
            continue
        text = document.lines[hot.line - 1].rstrip("\r\n")
        codec = document.position_codec
        start = codec.client_num_units(text[: len(text) - len(text.lstrip())])
        hints.append(
            types.Diagnostic(
                range=types.Range(
                    types.Position(hot.line - 1, start), types.Position(hot.line - 1, codec.client_num_units(text))
                ),
                message=f"{100 * hot.share:.0f} % of the stall samples (measured), mostly {hot.stall}",
                severity=types.DiagnosticSeverity.Hint,
                source="hiera",
                code="hiera.hot-line",
            )
        )
    return hints


def problem(
    document: TextDocument, site: EditorSite | None, message: str, hint: str, line: int | None
) -> types.Diagnostic:
    """A job that could not be done, at its line or at the site's name."""
    if line is not None and line <= len(document.lines):
        text = document.lines[line - 1].rstrip("\r\n")
        end = document.position_codec.client_num_units(text)
        place = types.Range(types.Position(line - 1, 0), types.Position(line - 1, end))
    elif site is not None:
        place = positions.to_range(site.name_span, document.lines, document.position_codec)
    else:
        place = types.Range(types.Position(0, 0), types.Position(0, 0))
    return types.Diagnostic(
        range=place, message=f"{message}\nTo fix: {hint}", severity=types.DiagnosticSeverity.Information,
        source="hiera", code="hiera.cannot-optimize",
    )
