"""A small HTTP/1.1 server for this machine only: whole answers, chunked answers, broken ones. Standard library."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus

LONGEST_HEAD = 64 << 10
LARGEST_BODY = 64 << 20


@dataclass(frozen=True, slots=True)
class Request:
    """One request; header names are lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


class Answer:
    """Writes the answer of one request. Every connection serves one request."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self.started = False

    async def whole(self, status: int, body: bytes, *, kind: str = "application/json",
                    headers: Mapping[str, str] | None = None) -> None:
        """The whole answer at once."""
        self._head(status, {"Content-Type": kind, "Content-Length": str(len(body)), **(headers or {})})
        self._writer.write(body)
        await self._writer.drain()

    async def start(self, kind: str) -> None:
        """Begin an answer of unknown length."""
        self._head(200, {"Content-Type": kind, "Transfer-Encoding": "chunked", "Cache-Control": "no-cache"})
        await self._writer.drain()

    async def chunk(self, data: bytes) -> None:
        """Send a part."""
        self._writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        await self._writer.drain()

    async def end(self) -> None:
        """End an answer of unknown length."""
        self._writer.write(b"0\r\n\r\n")
        await self._writer.drain()

    def abort(self) -> None:
        """Break the connection."""
        self._writer.transport.abort()

    def _head(self, status: int, headers: Mapping[str, str]) -> None:
        self.started = True
        try:
            phrase = HTTPStatus(status).phrase
        except ValueError:
            phrase = "Unknown"
        lines = [f"HTTP/1.1 {status} {phrase}", *(f"{name}: {value}" for name, value in headers.items()),
                 "Connection: close"]
        self._writer.write("\r\n".join(lines).encode("latin-1", "replace") + b"\r\n\r\n")


Handler = Callable[[Request, Answer], Awaitable[None]]


async def serve(handler: Handler, port: int = 0) -> asyncio.Server:
    """Serve on the loopback address; port 0 takes a free one (see `port_of`)."""

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answer = Answer(writer)
        try:
            request = await _read(reader)
            if request is not None:
                await handler(request, answer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
            pass  # The other side has gone or speaks no HTTP.
        finally:
            with contextlib.suppress(ConnectionError, RuntimeError):
                writer.close()

    return await asyncio.start_server(connection, "127.0.0.1", port, limit=LONGEST_HEAD)


def port_of(server: asyncio.Server) -> int:
    """The port a server listens on."""
    return int(server.sockets[0].getsockname()[1])


async def _read(reader: asyncio.StreamReader) -> Request | None:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.strip().split("\r\n")
    method, path, _version = first.split(" ", 2)
    headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    size = int(headers.get("content-length", "0"))
    if not 0 <= size <= LARGEST_BODY:
        return None
    return Request(method, path.partition("?")[0], headers, await reader.readexactly(size) if size else b"")
