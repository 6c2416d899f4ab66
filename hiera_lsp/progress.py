"""Work-done progress of one job: begin, at most four reports a second, and always an end."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING

from lsprotocol import types

from hiera_lsp.jobs import JobEnd, RunningJob
from hiera_lsp.session import Client
from hiera_lsp.texts import speedup_words

if TYPE_CHECKING:
    from hiera_lsp.server import HieraServer

MIN_INTERVAL_S = 0.25
TITLES = {"optimize": "Optimize kernel", "reverify": "Re-verify kernel", "profile": "Profile kernel"}


class JobProgress:
    """The client's progress for a job; without the capability, log messages."""

    def __init__(self, server: HieraServer, client: Client, running: RunningJob) -> None:
        self._server, self._running = server, running
        self._shown = client.progress
        self._begun = False
        self._last_s = 0.0
        self._later: asyncio.TimerHandle | None = None
        self._told = ("", 0)
        self._beginning = asyncio.ensure_future(self._begin()) if self._shown else None

    def report(self) -> None:
        """Tell the client where the job is: at once, or when the last report is old enough."""
        if self._later is not None:
            return
        wait = self._last_s + MIN_INTERVAL_S - time.monotonic()
        if wait <= 0:
            self._report()
        else:
            self._later = asyncio.get_running_loop().call_later(wait, self._report)

    async def end(self, end: JobEnd) -> None:
        """Close the progress with what came out."""
        message = end_message(end)
        if self._later is not None:
            self._later.cancel()
        if self._beginning is not None:
            with contextlib.suppress(Exception):
                await asyncio.wait_for(self._beginning, 2.0)
        if self._begun:
            self._server.work_done_progress.end(self._running.id, types.WorkDoneProgressEnd(message=message))
        else:
            text = f"HIERA {self._running.site.symbol}: {message}"
            self._server.window_log_message(types.LogMessageParams(type=types.MessageType.Info, message=text))
        self._server.work_done_progress.tokens.pop(self._running.id, None)

    def _report(self) -> None:
        self._later = None
        now = (self._running.waiting or self._running.line, self._running.percentage)
        if not self._begun or now == self._told:
            return
        self._last_s, self._told = time.monotonic(), now
        self._server.work_done_progress.report(
            self._running.id, types.WorkDoneProgressReport(message=now[0], percentage=now[1])
        )

    async def _begin(self) -> None:
        try:
            await self._server.work_done_progress.create_async(self._running.id)
        except Exception:  # noqa: BLE001 - a client that refuses the token gets log messages instead.
            return
        self._begun, self._told = True, (self._running.line, 0)
        self._server.work_done_progress.begin(
            self._running.id,
            types.WorkDoneProgressBegin(
                title=f"{TITLES[self._running.what]} {self._running.site.symbol}", cancellable=True, percentage=0,
                message=self._running.line,
            ),
        )
        self.report()


def end_message(end: JobEnd) -> str:
    """What came out, in one line."""
    if end.summary is not None and end.summary.candidates:
        words = speedup_words(end.summary.best_candidate, end.summary.measured)
        return f"cancelled, kept the best so far: {words}" if end.cancelled else words
    if end.problem:
        return f"not done: {end.problem}"
    return "cancelled" if end.cancelled else "no candidate was made"
