"""Feature: code actions. Cheap to list, resolved when chosen; on Automatic only on the name's line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lsprotocol import types
from pygls import uris
from pygls.exceptions import JsonRpcInvalidParams

from contracts.errors import HieraError
from hiera_lsp.documents import Document
from hiera_lsp.features import edits, use_kernel
from hiera_lsp.features.diagnostics import PRAGMA
from hiera_lsp.jobs import Site
from hiera_lsp.results import Result
from hiera_lsp.session import Session
from hiera_lsp.settings import PRESETS
from hiera_lsp.sites import EditorSite, Found

OPTIMIZE = "refactor.rewrite.hiera.optimize"
ACCEPT = "refactor.rewrite.hiera.accept"
USE = "refactor.rewrite.hiera.use"
INPUTS = "quickfix.hiera.inputs"
DOCTOR = "quickfix.hiera.doctor"
OTHER = "refactor.rewrite.hiera"
KINDS = [OPTIMIZE, ACCEPT, USE, OTHER, INPUTS, DOCTOR]
PAGES = (types.CodeActionKindDocumentation(
    kind=OTHER, command=types.Command(title="What HIERA does with a kernel", command="hiera.help", arguments=[{}])),)
# Codes of problems that may lie in the machine or its set-up.
MACHINE = ("hiera.environment", "hiera.configuration", "hiera.no-counters")
STALE = "the source changed: re-verify first"


def code_actions(
    session: Session, document: Document, params: types.CodeActionParams
) -> list[types.CodeAction | types.Command]:
    """Answer `textDocument/codeAction` for the site at the cursor."""
    everything = session.finder.found(document)
    site = _site_at(everything.sites, params)
    if site is None:
        return []
    only = params.context.only
    shown = params.context.diagnostics
    actions = [*_actions(session, document, site, everything, shown), *_fixes(document, site, shown)]
    found = [action for action in actions if _wanted(action, only)]
    if not session.client.disabled_actions:
        found = [action for action in found if action.disabled is None]
    if not (session.client.resolve_edit or session.client.resolve_command):
        found = [resolve(session, document, action) for action in found]
    return list(found)


def resolve(session: Session, document: Document, action: types.CodeAction) -> types.CodeAction:
    """Answer `codeAction/resolve`: fill in the edit, for the text as it is now.

    Raises:
        JsonRpcInvalidParams: The document changed since the action was listed.
    """
    data: Any = action.data
    if not isinstance(data, dict) or "do" not in data or action.disabled is not None:
        return action
    if data.get("version") is not None and data["version"] != document.version:
        raise JsonRpcInvalidParams(message="stale code action: the document changed, ask again")
    sites = session.finder.sites(document)
    site = next((s for s in sites if s.symbol == data.get("symbol")), None)
    result = session.live_result(document.uri, site.symbol) if site is not None else None
    if site is None:
        return action
    try:
        if data["do"] == "inputs":
            action.edit = edits.insert_inputs(session, document, site)
        elif result is not None and session.standing(result, sites) != "stale" and not result.no_gain:
            _resolve_edit(session, document, site, result, action)
    except HieraError as error:
        raise JsonRpcInvalidParams(message=error.message()) from None
    return action


def _resolve_edit(
    session: Session, document: Document, site: EditorSite, result: Result, action: types.CodeAction
) -> None:
    """Put the edit into the action where the client asks for it when it is chosen; else a command that does it."""
    do = action.data["do"]  # type: ignore[index]
    client = session.client
    # Listing whole actions must change nothing, unless no command could apply the edit afterwards.
    whole = not (client.resolve_edit or client.resolve_command)
    if site.kind != "cuda" and (not client.create_files or (whole and client.apply_edit)):
        action.command = _command(action.title, f"hiera.{do}", document, site.symbol)
        return
    if do == "accept":
        action.edit, after = edits.accept_edit(session, document, result), edits.accepted_hash(document, site, result)
    else:
        action.edit, after = use_kernel.use_edit(session, document, site, result)
    # Known beforehand: the client tells of the changed text before it runs the command, if it runs it at all.
    session.results.update(result, applied_hash=after)
    action.command = _command(action.title, "hiera.accepted", document, site.symbol)


def _actions(
    session: Session, document: Document, site: EditorSite, found: Found, shown: Any
) -> Iterator[types.CodeAction]:
    running = session.jobs.at(Site(document.uri, site.symbol))
    reason = _why_not(session, document, site, found, running is not None)
    for preset in (None, *PRESETS):
        title = f"Optimize kernel: {site.symbol}" if preset is None else f"Optimize kernel ({preset}): {site.symbol}"
        kind = OPTIMIZE if preset is None else f"{OPTIMIZE}.{preset}"
        yield _run(title, kind, "hiera.optimize", document, site, reason, preset=preset)
    yield _run(f"Profile kernel: {site.symbol}", OTHER, "hiera.profile", document, site, reason)
    if site.missing and site.stub:
        title = "Add example inputs" if site.kind != "cuda" else "Describe arguments and launch (// hiera: lines)"
        mended = [d for d in shown if d.source == "hiera" and d.code in (PRAGMA, "hiera.input")]
        yield types.CodeAction(title=title, kind=INPUTS, data=_data("inputs", document, site),
                               diagnostics=mended or None)
    if running is not None:
        yield _run("Cancel optimisation (keeps the best so far)", OTHER, "hiera.cancel", document, site)
    result = session.live_result(document.uri, site.symbol)
    if result is not None:
        yield from _result_actions(session, document, site, found.sites, result, reason)


def _result_actions(
    session: Session, document: Document, site: EditorSite, sites: tuple[EditorSite, ...], result: Result, reason: str
) -> Iterator[types.CodeAction]:
    standing = session.standing(result, sites)
    candidate = result.candidate
    if candidate is not None and standing != "accepted":
        title = f"Accept kernel {candidate.id}" + (f" ({candidate.speedup:.2f}x)" if candidate.speedup else "")
        accept = _edit(title, ACCEPT, "accept", document, site, STALE if standing == "stale" else result.no_gain)
        if session.client.llm_tags and candidate.author == "llm":
            accept.tags = [types.CodeActionTag.LlmGenerated]
        yield accept
        yield _run("Show diff", OTHER, "hiera.diff", document, site)
        yield _run("Discard candidate", OTHER, "hiera.discard", document, site)
    if candidate is not None and site.kind != "cuda" and not (standing == "accepted" and result.applied_hash):
        why = STALE if standing == "stale" else result.no_gain or use_kernel.why_not(session, document, result)
        yield _edit(f"Use the kernel in this {'module' if site.kind == 'module' else 'function'}", USE, "use",
                    document, site, why)
    if candidate is not None and standing == "stale":
        yield _run("Re-verify kernel", OTHER, "hiera.reverify", document, site, reason)
    if not result.summary.complete and standing == "offered":
        words = f"Resume optimisation ({len(result.summary.candidates)} candidates so far)"
        yield _run(words, OTHER, "hiera.optimize", document, site, reason, resume=result.summary.run)
    yield _run("Explain the result", OTHER, "hiera.explain", document, site)
    yield _run("Open the report", OTHER, "hiera.report", document, site)


def _fixes(document: Document, site: EditorSite, shown: Any) -> Iterator[types.CodeAction]:
    """Ways out of the problems that the diagnostics at the cursor tell of."""
    ours = [d for d in shown if d.source == "hiera" and d.code in MACHINE]
    if ours:
        action = _run("Show what HIERA finds on this machine", DOCTOR, "hiera.doctor", document, site)
        action.diagnostics = ours
        yield action


def _why_not(session: Session, document: Document, site: EditorSite, found: Found, running: bool) -> str:
    if not session.trusted:
        return "the workspace is not trusted: optimising imports and runs its code"
    if not document.uri.startswith("file:"):
        return "save the file first: the job reads it from disk"
    if running:
        return "a job for it is running"
    if found.trouble:
        return found.trouble
    if site.missing and not (site.kind != "cuda" and _has_configured_inputs(document, site)):
        return site.missing
    return ""


def _has_configured_inputs(document: Document, site: EditorSite) -> bool:
    """True where the project's settings name a script for the site's example inputs."""
    from engine.example_inputs import configured_script, project_root

    path = Path(uris.to_fs_path(document.uri) or "")
    try:
        return configured_script(path, site.symbol, project_root(path)) is not None
    except (HieraError, OSError, ValueError):
        return False


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


def _run(
    title: str, kind: str, command: str, document: Document, site: EditorSite, reason: str = "", **more: Any
) -> types.CodeAction:
    """An action that runs a command, or says why it cannot."""
    return types.CodeAction(
        title=title, kind=kind,
        command=None if reason else _command(title, command, document, site.symbol, **more),
        disabled=types.CodeActionDisabled(reason=reason) if reason else None,
    )


def _edit(title: str, kind: str, do: str, document: Document, site: EditorSite, reason: str) -> types.CodeAction:
    """An action whose edit is made when it is chosen."""
    return types.CodeAction(
        title=title, kind=kind, data=_data(do, document, site),
        disabled=types.CodeActionDisabled(reason=reason) if reason else None,
    )


def _command(title: str, command: str, document: Document, symbol: str, **more: Any) -> types.Command:
    argument = {"uri": document.uri, "symbol": symbol, **{key: value for key, value in more.items() if value}}
    return types.Command(title=title, command=command, arguments=[argument])


def _data(do: str, document: Document, site: EditorSite) -> dict[str, Any]:
    return {"do": do, "uri": document.uri, "symbol": site.symbol, "version": document.version}
