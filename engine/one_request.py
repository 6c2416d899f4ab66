"""The child's side of a process that serves one request: a job of the server, a task of the benchmark.

The first line of stdin is the request, a later line with `cancel` a wish; the end of stdin means that whoever
started us is gone, and so are we with all that we started. Messages go out by the stream that `begin` returns.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time
from typing import Any, TextIO

from engine.process_tree import adopt_orphans, kill_tree

# How long we may write our last messages when nobody waits for us any more.
LEAVE_S = 2.5


def begin() -> tuple[dict[str, Any], TextIO]:
    """The request, and the stream for messages."""
    output = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)  # Whatever prints must miss the messages.
    adopt_orphans()
    # Unbuffered, and not a byte more: the rest belongs to the watching thread.
    line = sys.stdin.buffer.raw.readline()  # type: ignore[attr-defined]
    if not line.endswith(b"\n"):
        sys.exit(3)
    return json.loads(line), output


def listen(cancel: asyncio.Event) -> None:
    """Set `cancel` on a wish. A thread watches stdin, which sees its end also while the event loop is busy."""
    loop = asyncio.get_running_loop()

    def watch() -> None:
        while chunk := os.read(sys.stdin.fileno(), 4096):
            if b"cancel" in chunk:
                loop.call_soon_threadsafe(cancel.set)
        try:
            loop.call_soon_threadsafe(cancel.set)
        except RuntimeError:
            return
        time.sleep(LEAVE_S)
        kill_tree(os.getpid(), with_root=False)
        os._exit(3)

    threading.Thread(target=watch, name="stdin-watch", daemon=True).start()
