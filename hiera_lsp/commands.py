"""Commands about jobs. Each answers at once; long work runs as a job with progress, and nothing is edited."""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lsprotocol import types
from pygls import uris
from pygls.exceptions import JsonRpcException

from contracts.errors import ConfigError, HieraError, InputError
from hiera_lsp import configuration
from hiera_lsp.command_results import ResultCommands
from hiera_lsp.documents import Document
from hiera_lsp.features import diagnostics
from hiera_lsp.jobs import PACKAGE_ROOT, JobEnd, RunningJob, Site
from hiera_lsp.pages import page_uri
from hiera_lsp.progress import JobProgress, end_message
from hiera_lsp.publisher import Publisher
from hiera_lsp.requests import check_ready, document_in, result_in, site_in
from hiera_lsp.run_commands import RunCommands
from hiera_lsp.session import Session
from hiera_lsp.settings import PRESETS
from hiera_lsp.sites import EditorSite
from hiera_lsp.status import Status
from hiera_lsp.summary import Summary, with_profile

if TYPE_CHECKING:
    from hiera_lsp.server import HieraServer

DOCTOR = f"import sys; sys.path.insert(0, {str(PACKAGE_ROOT)!r}); from hiera_lsp.start import cli; cli()"
DOCTOR_S = 120.0


class Commands:
    """`workspace/executeCommand`. Every argument is one object with `uri` and `symbol`."""

    def __init__(self, server: HieraServer, session: Session, publisher: Publisher, status: Status) -> None:
        self._server, self._session, self._publisher, self._status = server, session, publisher, status
        self._progress: dict[str, JobProgress] = {}
        self._background: set[asyncio.Task[Any]] = set()
        self.results = ResultCommands(server, session, publisher)
        self.runs = RunCommands(session, publisher)

    def register(self) -> None:
        """Tell pygls about every command."""
        results, runs = self.results, self.runs
        for name, handler in (
            ("hiera.optimize", self.optimize), ("hiera.reverify", self.reverify), ("hiera.profile", self.profile),
            ("hiera.cancel", self.cancel), ("hiera.jobs", self.jobs), ("hiera.doctor", self.doctor),
            ("hiera.secret", self.secret), ("hiera.accept", results.accept), ("hiera.use", results.use),
            ("hiera.accepted", results.accepted), ("hiera.discard", results.discard),
            ("hiera.choose", results.choose), ("hiera.diff", results.diff), ("hiera.explain", results.explain),
            ("hiera.report", results.report), ("hiera.result", results.result), ("hiera.sites", results.sites),
            ("hiera.runs", runs.runs), ("hiera.run", runs.run), ("hiera.page", runs.page),
            ("hiera.deleteRun", runs.delete), ("hiera.help", self.help),
        ):
            self._server.command(name)(_safe(handler))
        self._server.feature(types.WINDOW_WORK_DONE_PROGRESS_CANCEL)(_safe(self.on_progress_cancel))

    async def optimize(self, argument: Any) -> dict[str, Any]:
        """Start a job: `{uri, symbol, preset?, fresh?, resume?}` → `{jobId}`."""
        document, site = await self._job_site(argument)
        preset = argument.get("preset")
        if preset is not None and preset not in PRESETS:
            raise InputError(f"there is no preset {preset!r}", hint=f"use one of {', '.join(PRESETS)}")
        job = self._session.job_for(site, document.uri, preset)
        if job.agent == "llm":
            self._name_endpoint(document.uri)
        resume = argument.get("resume")
        return self._start(document, site, job, fresh=bool(argument.get("fresh")),
                           resume=resume if isinstance(resume, str) else None)

    async def reverify(self, argument: Any) -> dict[str, Any]:
        """Judge the kept candidate, or a run's, against the source as it is now: `{run?, candidate?}` → `{jobId}`."""
        from_run = isinstance(argument, dict) and argument.get("run") is not None
        given = await self.runs.kernel(argument) if from_run else None
        document, site = await self._job_site(argument)
        if given is None:
            candidate = result_in(self._session, argument).candidate
            if candidate is None:
                raise InputError(f"no candidate of {site.symbol} is kept", hint="run Optimize kernel")
            given = {"source": _text_of(candidate.source), "space": candidate.space}
        job = self._session.job_for(site, document.uri, "quick")
        return self._start(document, site, job, given=given, what="reverify")

    async def profile(self, argument: Any) -> dict[str, Any]:
        """Find what limits the kernel as it is, or a module's candidate under review, without a search: → `{jobId}`."""
        document, site = await self._job_site(argument)
        result = self._session.live_result(document.uri, site.symbol)
        fresh = result is not None and self._session.standing(result, self._session.finder.sites(document)) != "stale"
        candidate = result.candidate if result is not None and fresh else None
        given: dict[str, Any] = {}
        if candidate is not None and candidate.author != "user":
            given = {"source": _text_of(candidate.source), "space": candidate.space}
        job = self._session.job_for(site, document.uri, "quick", confirm=False)
        return self._start(document, site, job, given=given, what="profile")

    def cancel(self, argument: Any = None) -> dict[str, Any]:
        """Cancel a job by `{jobId}` or `{uri, symbol}`, or all of them: → `{cancelled: [...]}`."""
        wished = argument if isinstance(argument, dict) else {}
        wanted = [
            job for job in self._session.jobs.running
            if wished.get("jobId") in (None, job.id)
            and (wished.get("uri") is None or Site(str(wished["uri"]), job.site.symbol).key == job.site.key)
            and wished.get("symbol") in (None, job.site.symbol)
        ]
        for job in wanted:
            self._session.jobs.cancel(job)
        return {"cancelled": [job.id for job in wanted]}

    def jobs(self, _argument: Any = None) -> list[dict[str, Any]]:
        """Jobs at work."""
        return [
            {"jobId": job.id, "uri": job.site.uri, "symbol": job.site.symbol, "line": job.waiting or job.line,
             "percentage": job.percentage, "run": job.run, "what": job.what}
            for job in self._session.jobs.running
        ]

    async def doctor(self, argument: Any = None) -> dict[str, Any]:
        """What works on this machine and what does not, with the command that mends it: → `{text}`."""
        from engine import processes

        if not self._session.trusted:
            raise ConfigError("the workspace is not trusted", hint="trust it: the interpreter to look at is in it")
        uri = document_in(self._server, argument).uri if argument else ""
        settings = self._session.settings_of(uri)
        python = settings.interpreter or settings.suggested_interpreter
        command = [sys.executable, "-P", "-c", DOCTOR, "doctor", *(["--python", python] if python else [])]
        near = Path(uris.to_fs_path(uri) or ".").parent
        done = await processes.run(command, timeout_s=DOCTOR_S, cwd=near if near.is_dir() else None)
        self._server.window_log_message(types.LogMessageParams(type=types.MessageType.Info, message=done.output))
        return {"text": done.output, "status": done.status}

    def secret(self, argument: Any) -> dict[str, Any]:
        """Take a model's key from the editor's secret store: `{name, value}`. It stays in memory; none ends it."""
        if not isinstance(argument, dict) or not all(isinstance(argument.get(key), str) for key in ("name", "value")):
            raise InputError("the secret has no name or no value", hint="pass {name, value}")
        if argument["value"]:
            self._session.secrets[argument["name"]] = argument["value"]
        else:
            self._session.secrets.pop(argument["name"], None)
        return {"kept": bool(argument["value"])}

    def help(self, argument: Any = None) -> dict[str, Any]:
        """The manual's page on editors, or the one on `{code}` of a diagnostic; shown where the client does so."""
        code = argument.get("code") if isinstance(argument, dict) else None
        uri = diagnostics.documentation(str(code)) if code else page_uri("editors.md", "what-you-can-do")
        if uri is not None and self._session.client.show_document:
            self._server.window_show_document(types.ShowDocumentParams(uri=uri, take_focus=True))
        return {"uri": uri}

    def on_progress_cancel(self, params: types.WorkDoneProgressCancelParams) -> None:
        """The user pressed Cancel on a progress."""
        self.cancel({"jobId": params.token})

    async def _job_site(self, argument: Any) -> tuple[Document, EditorSite]:
        await configuration.settled(self._session)
        document, site = site_in(self._server, self._session, argument)
        check_ready(self._session, document, site)
        return document, site

    def _start(self, document: Document, site: EditorSite, job: Any, **how: Any) -> dict[str, Any]:
        self._publisher.clear_problem(document.uri, site.symbol)
        settings = self._session.settings_of(document.uri)
        # A job that asks no model needs no key.
        key = self._session.secrets.get(settings.llm_key_variable) if job.agent == "llm" else None
        extra = {settings.llm_key_variable: key} if key else {}
        running = self._session.jobs.start(
            Site(document.uri, site.symbol), job, text_hash=site.text_hash, on_progress=self._on_progress,
            on_end=self._on_end, extra_environment=extra, **how,
        )
        self._progress[running.id] = JobProgress(self._server, self._session.client, running)
        self._publisher.refresh()
        self._status.tell()
        return {"jobId": running.id}

    def _on_progress(self, running: RunningJob, kind: str) -> None:
        self._progress[running.id].report()
        self._server.protocol.log_trace(f"{running.id}, {running.site.symbol}: {running.waiting or running.line}")
        if kind in ("workload", "evaluation", "plan"):
            self._publisher.publish(running.site.uri)
        if kind == "evaluation" and running.what == "optimize" and running.summary is not None:
            self._session.results.keep_part(running.site, running.text_hash, running.summary)

    async def _on_end(self, running: RunningJob, end: JobEnd) -> None:
        uri, symbol = running.site.uri, running.site.symbol
        try:
            self._keep(running, end)
            if end.problem:
                self._publisher.problem(uri, symbol, end)
                if self._session.settings_of(uri).notifications != "off":
                    text = f"HIERA could not {running.what} {symbol}: {end.problem} (to fix: {end.hint})"
                    shown = types.ShowMessageParams(type=types.MessageType.Warning, message=text)
                    self._server.window_show_message(shown)
            self._publisher.publish(uri)
            self._publisher.refresh()
            if not self._ask(running, end) and not end.problem:
                self._tell(running, end)
        finally:
            self._server.protocol.log_trace(f"{running.id} ended: {end_message(end)}", "\n".join(running.log))
            self._status.tell()
            await self._progress.pop(running.id).end(end)

    def _keep(self, running: RunningJob, end: JobEnd) -> None:
        """Keep what a job found; one that found nothing leaves an earlier result alone."""
        site, summary, results = running.site, end.summary, self._session.results
        before = results.at(site)
        if summary is None or (not summary.candidates and (end.problem or end.cancelled)):
            results.drop_part(site)
        elif running.what == "profile" and before is not None and before.text_hash == running.text_hash:
            results.update(before, summary=with_profile(before.summary, summary))
        elif running.what == "reverify" and summary.best is None and before is not None and not end.problem:
            _refuse_reverified(summary, self._publisher, site)
        else:
            if running.what == "profile":
                summary = replace(summary, stop_reason="profiled as it is, nothing was searched")
            results.put(site, running.text_hash, summary)

    def _tell(self, running: RunningJob, end: JobEnd) -> None:
        """Who wants every message gets one about a job that went well, too."""
        if self._session.settings_of(running.site.uri).notifications == "always":
            text = f"HIERA {running.site.symbol}: {end_message(end)}"
            self._server.window_show_message(types.ShowMessageParams(type=types.MessageType.Info, message=text))

    def _ask(self, running: RunningJob, end: JobEnd) -> bool:
        """Clients without lenses learn of the result by a question, which they may answer late or never."""
        client, site = self._session.client, running.site
        candidate = end.summary.best_candidate if end.summary is not None else None
        result = self._session.results.at(site)
        if client.lenses or candidate is None or running.what == "profile" or end.cancelled:
            return False
        if result is None or result.no_gain or self._session.settings_of(site.uri).notifications == "off":
            return False
        choices = {"Accept": self.results.accept, "Show diff": self.results.diff, "Discard": self.results.discard}

        async def ask() -> None:
            answer = await self._server.window_show_message_request_async(
                types.ShowMessageRequestParams(
                    type=types.MessageType.Info, message=f"HIERA {site.symbol}: {end_message(end)}",
                    actions=[types.MessageActionItem(title=title) for title in choices],
                )
            )
            chosen = choices.get(answer.title) if answer is not None else None
            if chosen is None:
                return
            try:
                done = _safe(chosen)({"uri": site.uri, "symbol": site.symbol})
                if inspect.isawaitable(done):
                    await done
            except JsonRpcException as error:
                # The user pressed a button, and looks at no log.
                shown = types.ShowMessageParams(type=types.MessageType.Warning, message=f"HIERA: {error.message}")
                self._server.window_show_message(shown)

        task = asyncio.get_running_loop().create_task(ask())
        self._background.add(task)
        task.add_done_callback(self._asked)
        return True

    def _asked(self, task: asyncio.Task[Any]) -> None:
        self._background.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            message = types.LogMessageParams(type=types.MessageType.Warning, message=f"HIERA: {error}")
            self._server.window_log_message(message)

    def _name_endpoint(self, uri: str) -> None:
        """The first run with a model says where the source goes."""
        settings = self._session.settings_of(uri)
        where = settings.llm_base_url or "the endpoint of OPENAI_BASE_URL, or OpenAI's own"
        text = f"HIERA sends the source of this kernel to {where}; set hiera.agent to 'expert' to keep it here"
        if text not in self._session.warned:
            self._session.warned.add(text)
            self._server.window_show_message(types.ShowMessageParams(type=types.MessageType.Info, message=text))


def _refuse_reverified(summary: Summary, publisher: Publisher, site: Site) -> None:
    """The kept kernel does not do what the changed source does: say so, and keep it as it was."""
    why = next((c.rejected for c in summary.candidates if c.rejected), "it was not accepted")
    publisher.problem(site.uri, site.symbol, JobEnd(
        problem=f"the kept kernel does not fit the changed source: {why}", hint="run Optimize kernel again",
        code="hiera.reverify"))


def _text_of(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise InputError("the source of the candidate is no longer stored", hint="run Optimize kernel again",
                         file=path) from None


def _safe(handler: Callable[..., Any]) -> Callable[..., Any]:
    """Turn what a user can mend into a request error with its sentence."""

    def refused(error: HieraError) -> JsonRpcException:
        return JsonRpcException(message=error.message(), code=types.LSPErrorCodes.RequestFailed.value)

    if inspect.iscoroutinefunction(handler):

        async def awaited(argument: Any = None) -> Any:
            try:
                return await handler(argument)
            except HieraError as error:
                raise refused(error) from None

        return awaited

    def called(argument: Any = None) -> Any:
        try:
            return handler(argument)
        except HieraError as error:
            raise refused(error) from None

    return called
