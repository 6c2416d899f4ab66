"""Bytes in and out: the protocol keeps stdout to itself, and the server ends with its editor."""

from __future__ import annotations

import asyncio
import os
import queue
import select
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import BinaryIO

PARENT_CHECK_S = 1.0
MAX_MESSAGE_BYTES = 256 << 20
MAX_HEADER_BYTES = 64 << 10


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


def accept(port: int) -> tuple[BinaryIO, BinaryIO]:
    """Wait for one client on a TCP port of this machine; port 0 takes a free one and says which on stderr."""
    with socket.create_server(("127.0.0.1", port)) as listening:
        sys.stderr.write(f"hiera-lsp listens on 127.0.0.1:{listening.getsockname()[1]}\n")
        sys.stderr.flush()
        connection, _ = listening.accept()
    return connection.makefile("rb"), connection.makefile("wb")


def read_message(stream: BinaryIO) -> bytes | None:
    """The next message's body; None at the end. Headers that make no sense are skipped."""
    while True:
        length: int | None = None
        while True:
            line = stream.readline(MAX_HEADER_BYTES)
            if not line:
                return None
            name, colon, value = line.partition(b":")
            if colon and name.strip().lower() == b"content-length":
                digits = value.strip()
                length = int(digits) if digits.isdigit() and len(digits) < 12 else None
            elif not line.strip():
                break
        if length is None:
            continue
        if length > MAX_MESSAGE_BYTES:
            _skip(stream, length)
            continue
        body = stream.read(length)
        return body if len(body) == length else None


def _skip(stream: BinaryIO, count: int) -> None:
    while count > 0 and (chunk := stream.read(min(count, 1 << 20))):
        count -= len(chunk)


async def serve(stream: BinaryIO, receive: Callable[[bytes], bool]) -> None:
    """Read messages in a thread of their own and hand them to `receive`, until it returns False or the input ends.

    pygls reads by its thread pool, so that long handlers there would stop the reading.
    """
    loop = asyncio.get_running_loop()
    messages: asyncio.Queue[bytes | None] = asyncio.Queue()

    def read() -> None:
        body: bytes | None = b""
        while body is not None:
            try:
                body = read_message(stream)
            except (OSError, ValueError):
                body = None
            try:
                loop.call_soon_threadsafe(messages.put_nowait, body)
            except RuntimeError:  # The loop is closed: nobody reads any more.
                return

    threading.Thread(target=read, name="protocol-reader", daemon=True).start()
    while (body := await messages.get()) is not None:
        if not receive(body):
            return
        # Events of jobs get their turn in the middle of a flood of messages too.
        await asyncio.sleep(0)


class Writer:
    """Writes in a thread of its own: a client that does not read must not stop the server.

    Args:
        stream: Where to write.
        on_gone: Called when nobody reads any more.
    """

    def __init__(self, stream: BinaryIO, on_gone: Callable[[], None]) -> None:
        self._stream, self._on_gone = stream, on_gone
        self._queue: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="protocol-writer", daemon=True)
        self._thread.start()

    def write(self, data: bytes) -> None:
        """Queue one message."""
        self._queue.put(data)

    def close(self) -> None:
        """Write what is queued, waiting a second at most."""
        self._queue.put(None)
        self._thread.join(1.0)

    def _work(self) -> None:
        try:
            while (data := self._queue.get()) is not None:
                self._stream.write(data)
                if self._queue.empty():
                    self._stream.flush()
            self._stream.flush()
        except (OSError, ValueError):
            self._on_gone()


def watch_parent(pid: int | None, on_gone: Callable[[], None]) -> None:
    """Call `on_gone` when process `pid` is no more: a pipe may stay open in a forgotten child.

    A process that cannot be seen at the start is not watched: an editor outside of our container has another number
    here, or none.
    """
    if not pid or pid < 0 or not _exists(pid):
        return
    threading.Thread(target=_watch, args=(pid, on_gone), name="parent-watch", daemon=True).start()


def _watch(pid: int, on_gone: Callable[[], None]) -> None:
    try:
        # Linux tells at once, also of a process that nobody waits for, whose number stays taken.
        descriptor = os.pidfd_open(pid)
    except (AttributeError, OSError):
        while _exists(pid):
            time.sleep(PARENT_CHECK_S)
    else:
        waiting = select.poll()
        waiting.register(descriptor, select.POLLIN)
        waiting.poll()
    on_gone()


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True
