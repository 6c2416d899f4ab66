"""pygls, made fit for a server whose work outlives its requests and whose clients make mistakes.

Each override names the pygls 2.1 behaviour that it mends.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Generator
from concurrent.futures import Future
from typing import Any

from lsprotocol import types
from pygls.exceptions import JsonRpcException
from pygls.protocol import LanguageServerProtocol, lsp_method

from hiera_lsp.documents import keep_documents

CANDIDATE_SCHEME = "hiera-candidate"
TRACE_CHARACTERS = 2000
logger = logging.getLogger(__name__)


class HieraProtocol(LanguageServerProtocol):
    """The protocol with its edges mended.

    Attributes:
        action_pages: Where kinds of code actions are explained, for clients that show it.
    """

    action_pages: tuple[types.CodeActionKindDocumentation, ...] = ()

    def receive(self, body: bytes) -> bool:
        """Take one message; False ends the server.

        pygls leaves requests without an answer that it cannot read, shows the client's mistakes to the user as
        errors, and ends by an exception in the middle of a handler.
        """
        try:
            data = json.loads(body)
        except (ValueError, RecursionError):
            self._refuse(None, types.ErrorCodes.ParseError, "this is no JSON")
            return True
        if not isinstance(data, dict) or data.get("jsonrpc") != self.VERSION:
            self._refuse(None, types.ErrorCodes.InvalidRequest, "this is no JSON-RPC 2.0 message")
            return True
        number, method = data.get("id"), data.get("method")
        if method == types.EXIT:
            return False
        if not isinstance(number, (int, str, type(None))) or isinstance(number, bool):
            self._refuse(None, types.ErrorCodes.InvalidRequest, "the id is no number or text")
            return True
        if method is not None and self._out_of_order(method, number):
            return True
        begun = time.perf_counter()
        try:
            message = self.structure_message(data)
            if not hasattr(message, "jsonrpc"):
                raise JsonRpcException(message="this is no message")
            self.handle_message(message)
        except Exception as error:  # noqa: BLE001 - whatever a client sends, the next message is served.
            logger.warning("a message was refused: %s %r", method, error)
            if number is not None and isinstance(method, str):
                self._refuse(number, types.ErrorCodes.InvalidParams, f"the parameters of {method} are malformed")
        if self.trace != types.TraceValue.Off and method is not None and not method.startswith("$/"):
            self.log_trace(f"{method} was handled in {1000 * (time.perf_counter() - begun):.1f} ms", _shown(data))
        return True

    def log_trace(self, message: str, verbose: str = "") -> None:
        """Tell a client that has asked for it by `$/setTrace` what the server does; pygls never does."""
        if self.trace == types.TraceValue.Off or self._shutdown:
            return
        more = verbose if self.trace == types.TraceValue.Verbose and verbose else None
        self.notify(types.LOG_TRACE, types.LogTraceParams(message=message, verbose=more))

    @lsp_method(types.INITIALIZE)
    def lsp_initialize(self, params: types.InitializeParams) -> Generator[Any, Any, types.InitializeResult]:
        """Hold our documents, and advertise what pygls does not know yet: virtual documents, pages about actions."""
        inner = super().lsp_initialize(params)
        call = next(inner)
        keep_documents(self.workspace)
        self.trace = params.trace or types.TraceValue.Off
        result = None
        while result is None:
            answer = yield call
            try:
                call = inner.send(answer)
            except StopIteration as end:
                result = end.value
        capabilities = result.capabilities
        if capabilities.workspace is None:
            capabilities.workspace = types.WorkspaceOptions()
        offered, taken = capabilities.code_action_provider, params.capabilities.text_document
        if isinstance(offered, types.CodeActionOptions) and self.action_pages and taken and taken.code_action:
            offered.documentation = self.action_pages if taken.code_action.documentation_support else None
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

    @property
    def is_shut_down(self) -> bool:
        """True after a shutdown request."""
        return bool(self._shutdown)

    def _execute_handler(self, msg_id: Any, handler: Any, callback: Any, args: Any = None, kwargs: Any = None) -> None:
        """Forget what is done: pygls keeps the future of every notification for ever."""

        def forget(future: Future[Any]) -> None:
            self._request_futures.pop(msg_id, None)
            callback(future)

        super()._execute_handler(msg_id, handler, forget, args, kwargs)

    def _handle_response(self, msg_id: Any, result: Any = None, error: Any = None) -> None:
        """Drop the answer to a request whose task was cancelled: pygls shows it to the user as an error."""
        future = self._request_futures.get(msg_id)
        if future is not None and future.done():
            self._request_futures.pop(msg_id, None)
            return
        super()._handle_response(msg_id, result, error)

    def _send_handler_result(self, future: Future[Any], *, msg_id: Any) -> None:
        """A refusal is an answer, not an accident: pygls logs a traceback and shows it a second time."""
        error = None if future.cancelled() else future.exception()
        if isinstance(error, JsonRpcException):
            self._request_futures.pop(msg_id, None)
            self._result_types.pop(msg_id, None)
            self._send_response(msg_id, error=error.to_response_error())
            return
        super()._send_handler_result(future, msg_id=msg_id)

    def _out_of_order(self, method: Any, number: Any) -> bool:
        """True when a message came at a time when it makes no sense; a request is told so."""
        if not isinstance(method, str):
            self._refuse(number, types.ErrorCodes.InvalidRequest, "the method is no text")
        elif method == types.INITIALIZE and number is not None and self._workspace is None:
            return False
        elif method == types.INITIALIZE:
            self._refuse(number, types.ErrorCodes.InvalidRequest, "initialize is a request, and comes once")
        elif self._workspace is None:
            self._refuse(number, types.ErrorCodes.ServerNotInitialized, "the server is not initialized")
        elif self._shutdown:
            self._refuse(number, types.ErrorCodes.InvalidRequest, "the server is shut down")
        else:
            return False
        return True

    def _refuse(self, number: Any, code: types.ErrorCodes, message: str) -> None:
        """Answer with an error; a notification gets no answer, and what has no id is only logged."""
        if number is None:
            logger.warning("a message was dropped: %s", message)
            return
        error = {"code": code.value, "message": message}
        self._send_data({"jsonrpc": self.VERSION, "id": number, "error": error})


def _shown(data: dict[str, Any]) -> str:
    """A message's parameters for a verbose trace: short, and without texts and secrets."""
    params = data.get("params")
    if not isinstance(params, dict) or "secret" in str(params.get("command")):
        return ""
    kept = {key: value for key, value in params.items() if key not in ("contentChanges", "settings")}
    if isinstance(kept.get("textDocument"), dict):
        kept["textDocument"] = {key: value for key, value in kept["textDocument"].items() if key != "text"}
    return json.dumps(kept)[:TRACE_CHARACTERS]
