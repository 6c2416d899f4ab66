"""The language server: pygls, the table from method to feature, and start and end of the process."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from lsprotocol import converters, types
from pygls.exceptions import JsonRpcInvalidParams
from pygls.lsp.server import LanguageServer

from contracts.errors import HieraError
from hiera_lsp import configuration, transport
from hiera_lsp.commands import Commands
from hiera_lsp.features import code_actions, content, hover, lenses
from hiera_lsp.protocol import HieraProtocol
from hiera_lsp.publisher import Publisher
from hiera_lsp.results import Results
from hiera_lsp.session import Client, Session, results_file

logger = logging.getLogger(__name__)


class HieraServer(LanguageServer):
    """A pygls server with one session."""

    def __init__(self) -> None:
        super().__init__(
            "hiera-lsp", _version(), protocol_cls=HieraProtocol, converter_factory=converters.get_converter
        )
        self.session = Session(results=Results(results_file()))
        self.publisher = Publisher(self, self.session)
        self.commands = Commands(self, self.session, self.publisher)


def make_server() -> HieraServer:
    """A server with every feature registered."""
    server = HieraServer()
    _lifecycle(server)
    _documents(server)
    _features(server)
    server.commands.register()
    return server


def main(argv: list[str] | None = None) -> int:
    """Serve until the client ends; 0 after a shutdown request, else 1."""
    parser = argparse.ArgumentParser(prog="hiera-lsp", description="Kernel optimisation for LSP editors.")
    parser.add_argument("--tcp", metavar="PORT", type=int, help="listen on a TCP port of this machine instead of stdio")
    parser.add_argument("--log-file", metavar="FILE", help="write the log there instead of to stderr")
    parser.add_argument("--version", action="version", version=_version())
    arguments = parser.parse_args(argv)
    logging.basicConfig(
        filename=arguments.log_file, level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    server = make_server()
    signal.signal(signal.SIGTERM, lambda *_: _leave(server))
    if arguments.tcp is not None:
        server.start_tcp("127.0.0.1", arguments.tcp)
    else:
        own_input, output = transport.claim_stdio()
        server.start_io(own_input, output)
    server.session.jobs.kill_all()
    status = 0 if server.protocol.is_shut_down else 1  # type: ignore[attr-defined]
    # A reader thread may still sit in a blocking read; nothing is left to save.
    sys.stderr.flush()
    os._exit(status)


def _leave(server: HieraServer) -> None:
    server.session.jobs.kill_all()
    os._exit(0 if server.protocol.is_shut_down else 1)  # type: ignore[attr-defined]


def _lifecycle(server: HieraServer) -> None:
    session = server.session

    @server.feature(types.INITIALIZE)
    def on_initialize(params: types.InitializeParams) -> None:
        session.client = Client.from_capabilities(params.capabilities)
        configuration.begin(server, session, params)
        transport.watch_parent(params.process_id, lambda: _leave(server))

    @server.feature(types.INITIALIZED)
    async def on_initialized(_params: types.InitializedParams) -> None:
        await configuration.pull(server, session)
        configuration.watch(server, session)

    @server.feature(types.WORKSPACE_DID_CHANGE_CONFIGURATION)
    async def on_configuration(params: types.DidChangeConfigurationParams) -> None:
        await configuration.changed(server, session, params)

    @server.feature(types.WORKSPACE_DID_CHANGE_WORKSPACE_FOLDERS)
    async def on_folders(_params: types.DidChangeWorkspaceFoldersParams) -> None:
        await configuration.pull(server, session)

    @server.feature(types.SHUTDOWN)
    def on_shutdown(_params: Any = None) -> None:
        session.jobs.kill_all()


def _documents(server: HieraServer) -> None:
    @server.feature(types.TEXT_DOCUMENT_DID_OPEN)
    def on_open(params: types.DidOpenTextDocumentParams) -> None:
        server.publisher.opened(params.text_document.uri)

    @server.feature(types.TEXT_DOCUMENT_DID_CHANGE)
    def on_change(params: types.DidChangeTextDocumentParams) -> None:
        server.publisher.changed(params.text_document.uri)

    @server.feature(types.TEXT_DOCUMENT_DID_CLOSE)
    def on_close(params: types.DidCloseTextDocumentParams) -> None:
        server.publisher.closed(params.text_document.uri)


def _features(server: HieraServer) -> None:
    session = server.session

    @server.feature(
        types.TEXT_DOCUMENT_CODE_ACTION,
        types.CodeActionOptions(code_action_kinds=list(code_actions.KINDS), resolve_provider=True),
    )
    def on_actions(params: types.CodeActionParams) -> list[types.CodeAction | types.Command]:
        return code_actions.code_actions(session, server.workspace.get_text_document(params.text_document.uri), params)

    @server.feature(types.CODE_ACTION_RESOLVE)
    def on_resolve(action: types.CodeAction) -> types.CodeAction:
        data: Any = action.data
        if not isinstance(data, dict) or "uri" not in data:
            return action
        return code_actions.resolve(session, server.workspace.get_text_document(data["uri"]), action)

    @server.feature(types.TEXT_DOCUMENT_HOVER)
    def on_hover(params: types.HoverParams) -> types.Hover | None:
        return hover.hover(session, server.workspace.get_text_document(params.text_document.uri), params)

    @server.feature(types.TEXT_DOCUMENT_CODE_LENS)
    def on_lenses(params: types.CodeLensParams) -> list[types.CodeLens]:
        return lenses.code_lenses(session, server.workspace.get_text_document(params.text_document.uri))

    @server.feature(types.TEXT_DOCUMENT_INLAY_HINT)
    def on_hints(params: types.InlayHintParams) -> list[types.InlayHint]:
        return lenses.inlay_hints(session, server.workspace.get_text_document(params.text_document.uri), params)

    @server.feature("workspace/textDocumentContent")
    def on_content(params: Any) -> dict[str, str]:
        try:
            return {"text": content.candidate_content(session, params.uri)}
        except HieraError as error:
            raise JsonRpcInvalidParams(message=error.message()) from None


def _version() -> str:
    try:
        return version("hiera")
    except PackageNotFoundError:
        return "0"
