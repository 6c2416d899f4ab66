"""Commands about stored runs, for the views of an editor: the list, one run, its report, its end."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any

from pygls import uris

from contracts.errors import InputError
from hiera_lsp.features import runs
from hiera_lsp.jobs import Site
from hiera_lsp.publisher import Publisher
from hiera_lsp.session import Session

if TYPE_CHECKING:
    from engine.headlines import Headlines
    from engine.store import Store

# A page of the list. The next begins after the last run of this one.
PAGE = 50
MOST = 500


class RunCommands:
    """Answers come from the store, so that runs of other editors and of the command line are there too."""

    def __init__(self, session: Session, publisher: Publisher) -> None:
        self._session, self._publisher = session, publisher
        self._headlines: Headlines | None = None

    async def runs(self, argument: Any = None) -> dict[str, Any]:
        """Runs of this workspace, newest first: `{all?, after?, limit?}` → `{runs, more}`.

        Whole runs are read in a thread, here and below: views ask for them again and again while a job is at work.
        """
        from engine.headlines import Headlines, inside

        given = argument if isinstance(argument, dict) else {}
        limit, after = given.get("limit"), given.get("after")
        limit = min(limit, MOST) if isinstance(limit, int) and limit > 0 else PAGE
        folders = [folder for folder in self._session.settings if folder]
        wanted = (lambda _file: True) if given.get("all") or not folders else inside(folders)
        if self._headlines is None:
            self._headlines = Headlines(self._known)
        found: list[dict[str, Any]] = []
        for folder in self._headlines.runs():
            if isinstance(after, str) and after and folder.name >= after:
                continue
            headline = await asyncio.to_thread(self._headlines.of, folder, wanted)
            if headline is None:
                continue
            if len(found) == limit:
                return {"runs": found, "more": True}
            found.append(runs.listed(self._session, headline, self._known.root))
        return {"runs": found, "more": False}

    async def run(self, argument: Any) -> dict[str, Any]:
        """One run with its rounds and candidates: `{run}`."""
        run = _run_in(argument)
        store = self._known
        trajectory = await asyncio.to_thread(store.load, run)
        return runs.described(self._session, trajectory, store.find(run))

    async def page(self, argument: Any) -> dict[str, Any]:
        """The report in parts, for a page of the editor's own: `{run}` → `{run, title, style, body, finished}`."""
        from engine import report_html

        run = _run_in(argument)
        store = self._known
        found = await asyncio.to_thread(lambda: report_html.parts(store.load(run)))
        return {"run": run, "title": found.title, "style": report_html.STYLE, "body": found.body,
                "finished": found.finished}

    async def delete(self, argument: Any) -> dict[str, Any]:
        """Delete a run for good: `{run}`. The editor has asked the user."""
        run = _run_in(argument)
        if any(job.run == run for job in self._session.jobs.running):
            raise InputError("a job is working on this run", hint="cancel it first")
        store = self._known
        job = (await asyncio.to_thread(store.load, run)).job
        await asyncio.to_thread(store.delete, run)
        result = self._session.results.at(Site(uris.from_fs_path(job.file) or "", job.name or "")) if job else None
        if result is not None and result.summary.run == run:
            # What it offers is gone with it.
            self._session.results.update(result, state="discarded")
            self._publisher.publish(result.uri)
            self._publisher.refresh()
        return {"deleted": run}

    async def kernel(self, argument: Any) -> dict[str, str]:
        """Source and space of a run's candidate, to be judged again: `{run, candidate}`."""
        trajectory = await asyncio.to_thread(self._known.load, _run_in(argument))
        candidate = trajectory.candidate(str(argument.get("candidate")))
        if candidate is None:
            raise InputError("the run has no such candidate", hint="refresh the runs")
        return {"source": candidate.source, "space": candidate.space}

    @property
    def _known(self) -> Store:
        from engine.store import Store

        return Store()


def _run_in(argument: Any) -> str:
    run = argument.get("run") if isinstance(argument, dict) else None
    if not isinstance(run, str) or not re.fullmatch(r"[\w-]+", run):
        raise InputError("the command's argument names no run", hint="pass {run}")
    return run
