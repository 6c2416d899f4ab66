"""What the server sends by itself: diagnostics when a result comes or goes, and refreshes of lenses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lsprotocol import types
from pygls.workspace import TextDocument

from hiera_lsp.features import diagnostics
from hiera_lsp.session import Session

if TYPE_CHECKING:
    from hiera_lsp.server import HieraServer


class Publisher:
    """Sends diagnostics and refreshes; keeps what was sent, so that nothing is sent twice."""

    def __init__(self, server: HieraServer, session: Session) -> None:
        self._server, self._session = server, session
        self._sent: dict[str, list[types.Diagnostic]] = {}
        self._problems: dict[str, list[tuple[str, types.Diagnostic]]] = {}
        # By the client's own spelling: pygls keeps its documents under another.
        self._open: set[str] = set()

    def opened(self, uri: str) -> None:
        """A document is open: show what is known of it."""
        self._open.add(uri)
        self.publish(uri)

    def publish(self, uri: str) -> None:
        """Send the document's diagnostics, if they differ from those last sent."""
        if uri not in self._open:
            return
        document = self._server.workspace.get_text_document(uri)
        found = diagnostics.diagnostics(self._session, document)
        found += [problem for _, problem in self._problems.get(uri, ())]
        if found != self._sent.get(uri, []):
            self._sent[uri] = found
            self._send(document, found)

    def changed(self, uri: str) -> None:
        """The text changed: problems are forgotten, results of changed classes are taken down."""
        self._problems.pop(uri, None)
        if self._sent.get(uri) or self._session.results.of(uri):
            self.publish(uri)

    def closed(self, uri: str) -> None:
        """The document is closed: clear it."""
        self._open.discard(uri)
        self._session.finder.forget(uri)
        self._problems.pop(uri, None)
        if self._sent.pop(uri, None):
            self._server.text_document_publish_diagnostics(types.PublishDiagnosticsParams(uri=uri, diagnostics=[]))

    def problem(self, uri: str, symbol: str, message: str, hint: str, line: int | None) -> None:
        """Show why a job could not be done, until the text changes."""
        if uri not in self._open:
            return
        document = self._server.workspace.get_text_document(uri)
        site = next((s for s in self._session.finder.sites(uri, document.source) if s.symbol == symbol), None)
        found = diagnostics.problem(document, site, message, hint, line)
        self._problems[uri] = [entry for entry in self._problems.get(uri, ()) if entry[0] != symbol] + [(symbol, found)]
        self.publish(uri)

    def clear_problem(self, uri: str, symbol: str) -> None:
        """A new job begins: its old problem goes."""
        self._problems[uri] = [entry for entry in self._problems.get(uri, ()) if entry[0] != symbol]
        self.publish(uri)

    def refresh(self) -> None:
        """Ask the client to fetch lenses and hints again, where it can."""
        if self._session.client.lens_refresh:
            self._server.workspace_code_lens_refresh(None)
        if self._session.client.inlay_refresh:
            self._server.workspace_inlay_hint_refresh(None)

    def _send(self, document: TextDocument, found: list[types.Diagnostic]) -> None:
        self._server.text_document_publish_diagnostics(
            types.PublishDiagnosticsParams(uri=document.uri, version=document.version, diagnostics=found)
        )
