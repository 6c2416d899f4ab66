"""Commands. Each answers at once; long work runs as a job with progress, and edits are offered, never pushed."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lsprotocol import types
from pygls import uris
from pygls.workspace import TextDocument

from contracts.errors import ConfigError, HieraError, InputError
from hiera_lsp import texts
from hiera_lsp.features import content, edits
from hiera_lsp.jobs import JobEnd, RunningJob, Site
from hiera_lsp.progress import JobProgress
from hiera_lsp.publisher import Publisher
from hiera_lsp.results import Result
from hiera_lsp.session import Session
from hiera_lsp.sites import EditorSite, is_cuda

if TYPE_CHECKING:
    from hiera_lsp.server import HieraServer

logger = logging.getLogger(__name__)


class Commands:
    """`workspace/executeCommand`. Every argument is one object with `uri` and `symbol`."""

    def __init__(self, server: HieraServer, session: Session, publisher: Publisher) -> None:
        self._server, self._session, self._publisher = server, session, publisher
        self._progress: dict[str, JobProgress] = {}

    def register(self) -> None:
        """Tell pygls about every command."""
        for name, handler in (
            ("hiera.optimize", self.optimize), ("hiera.reverify", self.reverify), ("hiera.cancel", self.cancel),
            ("hiera.jobs", self.jobs), ("hiera.accept", self.accept), ("hiera.accepted", self.accepted),
            ("hiera.discard", self.discard), ("hiera.choose", self.choose), ("hiera.diff", self.diff),
            ("hiera.explain", self.explain), ("hiera.result", self.result), ("hiera.secret", self.secret),
        ):
            self._server.command(name)(_safe(handler))
        self._server.feature(types.WINDOW_WORK_DONE_PROGRESS_CANCEL)(_safe(self.on_progress_cancel))

    def optimize(self, argument: dict[str, Any]) -> dict[str, Any]:
        """Start a job: `{uri, symbol, preset?, fresh?, resume?}` → `{jobId}`."""
        document, site = self._site(argument)
        self._ready(document, site)
        job = self._session.job_for(site, document.uri, argument.get("preset"))
        if job.agent == "llm":
            self._name_endpoint(document.uri)
        return self._start(document, site, job, fresh=bool(argument.get("fresh")), resume=argument.get("resume"))

    def reverify(self, argument: dict[str, Any]) -> dict[str, Any]:
        """Judge the kept candidate against the source as it is now: → `{jobId}`."""
        document, site = self._site(argument)
        self._ready(document, site)
        result = self._result(document.uri, site.symbol)
        candidate = result.candidate
        if candidate is None:
            raise InputError(f"no candidate of {site.symbol} is kept", hint="run Optimize kernel")
        given = {"source": Path(candidate.source).read_text(encoding="utf-8"), "space": candidate.space}
        return self._start(document, site, self._session.job_for(site, document.uri, "quick"), given=given)

    def cancel(self, argument: dict[str, Any] | None = None) -> dict[str, Any]:
        """Cancel a job by `{jobId}` or `{uri, symbol}`, or all of them: → `{cancelled: [...]}`."""
        argument = argument or {}
        wanted = [
            job for job in self._session.jobs.running
            if argument.get("jobId") in (None, job.id)
            and (argument.get("uri") is None or Site(argument["uri"], job.site.symbol).key == job.site.key)
            and argument.get("symbol") in (None, job.site.symbol)
        ]
        for job in wanted:
            self._session.jobs.cancel(job)
        return {"cancelled": [job.id for job in wanted]}

    def jobs(self, _argument: Any = None) -> list[dict[str, Any]]:
        """Jobs at work."""
        return [
            {"jobId": job.id, "uri": job.site.uri, "symbol": job.site.symbol, "line": job.line,
             "percentage": job.percentage, "run": job.run}
            for job in self._session.jobs.running
        ]

    async def accept(self, argument: dict[str, Any]) -> dict[str, Any]:
        """Apply the chosen candidate by an edit of the client's: → `{applied, reason?}`."""
        document, site = self._site(argument)
        result = self._result(document.uri, site.symbol)
        sites = self._session.finder.sites(document.uri, document.source)
        if self._session.is_stale(result, sites):
            raise InputError(f"{site.symbol} changed since it was measured", hint="re-verify the kernel first")
        client = self._session.client
        if not client.create_files and not is_cuda(document.uri):
            folder = self._write_folder(document, result)
            self._accepted(document, result)
            return {"applied": True, "folder": str(folder)}
        edit = edits.accept_edit(self._session, document, result)
        answer = await self._server.workspace_apply_edit_async(
            types.ApplyWorkspaceEditParams(
                edit=edit, label=f"HIERA: accept kernel {result.chosen}",
                metadata=types.WorkspaceEditMetadata(is_refactoring=True),
            )
        )
        if answer.applied:
            self._accepted(document, result)
        else:
            logger.warning("the client did not apply the edit: %s", answer.failure_reason)
        return {"applied": answer.applied, "reason": answer.failure_reason}

    def accepted(self, argument: dict[str, Any]) -> dict[str, Any]:
        """The client has applied a code action's edit itself."""
        document = self._document(argument)
        self._accepted(document, self._result(document.uri, str(argument.get("symbol"))))
        return {"applied": True}

    def discard(self, argument: dict[str, Any]) -> dict[str, Any]:
        """Put a result away. The run stays in the store."""
        result = self._result(str(argument.get("uri")), str(argument.get("symbol")))
        self._session.results.update(result, state="discarded")
        self._show(result.uri)
        return {"discarded": True}

    def choose(self, argument: dict[str, Any]) -> dict[str, Any]:
        """Review another candidate: `{uri, symbol, candidate | step: 1 | -1}` → `{candidate}`."""
        result = self._result(str(argument.get("uri")), str(argument.get("symbol")))
        ids = [c.id for c in result.choices]
        if not ids:
            raise InputError("no candidate was accepted", hint="run Optimize kernel with a larger preset")
        wanted = argument.get("candidate")
        if wanted is None:
            here = ids.index(result.chosen) if result.chosen in ids else 0
            wanted = ids[(here + int(argument.get("step", 1))) % len(ids)]
        if wanted not in ids:
            raise InputError(f"candidate {wanted} was not accepted", hint=f"choose one of {', '.join(ids)}")
        self._session.results.update(result, chosen=wanted)
        self._show(result.uri)
        return {"candidate": wanted}

    async def diff(self, argument: dict[str, Any]) -> dict[str, Any]:
        """What to compare: `{left, right, title}`; shown by the server where the client only shows documents."""
        document, site = self._site(argument)
        result = self._result(document.uri, site.symbol)
        candidate = result.candidate
        if candidate is None:
            raise InputError("no candidate was accepted", hint="run Optimize kernel with a larger preset")
        right = content.candidate_uri(result, candidate.id)
        answer = {
            "left": document.uri if is_cuda(document.uri) else self._earlier_source(document, result),
            "right": right, "source": uris.from_fs_path(candidate.source),
            "title": f"{site.symbol}: current ↔ candidate {candidate.id}",
        }
        if self._session.client.show_document and "hiera.showDiff" not in self._session.client.client_commands:
            shown = types.ShowDocumentParams(uri=answer["source"] or right, take_focus=True)
            await self._server.window_show_document_async(shown)
        return answer

    def explain(self, argument: dict[str, Any]) -> dict[str, Any]:
        """The evidence as text, also shown as a message where the client asks for notifications."""
        document, site = self._site(argument)
        result = self._result(document.uri, site.symbol)
        stale = self._session.is_stale(result, self._session.finder.sites(document.uri, document.source))
        plain = texts.hover(result, stale=stale, markdown=False)
        self._server.window_log_message(types.LogMessageParams(type=types.MessageType.Info, message=plain))
        return {"markdown": texts.hover(result, stale=stale, markdown=True), "text": plain}

    def result(self, argument: dict[str, Any]) -> dict[str, Any] | None:
        """The whole result of a site as data, for views: the summary, the choice and the state."""
        from contracts import codec

        found = self._session.results.at(Site(str(argument.get("uri")), str(argument.get("symbol"))))
        return codec.to_data(found) if found is not None else None

    def secret(self, argument: dict[str, Any]) -> dict[str, Any]:
        """Take a model's key from the editor's secret store: `{name, value}`. It stays in memory."""
        self._session.secrets[str(argument["name"])] = str(argument["value"])
        return {"kept": True}

    def on_progress_cancel(self, params: types.WorkDoneProgressCancelParams) -> None:
        """The user pressed Cancel on a progress."""
        for job in self._session.jobs.running:
            if job.id == params.token:
                self._session.jobs.cancel(job)

    def _start(self, document: TextDocument, site: EditorSite, job: Any, **how: Any) -> dict[str, Any]:
        self._publisher.clear_problem(document.uri, site.symbol)
        settings = self._session.settings_of(document.uri)
        key = self._session.secrets.get(settings.llm_key_variable)
        extra = {settings.llm_key_variable: key} if key else {}
        if settings.llm_base_url:
            extra["OPENAI_BASE_URL"] = settings.llm_base_url
        if settings.llm_model:
            extra["HIERA_MODEL"] = settings.llm_model
        running = self._session.jobs.start(
            Site(document.uri, site.symbol), job, text_hash=site.text_hash, on_progress=self._on_progress,
            on_end=self._on_end, extra_environment=extra, **how,
        )
        self._progress[running.id] = JobProgress(self._server, self._session.client, running)
        self._publisher.refresh()
        return {"jobId": running.id}

    def _on_progress(self, running: RunningJob, _kind: str) -> None:
        self._progress[running.id].report()

    async def _on_end(self, running: RunningJob, end: JobEnd) -> None:
        uri, symbol = running.site.uri, running.site.symbol
        try:
            if end.summary is not None and (end.summary.candidates or not end.problem):
                self._session.results.put(running.site, running.text_hash, end.summary)
            if end.problem:
                own = end.file is not None and Path(end.file) == Path(uris.to_fs_path(uri) or "")
                self._publisher.problem(uri, symbol, end.problem, end.hint, end.line if own else None)
                if self._session.settings_of(uri).notifications != "off":
                    text = f"HIERA could not optimise {symbol}: {end.problem} (to fix: {end.hint})"
                    shown = types.ShowMessageParams(type=types.MessageType.Warning, message=text)
                    self._server.window_show_message(shown)
            self._show(uri)
        finally:
            await self._progress.pop(running.id).end(end)

    def _show(self, uri: str) -> None:
        self._publisher.publish(uri)
        self._publisher.refresh()

    def _accepted(self, document: TextDocument, result: Result) -> None:
        """Remember the acceptance; for a `.cu` the text is now the candidate's, so that is what is fresh."""
        self._session.results.update(result, state="accepted")
        self._show(document.uri)

    def _write_folder(self, document: TextDocument, result: Result) -> Path:
        """For clients that cannot create files: write the folder ourselves, never over a stranger's."""
        folder = edits.output_folder(self._session, document, result)
        if not edits.is_ours(folder):
            raise ConfigError("the output folder exists and is not ours", file=folder,
                              hint="set hiera.outputFolder to another place")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for name, text in edits.folder_texts(result).items():
                folder.joinpath(name).write_text(text, encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"cannot write {folder}: {error.strerror}", hint="set hiera.outputFolder") from None
        return folder

    def _earlier_source(self, document: TextDocument, result: Result) -> str | None:
        path = edits.output_folder(self._session, document, result) / "cuda_source.cu"
        return uris.from_fs_path(str(path)) if path.exists() else None

    def _name_endpoint(self, uri: str) -> None:
        """The first run with a model says where the source goes."""
        settings = self._session.settings_of(uri)
        where = settings.llm_base_url or "the endpoint of OPENAI_BASE_URL, or OpenAI's own"
        text = f"HIERA sends the source of this kernel to {where}; set hiera.agent to 'expert' to keep it here"
        if text not in self._session.warned:
            self._session.warned.add(text)
            self._server.window_show_message(types.ShowMessageParams(type=types.MessageType.Info, message=text))

    def _ready(self, document: TextDocument, site: EditorSite) -> None:
        if not self._session.trusted:
            raise ConfigError("the workspace is not trusted", hint="trust it: optimising imports and runs its code")
        if self._session.jobs.at(Site(document.uri, site.symbol)) is not None:
            raise InputError(f"a job for {site.symbol} is running", hint="wait for it or cancel it")
        path = Path(uris.to_fs_path(document.uri) or "")
        if not document.uri.startswith("file:") or not path.is_file():
            raise InputError("the document is not a file on disk", hint="save it first")
        if path.read_bytes() != document.source.encode("utf-8", "surrogatepass"):
            raise InputError("the document has unsaved changes", hint="save it first: the job reads the file",
                             file=path)

    def _site(self, argument: dict[str, Any]) -> tuple[TextDocument, EditorSite]:
        document = self._document(argument)
        symbol = argument.get("symbol")
        sites = self._session.finder.sites(document.uri, document.source)
        site = next((s for s in sites if s.symbol == symbol), None)
        if site is None and symbol is None and len(sites) == 1:
            site = sites[0]
        if site is None:
            names = ", ".join(s.symbol for s in sites) or "nothing that can be optimised"
            raise InputError(f"{symbol!r} is not in this document", hint=f"it has {names}")
        return document, site

    def _document(self, argument: dict[str, Any]) -> TextDocument:
        if not isinstance(argument, dict) or not isinstance(argument.get("uri"), str):
            raise InputError("the command's argument has no uri", hint="pass {uri, symbol}")
        return self._server.workspace.get_text_document(argument["uri"])

    def _result(self, uri: str, symbol: str) -> Result:
        result = self._session.results.at(Site(uri, symbol))
        if result is None:
            raise InputError(f"{symbol} has no result", hint="run Optimize kernel first")
        return result


def _safe(handler: Any) -> Any:
    """Turn what a user can mend into a request error with its sentence; pygls binds the server itself."""
    import functools
    import inspect

    from pygls.exceptions import JsonRpcException

    def refused(error: HieraError) -> JsonRpcException:
        return JsonRpcException(message=error.message(), code=types.LSPErrorCodes.RequestFailed.value)

    if inspect.iscoroutinefunction(handler):

        @functools.wraps(handler)
        async def awaited(*arguments: Any) -> Any:
            try:
                return await handler(*arguments)
            except HieraError as error:
                raise refused(error) from None

        return awaited

    @functools.wraps(handler)
    def called(*arguments: Any) -> Any:
        try:
            return handler(*arguments)
        except HieraError as error:
            raise refused(error) from None

    return called
