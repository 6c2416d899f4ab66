"""Features: code lenses on results and, where wanted, inlay hints with the lines' share of time."""

from __future__ import annotations

from lsprotocol import types

from hiera_lsp import positions, texts
from hiera_lsp.documents import Document
from hiera_lsp.features.diagnostics import HOT_SHARE, profiled_text_is_here
from hiera_lsp.session import Session


def code_lenses(session: Session, document: Document) -> list[types.CodeLens]:
    """Lenses on the line of each name that has a result under review; typing changes their words, not their number."""
    if not session.settings_of(document.uri).code_lens:
        return []
    lenses: list[types.CodeLens] = []
    sites = session.finder.sites(document)
    for site in sites:
        result = session.live_result(document.uri, site.symbol)
        standing = session.standing(result, sites) if result is not None else "discarded"
        if result is None or standing == "discarded":
            continue
        place = positions.to_range(site.name_span, document.lines, document.position_codec)
        stale = standing == "stale"
        entries = [(texts.lens_title(result, stale), "hiera.explain")]
        if standing == "accepted":
            # A text that the kernel is in says so by itself; a module still has its own forward.
            if result.applied_hash or site.kind == "cuda":
                continue
            entries.append((f"Use in this {site.kind}", "hiera.use"))
        elif result.candidate is not None:
            accept = [] if result.no_gain else [("Accept", "hiera.accept")]
            entries += [("Re-verify", "hiera.reverify")] if stale else accept
            entries += [("Discard", "hiera.discard"), ("Diff", "hiera.diff"), ("Report", "hiera.report")]
        argument = {"uri": document.uri, "symbol": site.symbol}
        lenses += [
            types.CodeLens(range=place, command=types.Command(title=title, command=command, arguments=[argument]))
            for title, command in entries
        ]
    return lenses


def inlay_hints(session: Session, document: Document, params: types.InlayHintParams) -> list[types.InlayHint]:
    """The measured share of stall samples at the end of hot lines of the `.cu` text that was profiled."""
    if not document.is_cuda or not session.settings_of(document.uri).inlay_hints:
        return []
    sites = session.finder.sites(document)
    hints = []
    for site in sites:
        result = session.live_result(document.uri, site.symbol)
        if result is None or not profiled_text_is_here(result, session.standing(result, sites)):
            continue
        for hot in result.summary.hot_lines:
            line = hot.line - 1
            inside = params.range.start.line <= line <= params.range.end.line and 0 <= line < len(document.lines)
            if inside and hot.share >= HOT_SHARE:
                end = positions.whole_line(line, document.lines, document.position_codec).end
                hints.append(types.InlayHint(position=end, label=f"  {100 * hot.share:.0f} %", padding_left=True))
    return hints
