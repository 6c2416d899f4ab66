"""Bytes in and out: the protocol keeps stdout to itself, and the server ends with its editor."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import BinaryIO

PARENT_CHECK_S = 2.0


def claim_stdio() -> tuple[BinaryIO, BinaryIO]:
    """Take stdin and stdout for the protocol.

    Anything that prints afterwards, here or in a child, writes to stderr: one stray byte on stdout
    makes VS Code drop the connection.
    """
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    own_input = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return os.fdopen(own_input, "rb"), output


def watch_parent(pid: int | None, on_gone: Callable[[], None]) -> None:
    """Call `on_gone` when process `pid` is no more: a pipe may stay open in a forgotten child."""
    if not pid:
        return

    def watch() -> None:
        while True:
            time.sleep(PARENT_CHECK_S)
            try:
                os.kill(pid, 0)
            except ProcessLookupError:
                on_gone()
                return
            except PermissionError:
                continue

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()
