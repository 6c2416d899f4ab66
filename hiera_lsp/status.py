"""`experimental/serverStatus`: whether the server is well and at work, for clients that show it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hiera_lsp.session import Session

if TYPE_CHECKING:
    from hiera_lsp.server import HieraServer

METHOD = "experimental/serverStatus"


class Status:
    """Tells the client when the number of jobs changes."""

    def __init__(self, server: HieraServer, session: Session) -> None:
        self._server, self._session = server, session
        self._told: int | None = None

    def tell(self) -> None:
        """Send the status, if the client wants it and it changed."""
        count = len(self._session.jobs.running)
        if not self._session.client.status or count == self._told:
            return
        self._told = count
        message = f"{count} {'job' if count == 1 else 'jobs'} at work" if count else "ready"
        self._server.protocol.notify(METHOD, {"health": "ok", "quiescent": count == 0, "message": message})
