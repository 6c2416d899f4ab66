"""Feature: hover. On a class, kernel or launch, say what limits it, what was found and how it was verified."""

from __future__ import annotations

from lsprotocol import types
from pygls.workspace import TextDocument

from contracts.cuda_sites import parse_cuda
from hiera_lsp import positions, texts
from hiera_lsp.jobs import Site
from hiera_lsp.session import Session
from hiera_lsp.sites import EditorSite, is_cuda


def hover(session: Session, document: TextDocument, params: types.HoverParams) -> types.Hover | None:
    """Answer `textDocument/hover`. Reads what is known; never starts work."""
    codec = document.position_codec
    sites = session.finder.sites(document.uri, document.source)
    place = codec.position_from_client_units(document.lines, params.position)
    site = _at(sites, document, place)
    if site is None:
        return None
    running = session.jobs.at(Site(document.uri, site.symbol))
    result = session.live_result(document.uri, site.symbol)
    if result is not None:
        body = texts.hover(result, stale=session.is_stale(result, sites), markdown=session.client.markdown)
    elif running is None:
        return None
    else:
        body = ""
    if running is not None:
        body = f"HIERA is working: {running.line}\n\n{body}".rstrip()
    kind = types.MarkupKind.Markdown if session.client.markdown else types.MarkupKind.PlainText
    return types.Hover(
        contents=types.MarkupContent(kind=kind, value=body),
        range=positions.to_range(site.name_span, document.lines, codec),
    )


def _at(sites: tuple[EditorSite, ...], document: TextDocument, place: types.Position) -> EditorSite | None:
    for site in sites:
        span = site.name_span
        if span.start_line == place.line and span.start_column <= place.character <= span.end_column:
            return site
    if is_cuda(document.uri):
        for launch in parse_cuda(document.source).launches:
            if launch.span.start_line <= place.line <= launch.span.end_line:
                wanted = (launch.kernel, launch.function)
                return next((site for name in wanted for site in sites if site.symbol == name), None)
    return None
