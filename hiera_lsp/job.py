"""The program of one job, a process of its own that the server starts (see `start.job`).

The first line of stdin is the request. Later lines are wishes (`cancel`); the end of stdin means that
the server is gone, and so are we. Every line of stdout is an event for the server.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from typing import Any

from contracts import codec
from contracts.errors import HieraError
from engine.agents.given import GivenAgent
from engine.optimize import limits, optimize
from engine.report import progress_line
from engine.requests import earlier_run
from engine.store import Store
from engine.trajectory import Event, Job, Trajectory
from hiera_lsp.summary import summarise


def main() -> int:
    """Serve one job and return the exit status."""
    output = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)  # Whatever prints must miss the events.
    request = json.loads(_first_line(sys.stdin.fileno()))

    def send(kind: str, **fields: Any) -> None:
        output.write(json.dumps({"event": kind, **fields}) + "\n")

    try:
        asyncio.run(_run(request, send))
    except HieraError as error:
        send("failed", problem=error.problem, hint=error.hint, file=error.file, line=error.line)
        return 2
    return 0


async def _run(request: dict[str, Any], send: Any) -> None:
    job = codec.from_data(request["job"], Job)
    cancel = asyncio.Event()
    _listen(asyncio.get_running_loop(), cancel)
    store = Store()
    rounds, budget = limits(job)

    def on_event(event: Event, trajectory: Trajectory) -> None:
        done = sum(c.id in trajectory.evaluations for c in trajectory.candidates if c.round > 0)
        fields: dict[str, Any] = {
            "kind": event.kind, "at_s": event.at_s, "run": trajectory.run,
            "line": progress_line(trajectory, rounds=rounds, budget=budget),
            "percentage": min(99, 100 * done // max(budget, 1)),
        }
        if event.kind == "evaluation":
            fields["summary"] = codec.to_data(summarise(trajectory, store.root / "runs" / trajectory.run))
        send("progress", **fields)

    agent = GivenAgent(**request["given"]) if request.get("given") else None
    anew = request.get("fresh") or request.get("resume") or agent is not None
    known = None if anew else earlier_run(job, store)
    trajectory = known or await optimize(
        job, on_event=on_event, agent=agent, store=store, resume=request.get("resume"), cancel=cancel
    )
    folder = store.root / "runs" / trajectory.run
    send("finished", run=trajectory.run, again=known is not None, summary=codec.to_data(summarise(trajectory, folder)))


def _first_line(descriptor: int) -> bytes:
    """Read up to the first newline and not a byte more: the rest belongs to the watching thread."""
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(descriptor, 1)
        if not byte:
            sys.exit(3)
        line += byte
    return line


def _listen(loop: asyncio.AbstractEventLoop, cancel: asyncio.Event) -> None:
    """Watch stdin from a thread: a line is a wish to cancel, its end means that nobody waits any more."""

    def watch() -> None:
        descriptor = sys.stdin.fileno()
        while chunk := os.read(descriptor, 4096):
            if b"cancel" in chunk:
                loop.call_soon_threadsafe(cancel.set)
        loop.call_soon_threadsafe(cancel.set)
        # Workers die with us (PDEATHSIG); a cancelled job needs a moment to write its last events.
        threading.Timer(3.0, lambda: os._exit(3)).start()

    threading.Thread(target=watch, name="server-watch", daemon=True).start()
