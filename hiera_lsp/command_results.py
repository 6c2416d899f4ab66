"""Commands about results: accept, use, discard, choose, diff, explain, report."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lsprotocol import types
from pygls import uris
from pygls.exceptions import JsonRpcException

from contracts.errors import ConfigError, InputError
from hiera_lsp import texts
from hiera_lsp.documents import Document
from hiera_lsp.features import content, edits, use_kernel
from hiera_lsp.jobs import Site
from hiera_lsp.publisher import Publisher
from hiera_lsp.requests import document_in, result_in, site_in
from hiera_lsp.results import Result
from hiera_lsp.session import Session
from hiera_lsp.sites import EditorSite

if TYPE_CHECKING:
    from hiera_lsp.server import HieraServer

logger = logging.getLogger(__name__)


class ResultCommands:
    """Commands that show a result or put it into the user's files. Every argument is one object: `{uri, symbol}`.

    With `run` they are refused where the result is another run's by now; `accept` and `use` take a `candidate` too.
    """

    def __init__(self, server: HieraServer, session: Session, publisher: Publisher) -> None:
        self._server, self._session, self._publisher = server, session, publisher

    async def accept(self, argument: Any) -> dict[str, Any]:
        """Apply the chosen candidate by an edit of the client's: → `{applied, reason?}`."""
        document, site, result = self._acceptable(argument)
        self._session.results.update(result, applied_hash=edits.accepted_hash(document, site, result))
        if not document.is_cuda and not self._session.client.create_files:
            folder = edits.output_folder(self._session, document, result)
            self._write(folder, edits.folder_texts(result))
            return {**self.accepted(argument), "folder": str(folder)}
        return await self._apply(argument, edits.accept_edit(self._session, document, result), "accept", result)

    async def use(self, argument: Any) -> dict[str, Any]:
        """Put the kernel in place by two lines and `kernel.py`: → `{applied, reason?}`."""
        document, site, result = self._acceptable(argument)
        if site.kind == "cuda" or result.candidate is None:
            raise InputError("only a Python module or function can use a kernel", hint="accept it instead")
        edit, after = use_kernel.use_edit(self._session, document, site, result)
        if not self._session.client.create_files:
            folder = edits.output_folder(self._session, document, result)
            self._write(folder, use_kernel.all_texts(document, result))
        self._session.results.update(result, applied_hash=after)
        return await self._apply(argument, edit, "use", result)

    def accepted(self, argument: Any) -> dict[str, Any]:
        """The client has applied an edit: a module is accepted now; a changed text tells it by itself."""
        document = document_in(self._server, argument)
        result = result_in(self._session, argument)
        if not result.applied_hash:
            self._session.results.update(result, state="accepted")
        self._show(document.uri)
        return {"applied": True}

    def discard(self, argument: Any) -> dict[str, Any]:
        """Put a result away. The run stays in the store."""
        result = result_in(self._session, argument)
        self._session.results.update(result, state="discarded")
        self._show(result.uri)
        return {"discarded": True}

    def choose(self, argument: Any) -> dict[str, Any]:
        """Review another candidate: `{uri, symbol, candidate | step: 1 | -1}` → `{candidate}`."""
        result = result_in(self._session, argument)
        ids = [c.id for c in result.choices]
        if not ids:
            raise InputError("no candidate was accepted", hint="run Optimize kernel with a larger preset")
        wanted, step = argument.get("candidate"), argument.get("step", 1)
        if wanted is None and isinstance(step, int):
            here = ids.index(result.chosen) if result.chosen in ids else 0
            wanted = ids[(here + step) % len(ids)]
        if wanted not in ids:
            raise InputError(f"candidate {wanted} was not accepted", hint=f"choose one of {', '.join(ids)}")
        self._session.results.update(result, chosen=wanted)
        self._show(result.uri)
        return {"candidate": wanted}

    async def diff(self, argument: Any) -> dict[str, Any]:
        """What to compare: `{left, right, title}`; shown by the server where the client only shows documents."""
        document, site = site_in(self._server, self._session, argument)
        result = result_in(self._session, argument)
        candidate = result.candidate
        if candidate is None:
            raise InputError("no candidate was accepted", hint="run Optimize kernel with a larger preset")
        earlier = edits.output_folder(self._session, document, result) / "cuda_source.cu"
        left = document.uri if document.is_cuda else uris.from_fs_path(str(earlier)) if earlier.exists() else None
        source = uris.from_fs_path(candidate.source)
        if "hiera.showDiff" not in self._session.client.client_commands:
            await self._open(source)
        return {"left": left, "right": content.candidate_uri(result, candidate.id), "source": source,
                "title": f"{site.symbol}: current ↔ candidate {candidate.id}"}

    async def explain(self, argument: Any) -> dict[str, Any]:
        """The evidence as text: `{markdown, text, file}`; the file is opened where the client shows documents."""
        document, _ = site_in(self._server, self._session, argument)
        result = result_in(self._session, argument)
        standing = self._session.standing(result, self._session.finder.sites(document))
        markdown = texts.explanation(result, standing=standing)
        path = _written(result, "explanation.md", markdown)
        if path is not None and "hiera.showExplanation" not in self._session.client.client_commands:
            await self._open(path)
        plain = texts.hover(result, standing=standing, markdown=False)
        if not self._session.client.show_document:
            self._server.window_log_message(types.LogMessageParams(type=types.MessageType.Info, message=plain))
        return {"markdown": markdown, "text": plain, "file": path}

    async def report(self, argument: Any) -> dict[str, Any]:
        """The run as an HTML page, opened in the browser where the client does so: → `{file}`."""
        from engine import report_html
        from engine.store import Store

        result = result_in(self._session, argument)
        text = await asyncio.to_thread(lambda: report_html.page(Store().load(result.summary.run)))
        path = _written(result, "report.html", text)
        if path is None:
            raise ConfigError("the report cannot be written", file=result.summary.folder, hint="free some space")
        await self._open(path, external=True)
        return {"file": path}

    def result(self, argument: Any) -> dict[str, Any] | None:
        """The whole result of a site as data, for views: summary, choice, what `choose` walks through, its standing."""
        from contracts import codec

        document = document_in(self._server, argument)
        found = self._session.results.at(Site(document.uri, str(argument.get("symbol"))))
        if found is None:
            return None
        standing = self._session.standing(found, self._session.finder.sites(document))
        return {**codec.to_data(found), "standing": standing, "no_gain": found.no_gain,
                "choices": [candidate.id for candidate in found.choices]}

    def sites(self, argument: Any) -> list[dict[str, Any]]:
        """What can be optimised in a document, for menus: each site's place, its result's standing and its job."""
        document = document_in(self._server, argument)
        found = self._session.finder.sites(document)
        return [self._site(document, site, found) for site in found]

    def _site(self, document: Document, site: EditorSite, found: tuple[EditorSite, ...]) -> dict[str, Any]:
        result = self._session.live_result(document.uri, site.symbol)
        candidate = result.candidate if result is not None else None
        job = self._session.jobs.at(Site(document.uri, site.symbol))
        standing = self._session.standing(result, found) if result is not None else None
        return {
            "uri": document.uri, "symbol": site.symbol, "kind": site.kind,
            "firstLine": site.span.start_line, "nameLine": site.name_span.start_line, "lastLine": site.span.end_line,
            "standing": standing,
            "used": bool(result is not None and result.applied_hash and standing == "accepted"),
            "chosen": candidate.id if candidate is not None else None,
            "headline": texts.lens_title(result, stale=False) if result is not None else "",
            "jobId": job.id if job is not None else None,
        }

    def _acceptable(self, argument: Any) -> tuple[Document, EditorSite, Result]:
        document, site = site_in(self._server, self._session, argument)
        result = result_in(self._session, argument)
        if argument.get("candidate") not in (None, result.chosen):
            self.choose(argument)
            result = result_in(self._session, argument)
        if self._session.standing(result, self._session.finder.sites(document)) == "stale":
            raise InputError(f"{site.symbol} changed since it was measured", hint="re-verify the kernel first")
        if result.no_gain:
            raise InputError(f"nothing to accept: {result.no_gain}", hint="choose another candidate, or search further")
        return document, site, result

    async def _apply(self, argument: Any, edit: types.WorkspaceEdit, what: str, result: Result) -> dict[str, Any]:
        if not self._session.client.apply_edit:
            raise ConfigError("this editor cannot apply edits of a server", hint="use the code action instead")
        params = types.ApplyWorkspaceEditParams(edit=edit, label=f"HIERA: {what} kernel {result.chosen}")
        if self._session.client.edit_metadata:  # eglot refuses a whole edit for a field that it does not know.
            params.metadata = types.WorkspaceEditMetadata(is_refactoring=True)
        try:
            answer = await self._server.workspace_apply_edit_async(params)
        except JsonRpcException as error:
            answer = types.ApplyWorkspaceEditResult(applied=False, failure_reason=error.message)
        if answer.applied:
            # The user may have taken long to confirm it, and a job has found something else by then.
            if result_in(self._session, argument).summary.run == result.summary.run:
                self.accepted(argument)
        else:
            logger.warning("the client did not apply the edit: %s", answer.failure_reason)
        return {"applied": answer.applied, "reason": answer.failure_reason}

    def _write(self, folder: Path, files: dict[str, str]) -> None:
        """For clients that cannot create files: write them ourselves, never over a stranger's."""
        if not edits.is_ours(folder):
            raise ConfigError("the output folder exists and is not ours", file=folder,
                              hint="set hiera.outputFolder to another place")
        files = edits.safe_texts(self._session, folder, files)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for name, text in files.items():
                # A module may be imported in the middle of it, and must not find half a kernel.
                part = folder / f".{name}.part"
                part.write_text(text, encoding="utf-8")
                part.replace(folder / name)
        except OSError as error:
            raise ConfigError(f"cannot write {folder}: {error.strerror}", hint="set hiera.outputFolder") from None

    async def _open(self, uri: str | None, *, external: bool = False) -> None:
        """Show a document. A client may answer late or never; that must not hold the command."""
        if uri is not None and self._session.client.show_document:
            params = types.ShowDocumentParams(uri=uri, external=external, take_focus=not external)
            self._server.window_show_document(params)

    def _show(self, uri: str) -> None:
        self._publisher.publish(uri)
        self._publisher.refresh()


def _written(result: Result, name: str, text: str) -> str | None:
    """Write a file into the run's folder and give its URI; None where that folder cannot be written."""
    path = Path(result.summary.folder) / name
    try:
        path.write_text(text, encoding="utf-8")
    except OSError:
        return None
    return uris.from_fs_path(str(path))
