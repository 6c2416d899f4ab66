"""What the server sends by itself: diagnostics when a result comes or goes, and refreshes of lenses."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from urllib.parse import unquote

from lsprotocol import types

from hiera_lsp.documents import document_of
from hiera_lsp.features import diagnostics
from hiera_lsp.jobs import JobEnd
from hiera_lsp.session import Session

if TYPE_CHECKING:
    from hiera_lsp.server import HieraServer

# Typing is followed at this pace: reading a large file takes longer than a keystroke.
PAUSE_S = 0.1
# Codes of problems that other settings may mend.
SET_UP = ("hiera.environment", "hiera.configuration", "hiera.agent")
# At most one refresh of lenses and hints in this time.
REFRESH_S = 0.2


class Publisher:
    """Sends diagnostics and refreshes; keeps what was sent, so that nothing is sent twice."""

    def __init__(self, server: HieraServer, session: Session) -> None:
        self._server, self._session = server, session
        self._sent: dict[str, list[types.Diagnostic]] = {}
        self._problems: dict[str, dict[str, JobEnd]] = {}
        # By the client's own spelling: one path may be spelled in several ways.
        self._open: set[str] = set()
        self._later: dict[str, asyncio.TimerHandle] = {}
        self._refresh: asyncio.TimerHandle | None = None

    def opened(self, uri: str) -> None:
        """A document is open: show what is known of it."""
        self._open.add(uri)
        self._session.results.of(uri)
        self._soon(uri)

    def publish(self, uri: str) -> None:
        """Send the document's diagnostics to everybody who has it open, if they differ from those last sent."""
        for spelled in [known for known in self._open if unquote(known) == unquote(uri)]:
            document = document_of(self._server, spelled)
            found = diagnostics.diagnostics(self._session, document)
            sites = {site.symbol: site for site in self._session.finder.sites(document)}
            for symbol, end in self._problems.get(unquote(spelled), {}).items():
                found.append(diagnostics.problem(self._session, document, sites.get(symbol), end))
            if found != self._sent.get(spelled, []):
                self._sent[spelled] = found
                self._server.text_document_publish_diagnostics(
                    types.PublishDiagnosticsParams(uri=spelled, version=document.version, diagnostics=found)
                )

    def changed(self, uri: str) -> None:
        """The text changed: problems are forgotten, results of changed classes are taken down."""
        self._problems.pop(unquote(uri), None)
        if self._sent.get(uri) or self._session.results.of(uri) or document_of(self._server, uri).is_cuda:
            self._soon(uri)

    def closed(self, uri: str) -> None:
        """The document is closed: clear it."""
        self._open.discard(uri)
        self._session.finder.forget(uri)
        self._problems.pop(unquote(uri), None)
        if (timer := self._later.pop(uri, None)) is not None:
            timer.cancel()
        if self._sent.pop(uri, None):
            self._server.text_document_publish_diagnostics(types.PublishDiagnosticsParams(uri=uri, diagnostics=[]))

    def problem(self, uri: str, symbol: str, end: JobEnd) -> None:
        """Show why a job could not be done, until the text changes."""
        self._problems.setdefault(unquote(uri), {})[symbol] = end
        self.publish(uri)

    def clear_problem(self, uri: str, symbol: str) -> None:
        """A new job begins: its old problem goes."""
        if self._problems.get(unquote(uri), {}).pop(symbol, None) is not None:
            self.publish(uri)

    def settings_changed(self) -> None:
        """What was wrong with the machine or its set-up may be right now; lenses and hints may be wanted or not."""
        for uri, problems in list(self._problems.items()):
            kept = {symbol: end for symbol, end in problems.items() if end.code not in SET_UP}
            if kept != problems:
                self._problems[uri] = kept
                self.publish(uri)
        self.refresh()

    def refresh(self) -> None:
        """Ask the client to fetch lenses and hints again, where it can."""
        if self._refresh is None and (self._session.client.lens_refresh or self._session.client.inlay_refresh):
            self._refresh = asyncio.get_running_loop().call_later(REFRESH_S, self._refresh_now)

    def _refresh_now(self) -> None:
        self._refresh = None
        if self._session.client.lens_refresh:
            self._server.workspace_code_lens_refresh(None)
        if self._session.client.inlay_refresh:
            self._server.workspace_inlay_hint_refresh(None)

    def _soon(self, uri: str) -> None:
        if uri not in self._later:
            self._later[uri] = asyncio.get_running_loop().call_later(PAUSE_S, self._now, uri)

    def _now(self, uri: str) -> None:
        self._later.pop(uri, None)
        self.publish(uri)
