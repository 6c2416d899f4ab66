"""pygls, made fit for a server whose work outlives its requests.

Each override names the pygls 2.1 behaviour that it mends.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from lsprotocol import types
from pygls.protocol import LanguageServerProtocol, lsp_method

CANDIDATE_SCHEME = "hiera-candidate"


class HieraProtocol(LanguageServerProtocol):
    """The protocol with its edges mended."""

    @lsp_method(types.INITIALIZE)
    def lsp_initialize(self, params: types.InitializeParams) -> Generator[Any, Any, types.InitializeResult]:
        """Advertise virtual documents, which pygls does not know yet."""
        result = yield from super().lsp_initialize(params)
        capabilities = result.capabilities
        if capabilities.workspace is None:
            capabilities.workspace = types.WorkspaceOptions()
        capabilities.workspace.text_document_content = types.TextDocumentContentOptions(schemes=[CANDIDATE_SCHEME])
        return result

    @lsp_method(types.SHUTDOWN)
    def lsp_shutdown(self, *args: Any) -> Generator[Any, Any, None]:
        """Cancel requests in flight: pygls walks a dictionary that the cancellation changes."""
        handler = self.fm.features.get(types.SHUTDOWN)
        if handler is not None:
            yield handler, args, None
        current = self.msg_id
        for number, future in list(self._request_futures.items()):
            if number != current and not future.done():
                future.cancel()
        self._shutdown = True

    def _handle_response(self, msg_id: Any, result: Any = None, error: Any = None) -> None:
        """Drop the answer to a request whose task was cancelled: pygls shows it to the user as an error."""
        future = self._request_futures.get(msg_id)
        if future is not None and future.cancelled():
            self._request_futures.pop(msg_id, None)
            return
        super()._handle_response(msg_id, result, error)

    @property
    def is_shut_down(self) -> bool:
        """True after a shutdown request."""
        return bool(self._shutdown)
