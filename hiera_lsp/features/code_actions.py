"""Feature: code actions. Cheap to list, resolved when chosen; on Automatic only on the name's line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lsprotocol import types
from pygls.exceptions import JsonRpcInvalidParams
from pygls.workspace import TextDocument

from contracts.errors import InputError
from hiera_lsp.features import edits
from hiera_lsp.jobs import Site
from hiera_lsp.results import Result
from hiera_lsp.session import Session
from hiera_lsp.settings import PRESETS
from hiera_lsp.sites import EditorSite

OPTIMIZE = "refactor.rewrite.hiera.optimize"
ACCEPT = "refactor.rewrite.hiera.accept"
INPUTS = "quickfix.hiera.inputs"
OTHER = "refactor.rewrite.hiera"
KINDS = [OPTIMIZE, ACCEPT, OTHER, INPUTS]


def code_actions(
    session: Session, document: TextDocument, params: types.CodeActionParams
) -> list[types.CodeAction | types.Command]:
    """Answer `textDocument/codeAction` for the site at the cursor."""
    sites = session.finder.sites(document.uri, document.source)
    site = _site_at(sites, params)
    if site is None:
        return []
    only = params.context.only
    found = [action for action in _actions(session, document, site, sites) if _wanted(action, only)]
    if not session.client.disabled_actions:
        found = [action for action in found if action.disabled is None]
    if not (session.client.resolve_edit or session.client.resolve_command):
        found = [resolve(session, document, action) for action in found]
    return list(found)


def resolve(session: Session, document: TextDocument, action: types.CodeAction) -> types.CodeAction:
    """Answer `codeAction/resolve`: fill in the edit, for the text as it is now.

    Raises:
        JsonRpcInvalidParams: The document changed since the action was listed.
    """
    data: Any = action.data
    if not isinstance(data, dict) or "do" not in data or action.disabled is not None:
        return action
    if data.get("version") is not None and data["version"] != document.version:
        raise JsonRpcInvalidParams(message="stale code action: the document changed, ask again")
    sites = session.finder.sites(document.uri, document.source)
    site = next((s for s in sites if s.symbol == data["symbol"]), None)
    result = session.live_result(document.uri, data["symbol"])
    try:
        if data["do"] == "inputs" and site is not None:
            action.edit = edits.insert_inputs(session, document, site)
        elif data["do"] == "accept" and result is not None and not session.is_stale(result, sites):
            if session.client.create_files or site is None or site.kind == "cuda":
                action.edit = edits.accept_edit(session, document, result)
            command = "hiera.accepted" if action.edit else "hiera.accept"
            action.command = _command("Accepted", command, document, data["symbol"])
    except InputError as error:
        raise JsonRpcInvalidParams(message=error.message()) from None
    return action


def _actions(
    session: Session, document: TextDocument, site: EditorSite, sites: tuple[EditorSite, ...]
) -> Iterator[types.CodeAction]:
    running = session.jobs.at(Site(document.uri, site.symbol))
    reason = _why_not(session, document, site, running is not None)
    for preset in (None, *PRESETS):
        title = f"Optimize kernel: {site.symbol}" if preset is None else f"Optimize kernel ({preset}): {site.symbol}"
        yield types.CodeAction(
            title=title,
            kind=OPTIMIZE if preset is None else f"{OPTIMIZE}.{preset}",
            command=None if reason else _command(title, "hiera.optimize", document, site.symbol, preset),
            disabled=types.CodeActionDisabled(reason=reason) if reason else None,
        )
    if site.missing and site.stub:
        yield types.CodeAction(
            title="Add example inputs" if site.kind != "cuda" else "Describe arguments and launch (// hiera: lines)",
            kind=INPUTS, data=_data("inputs", document, site),
        )
    if running is not None:
        title = "Cancel optimisation (keeps the best so far)"
        yield types.CodeAction(title=title, kind=OTHER, command=_command(title, "hiera.cancel", document, site.symbol))
    result = session.live_result(document.uri, site.symbol)
    if result is not None:
        yield from _result_actions(session, document, site, sites, result)


def _result_actions(
    session: Session, document: TextDocument, site: EditorSite, sites: tuple[EditorSite, ...], result: Result
) -> Iterator[types.CodeAction]:
    stale = session.is_stale(result, sites)
    candidate = result.candidate
    if candidate is not None and result.state == "offered":
        title = f"Accept kernel {candidate.id}" + (f" ({candidate.speedup:.2f}x)" if candidate.speedup else "")
        yield types.CodeAction(
            title=title, kind=ACCEPT, data=_data("accept", document, site),
            disabled=types.CodeActionDisabled(reason="the source changed: re-verify first") if stale else None,
        )
        for title, command in (("Show diff", "hiera.diff"), ("Discard candidate", "hiera.discard")):
            yield types.CodeAction(title=title, kind=OTHER, command=_command(title, command, document, site.symbol))
    if stale:
        again = _command("Re-verify kernel", "hiera.reverify", document, site.symbol)
        yield types.CodeAction(title=again.title, kind=OTHER, command=again)
    title = "Explain the result"
    yield types.CodeAction(title=title, kind=OTHER, command=_command(title, "hiera.explain", document, site.symbol))


def _why_not(session: Session, document: TextDocument, site: EditorSite, running: bool) -> str:
    if not session.trusted:
        return "the workspace is not trusted: optimising imports and runs its code"
    if not document.uri.startswith("file:"):
        return "save the file first: the job reads it from disk"
    if running:
        return "a job for it is running"
    if site.missing:
        return site.missing
    return ""


def _site_at(sites: tuple[EditorSite, ...], params: types.CodeActionParams) -> EditorSite | None:
    first, last = params.range.start.line, params.range.end.line
    if params.context.trigger_kind == types.CodeActionTriggerKind.Automatic:
        return next((s for s in sites if first <= s.name_span.start_line <= last), None)
    inside = [site for site in sites if site.touches(first, last)]
    # The innermost of nested classes is meant.
    return max(inside, key=lambda s: s.span.start_line, default=None)


def _wanted(action: types.CodeAction, only: Any) -> bool:
    if not only:
        return True
    kind = str(action.kind)
    return any(kind == str(wanted) or kind.startswith(f"{wanted}.") or str(wanted) == "" for wanted in only)


def _command(
    title: str, command: str, document: TextDocument, symbol: str, preset: str | None = None
) -> types.Command:
    argument: dict[str, Any] = {"uri": document.uri, "symbol": symbol}
    if preset is not None:
        argument["preset"] = preset
    return types.Command(title=title, command=command, arguments=[argument])


def _data(do: str, document: TextDocument, site: EditorSite) -> dict[str, Any]:
    return {"do": do, "uri": document.uri, "symbol": site.symbol, "version": document.version}
