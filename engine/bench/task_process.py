"""The program of one task, a process of its own: a search, or a fresh look at what a search accepted.

It is asked as `engine.one_request` says, and every line of stdout is a message. What a search finds is in its run
folder, which is the truth also when this process is killed.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    # Started by path, since an installed HIERA keeps these packages where no `-m` finds them.
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from contracts import codec
from contracts.errors import HieraError
from engine import one_request
from engine.bench.check import check
from engine.bench.variants import agent_of
from engine.evaluate.local import Settings
from engine.local import LocalServices, make_agent
from engine.optimize import optimize
from engine.process_tree import kill_tree
from engine.store import Store
from engine.trajectory import Event, Job, Trajectory


def main() -> int:
    """Serve one request and return the exit status."""
    request, output = one_request.begin()

    def send(**message: Any) -> None:
        output.write(json.dumps(message) + "\n")

    try:
        asyncio.run(_serve(request, send))
    except HieraError as error:
        send(failed=str(error))
        return 2
    except Exception as error:  # noqa: BLE001 - a fault of ours in one task must not cost the others.
        send(failed=f"internal error: {type(error).__name__}: {error}"[:500])
        return 3
    finally:
        kill_tree(os.getpid(), with_root=False)
    return 0


async def _serve(request: dict[str, Any], send: Any) -> None:
    cancel = asyncio.Event()
    one_request.listen(cancel)
    if request["what"] == "check":
        work = asyncio.ensure_future(check(Path(request["run"]), python=request["python"], file=Path(request["file"])))
        wish = asyncio.ensure_future(cancel.wait())
        await asyncio.wait({work, wish}, return_when=asyncio.FIRST_COMPLETED)
        wish.cancel()
        if work.done():
            send(checked=work.result())
        else:
            work.cancel()
            await asyncio.wait({work}, timeout=one_request.LEAVE_S)
        return
    job = codec.from_data(request["job"], Job)
    store, told = Store(), False

    def on_event(_event: Event, trajectory: Trajectory) -> None:
        nonlocal told
        if not told:
            told = True
            send(run=str(store.root / "runs" / trajectory.run) if request["resume"] is None else request["resume"])

    services = LocalServices(None if request["paired"] else Settings(compile_baseline="off"))
    agent = agent_of(request["variant"], job) or make_agent(job)
    await optimize(job, on_event=on_event, agent=agent, services=services, store=store, resume=request["resume"],
                   cancel=cancel)


if __name__ == "__main__":
    sys.exit(main())
