"""One task's process from outside: a request in, messages out, a hard end that nothing outlives."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.process_tree import kill_tree

PROGRAM = (sys.executable, "-u", str(Path(__file__).with_name("task_process.py")))
# After a wish to stop, a process may write its last events; then it is killed with all below it.
CANCEL_S = 8.0


@dataclass(slots=True)
class Ended:
    """How a task's process ended.

    Attributes:
        run: Folder of the run, once it began.
        failed: Why it could not do its work, in its own words, or ours where it died.
        checked: A check's answer.
        stopped: `limit` or `cancel` where we ended it.
    """

    run: str | None = None
    failed: str | None = None
    checked: dict[str, Any] | None = None
    stopped: str | None = None
    log: list[str] = field(default_factory=list)


async def converse(
    request: Mapping[str, Any], *, program: Sequence[str] = PROGRAM, environment: Mapping[str, str],
    limit_s: float | None, cancel: asyncio.Event, on_run: Callable[[str, float], None] = lambda _run, _s: None,
) -> Ended:
    """Run one process to its end.

    Args:
        request: What it shall do.
        program: Its command line.
        environment: All its variables.
        limit_s: Seconds it may take; None for no limit.
        cancel: When set, it is asked to stop.
        on_run: Called with the run's folder, and the seconds until then, as soon as it is known.
    """
    ended = Ended()
    begin = time.monotonic()
    process = await asyncio.create_subprocess_exec(
        *program, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        env=dict(environment), start_new_session=True, limit=64 << 20)
    assert process.stdin is not None
    reading = asyncio.ensure_future(_read(process, ended, begin, on_run))
    wish = asyncio.ensure_future(cancel.wait())
    try:
        await _write(process, json.dumps(request))
        await asyncio.wait({reading, wish}, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        if not reading.done():
            ended.stopped = "cancel" if cancel.is_set() else "limit"
            await _write(process, "cancel")
            await asyncio.wait({reading}, timeout=CANCEL_S)
    finally:
        wish.cancel()
        if process.returncode is None:
            kill_tree(process.pid)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(process.wait()), 5.0)
        await asyncio.wait({reading}, timeout=1.0)
        reading.cancel()
    status = process.returncode
    if ended.failed is None and ended.stopped is None and status:
        last = ended.log[-1] if ended.log else "it wrote nothing"
        ended.failed = f"the task's process ended with {_words(status)}: {last}"[:500]
    return ended


async def _read(process: asyncio.subprocess.Process, ended: Ended, begin: float,
                on_run: Callable[[str, float], None]) -> None:
    assert process.stdout is not None
    logging = asyncio.ensure_future(_log(process.stderr, ended.log))
    async for raw in process.stdout:
        try:
            message = json.loads(raw)
        except ValueError:
            continue
        if "run" in message:
            ended.run = message["run"]
            on_run(message["run"], time.monotonic() - begin)
        ended.failed = message.get("failed", ended.failed)
        ended.checked = message.get("checked", ended.checked)
    await process.wait()
    await asyncio.wait({logging}, timeout=1.0)
    logging.cancel()


async def _write(process: asyncio.subprocess.Process, line: str) -> None:
    assert process.stdin is not None
    with contextlib.suppress(ConnectionError, RuntimeError):
        process.stdin.write(line.encode() + b"\n")
        await process.stdin.drain()


async def _log(stream: asyncio.StreamReader | None, lines: list[str], keep: int = 50) -> None:
    assert stream is not None
    async for raw in stream:
        lines.append(raw.decode(errors="replace").rstrip())
        del lines[:-keep]


def _words(status: int) -> str:
    return f"signal {-status}" if status < 0 else f"status {status}"
