"""Features: code lenses on results and, where wanted, inlay hints with the lines' share of time."""

from __future__ import annotations

from lsprotocol import types
from pygls.workspace import TextDocument

from hiera_lsp import positions, texts
from hiera_lsp.features.diagnostics import HOT_SHARE
from hiera_lsp.session import Session
from hiera_lsp.sites import is_cuda


def code_lenses(session: Session, document: TextDocument) -> list[types.CodeLens]:
    """Lenses on the line of each name that has a result under review; the set changes on job events only."""
    if not session.settings_of(document.uri).code_lens:
        return []
    lenses: list[types.CodeLens] = []
    sites = session.finder.sites(document.uri, document.source)
    for site in sites:
        result = session.live_result(document.uri, site.symbol)
        if result is None or result.state != "offered":
            continue
        place = positions.to_range(site.name_span, document.lines, document.position_codec)
        stale = session.is_stale(result, sites)
        entries = [(texts.lens_title(result, stale), "hiera.explain")]
        if result.candidate is not None:
            entries += [("Re-verify", "hiera.reverify")] if stale else [("Accept", "hiera.accept")]
            entries += [("Discard", "hiera.discard"), ("Diff", "hiera.diff")]
        argument = {"uri": document.uri, "symbol": site.symbol}
        lenses += [
            types.CodeLens(range=place, command=types.Command(title=title, command=command, arguments=[argument]))
            for title, command in entries
        ]
    return lenses


def inlay_hints(session: Session, document: TextDocument, params: types.InlayHintParams) -> list[types.InlayHint]:
    """The measured share of stall samples at the end of hot lines of the user's own `.cu` text."""
    if not is_cuda(document.uri) or not session.settings_of(document.uri).inlay_hints:
        return []
    sites = session.finder.sites(document.uri, document.source)
    hints = []
    for site in sites:
        result = session.live_result(document.uri, site.symbol)
        if result is None or session.is_stale(result, sites):
            continue
        best = result.summary.best_candidate
        if best is None or best.author != "user":
            continue
        for hot in result.summary.hot_lines:
            line = hot.line - 1
            inside = params.range.start.line <= line <= params.range.end.line and line < len(document.lines)
            if inside and hot.share >= HOT_SHARE:
                text = document.lines[line].rstrip("\r\n")
                end = types.Position(line, document.position_codec.client_num_units(text))
                hints.append(types.InlayHint(position=end, label=f"  {100 * hot.share:.0f} %", padding_left=True))
    return hints
