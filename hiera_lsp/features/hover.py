"""Feature: hover. On a class, kernel or launch, say what limits it, what was found and how it was verified."""

from __future__ import annotations

from lsprotocol import types

from hiera_lsp import positions, texts
from hiera_lsp.documents import Document
from hiera_lsp.jobs import Site
from hiera_lsp.session import Session
from hiera_lsp.sites import EditorSite, Found


def hover(session: Session, document: Document, params: types.HoverParams) -> types.Hover | None:
    """Answer `textDocument/hover`. Reads what is known; never starts work."""
    codec = document.position_codec
    found = session.finder.found(document)
    site = _at(found, document, params.position)
    if site is None:
        return None
    running = session.jobs.at(Site(document.uri, site.symbol))
    result = session.live_result(document.uri, site.symbol) or session.interim_result(document.uri, site.symbol)
    if result is not None:
        body = texts.hover(result, standing=session.standing(result, found.sites), markdown=session.client.markdown)
    elif running is None:
        return None
    else:
        body = ""
    if running is not None:
        body = f"HIERA is working: {running.waiting or running.line}\n\n{body}".rstrip()
    kind = types.MarkupKind.Markdown if session.client.markdown else types.MarkupKind.PlainText
    return types.Hover(
        contents=types.MarkupContent(kind=kind, value=body),
        range=positions.to_range(site.name_span, document.lines, codec),
    )


def _at(found: Found, document: Document, place: types.Position) -> EditorSite | None:
    for site in found.sites:
        name = positions.to_range(site.name_span, document.lines, document.position_codec)
        if name.start.line == place.line and name.start.character <= place.character <= name.end.character:
            return site
    for launch in found.launches:
        if launch.span.start_line <= place.line <= launch.span.end_line:
            wanted = (launch.kernel, launch.function)
            return next((site for name in wanted for site in found.sites if site.symbol == name), None)
    return None
