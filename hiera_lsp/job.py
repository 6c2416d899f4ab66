"""The program of one job, a process of its own that the server starts (see `start.job`).

It is asked as `engine.one_request` says; every line of stdout is an event for the server.
"""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

from contracts import codec
from contracts.errors import AgentError, ConfigError, ContractError, HieraError, InputError, ToolError
from engine import one_request
from engine.agents.given import GivenAgent
from engine.evaluate import gpu_lock
from engine.optimize import limits, optimize
from engine.process_tree import kill_tree
from engine.report import progress_line
from engine.requests import earlier_run
from engine.store import Store
from engine.trajectory import Event, Job, Trajectory
from hiera_lsp.sites import find
from hiera_lsp.summarise import summarise

WATCH_S = 0.5
# In the place of a hash: which text was read cannot be told, so that the result is that of none.
CHANGED = "changed"
CODES: tuple[tuple[type[HieraError], str], ...] = (
    (InputError, "hiera.input"), (ConfigError, "hiera.configuration"), (ContractError, "hiera.contract"),
    (ToolError, "hiera.environment"), (AgentError, "hiera.agent"),
)
# Events after which the editor may show more.
TELLING = frozenset({"workload", "plan", "evaluation", "baseline", "stopped"})


def main() -> int:
    """Serve one job and return the exit status."""
    request, output = one_request.begin()

    def send(what: str, /, **fields: Any) -> None:
        output.write(json.dumps({"event": what, **fields}) + "\n")

    try:
        asyncio.run(_run(request, send))
    except HieraError as error:
        code = next((code for kind, code in CODES if isinstance(error, kind)), "hiera.cannot-optimize")
        send("failed", problem=error.problem, hint=error.hint, file=error.file, line=error.line, code=code)
        return 2
    finally:
        kill_tree(os.getpid(), with_root=False)
    return 0


async def _run(request: dict[str, Any], send: Any) -> None:
    job = codec.from_data(request["job"], Job)
    cancel = asyncio.Event()
    one_request.listen(cancel)
    watching = asyncio.create_task(_tell_waiting(send))
    store = Store()
    rounds, budget = limits(job)
    at_start = _text_hash(job)

    def on_event(event: Event, trajectory: Trajectory) -> None:
        if event.kind == "contract":
            tell_text()
        done = sum(c.id in trajectory.evaluations for c in trajectory.candidates if c.round > 0)
        fields: dict[str, Any] = {
            "kind": event.kind, "at_s": event.at_s, "run": trajectory.run,
            "line": progress_line(trajectory, rounds=rounds, budget=budget),
            "percentage": min(99, 100 * done // max(budget, 1)),
        }
        if event.kind in TELLING:
            fields["summary"] = codec.to_data(summarise(trajectory, store.root / "runs" / trajectory.run))
        send("progress", **fields)

    def tell_text() -> None:
        """What is found belongs to the text that was read: another may have been saved since the job was asked for."""
        send("read", text_hash=at_start if at_start == _text_hash(job) else CHANGED)

    given = request.get("given")
    agent = GivenAgent(**given) if given is not None else None
    anew = request.get("fresh") or request.get("resume") or agent is not None
    known = None if anew else earlier_run(job, store)
    if known is not None:
        tell_text()
    try:
        trajectory = known or await optimize(
            job, on_event=on_event, agent=agent, store=store, resume=request.get("resume"), cancel=cancel
        )
    finally:
        watching.cancel()
    folder = store.root / "runs" / trajectory.run
    send("finished", run=trajectory.run, again=known is not None, summary=codec.to_data(summarise(trajectory, folder)))


def _text_hash(job: Job) -> str:
    """Hash of what the job is about as the disk has it, as the server counts it."""
    try:
        text = Path(job.file).read_bytes().decode("utf-8", "replace")
    except OSError:
        return CHANGED
    return next((site.text_hash for site in find(job.file, text) if site.symbol == job.name), CHANGED)


async def _tell_waiting(send: Any) -> None:
    """Say when the job waits for a GPU that another job holds, and when it goes on."""
    told: tuple[int, ...] = ()
    while True:
        await asyncio.sleep(WATCH_S)
        if (now := gpu_lock.waiting_for()) != told:
            told = now
            send("waiting", what=f"waiting for GPU {now[0]}: another job is timing on it" if now else "")
