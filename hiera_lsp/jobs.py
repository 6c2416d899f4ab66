"""Jobs: one process a job, killed with everything it started when it is cancelled or the server ends."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from engine.process_tree import kill_tree
from hiera_lsp.summary import Summary

if TYPE_CHECKING:
    from engine.trajectory import Job

logger = logging.getLogger(__name__)
# A cancelled job gets this long to stop by itself; the whole promise is 5 s.
GRACE_S = 4.0
# The diagnostic's code where a job says no better one.
CANNOT = "hiera.cannot-optimize"
PACKAGE_ROOT = Path(__file__).resolve().parent.parent
PROGRAM = f"import sys; sys.path.insert(0, {str(PACKAGE_ROOT)!r}); from hiera_lsp.start import job; job()"


@dataclass(frozen=True, slots=True)
class Site:
    """What a job is about: a class or function of a document."""

    uri: str
    symbol: str

    @property
    def key(self) -> tuple[str, str]:
        """What makes two sites the same: clients spell one path in several ways (`%20`, `%3A`)."""
        return unquote(self.uri), self.symbol


@dataclass(slots=True, kw_only=True)
class RunningJob:
    """A job at work.

    Attributes:
        id: Given at once to the client.
        site: What it optimises; one job a site.
        text_hash: Hash of the site's text when it was asked for, then of the text that the job has read.
        line: The last progress line.
        percentage: 0 to 99.
        run: Run id, once known.
        waiting: What it waits for, such as the GPU; empty while it works.
        what: `optimize`, `reverify` or `profile`.
        log: Last lines of what the process wrote.
    """

    id: str
    site: Site
    text_hash: str
    job: Job
    what: str = "optimize"
    waiting: str = ""
    line: str = "starting"
    percentage: int = 0
    run: str = ""
    summary: Summary | None = None
    log: list[str] = field(default_factory=list)
    process: asyncio.subprocess.Process | None = None
    cancelled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnd:
    """How a job ended: with a summary, or with a problem in words."""

    summary: Summary | None = None
    problem: str = ""
    hint: str = ""
    file: str | None = None
    line: int | None = None
    code: str = CANNOT
    cancelled: bool = False


OnProgress = Callable[[RunningJob, str], None]
OnEnd = Callable[[RunningJob, JobEnd], Awaitable[None] | None]


class Jobs:
    """All jobs of the server."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = dict(environment)
        self._running: dict[tuple[str, str], RunningJob] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._numbers = itertools.count(1)

    @property
    def running(self) -> tuple[RunningJob, ...]:
        """Jobs at work, oldest first."""
        return tuple(self._running.values())

    @property
    def processes(self) -> tuple[int, ...]:
        """Ids of the jobs' processes."""
        return tuple(job.process.pid for job in self.running if job.process is not None)

    def at(self, site: Site) -> RunningJob | None:
        """The job at work on `site`."""
        return self._running.get(site.key)

    def start(
        self, site: Site, job: Job, *, text_hash: str, on_progress: OnProgress, on_end: OnEnd,
        resume: str | None = None, fresh: bool = False, given: Mapping[str, str] | None = None,
        what: str = "optimize", extra_environment: Mapping[str, str] | None = None,
    ) -> RunningJob:
        """Start a job and return at once. The caller has checked that the site has none.

        Args:
            site: What it is about.
            job: What the engine shall do.
            text_hash: Hash of the site's text now.
            on_progress: Called with every event's kind.
            on_end: Called once, however the job ends.
            resume: Run to go on with.
            fresh: Do not answer from an earlier run.
            given: `source` and `space` of the one kernel to judge, instead of a search; no source to judge none.
            what: `optimize`, `reverify` or `profile`.
            extra_environment: Such as the key of a model.
        """
        from contracts import codec

        running = RunningJob(id=f"hiera-job-{next(self._numbers)}", site=site, text_hash=text_hash, job=job, what=what)
        self._running[site.key] = running
        request = {"job": codec.to_data(job), "resume": resume, "fresh": fresh,
                   "given": dict(given) if given is not None else None}
        environment = {**self._environment, **(extra_environment or {})}
        task = asyncio.get_running_loop().create_task(self._work(running, request, environment, on_progress, on_end))
        self._tasks[running.id] = task
        task.add_done_callback(lambda _: self._tasks.pop(running.id, None))
        return running

    def cancel(self, running: RunningJob) -> None:
        """Ask a job to stop; it keeps its best, and is killed if it does not listen."""
        if running.cancelled:
            return
        running.cancelled = True
        _ask_to_stop(running)
        asyncio.get_running_loop().call_later(GRACE_S, _kill, running)

    def leave_all(self) -> None:
        """The server ends: every job hears it by the end of its input, stops and kills what it started."""
        for running in list(self._running.values()):
            running.cancelled = True
            process = running.process
            if process is not None and process.stdin is not None:
                process.stdin.close()

    async def _work(
        self, running: RunningJob, request: dict[str, Any], environment: Mapping[str, str],
        on_progress: OnProgress, on_end: OnEnd,
    ) -> None:
        end = JobEnd(cancelled=True)
        try:
            end = await self._converse(running, request, environment, on_progress)
        except OSError as error:
            end = JobEnd(problem=f"the job's process could not be started: {error}", hint="see the log")
        except Exception as error:
            logger.exception("a job failed")
            end = JobEnd(summary=running.summary, problem=f"the job's answers make no sense: {error}"[:300],
                         hint="see the log")
        finally:
            _kill(running)
            self._running.pop(running.site.key, None)
            result = on_end(running, end)
            if result is not None:
                await result

    async def _converse(
        self, running: RunningJob, request: dict[str, Any], environment: Mapping[str, str], on_progress: OnProgress
    ) -> JobEnd:
        from contracts import codec

        process = await asyncio.create_subprocess_exec(
            # -P: the server's folder is the user's project, whose `json.py` or `types.py` is none of ours.
            sys.executable, "-P", "-u", "-c", PROGRAM,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            env=environment, start_new_session=True, limit=64 << 20,
        )
        running.process = process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(request).encode() + b"\n")
        if running.cancelled:
            _ask_to_stop(running)
        log = asyncio.create_task(_collect(process.stderr, running.log))
        end: JobEnd | None = None
        async for raw in process.stdout:
            event = json.loads(raw)
            if event["event"] == "waiting":
                running.waiting = event["what"]
                on_progress(running, "waiting")
            elif event["event"] == "read":
                running.text_hash = event["text_hash"]
            elif event["event"] == "progress":
                running.line, running.percentage, running.run = event["line"], event["percentage"], event["run"]
                if event.get("summary") is not None:
                    running.summary = codec.from_data(event["summary"], Summary)
                on_progress(running, event["kind"])
            elif event["event"] == "finished":
                end = JobEnd(summary=codec.from_data(event["summary"], Summary), cancelled=running.cancelled)
            elif event["event"] == "failed":
                end = JobEnd(problem=event["problem"], hint=event["hint"], file=event["file"], line=event["line"],
                             code=event.get("code", CANNOT), summary=running.summary, cancelled=running.cancelled)
        status = await process.wait()
        await log
        if end is not None:
            return end
        if running.cancelled:
            return JobEnd(summary=running.summary, cancelled=True)
        last = running.log[-1] if running.log else "it wrote nothing"
        return JobEnd(summary=running.summary, problem=f"the job's process ended with status {status}",
                      hint=f"see the log: {last}")


def _ask_to_stop(running: RunningJob) -> None:
    if running.process is not None and running.process.stdin is not None:
        with contextlib.suppress(ConnectionError, RuntimeError):
            running.process.stdin.write(b"cancel\n")


def _kill(running: RunningJob) -> None:
    """Kill the job with everything that it started, if it is still there."""
    process = running.process
    if process is not None and process.returncode is None:
        kill_tree(process.pid)


async def _collect(stream: asyncio.StreamReader | None, lines: list[str], keep: int = 200) -> None:
    assert stream is not None
    async for raw in stream:
        lines.append(raw.decode(errors="replace").rstrip())
        del lines[:-keep]
