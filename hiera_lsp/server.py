"""The language server: pygls, the table from method to feature, and start and end of the process."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
from typing import Any, BinaryIO, NoReturn

from lsprotocol import converters, types
from pygls.exceptions import JsonRpcInvalidParams
from pygls.lsp.server import LanguageServer

from contracts.errors import HieraError
from engine.process_tree import kill_tree
from hiera_lsp import __version__, configuration, transport
from hiera_lsp.commands import Commands
from hiera_lsp.documents import document_of
from hiera_lsp.features import code_actions, content, hover, lenses
from hiera_lsp.protocol import HieraProtocol
from hiera_lsp.publisher import Publisher
from hiera_lsp.results import Results
from hiera_lsp.session import Client, Session, results_folder
from hiera_lsp.status import Status
from hiera_lsp.written import Written

logger = logging.getLogger(__name__)
WARM_S = 0.2


class HieraServer(LanguageServer):
    """A pygls server with one session."""

    protocol: HieraProtocol

    def __init__(self) -> None:
        super().__init__(
            "hiera-lsp", __version__, protocol_cls=HieraProtocol, converter_factory=converters.get_converter
        )
        self.session = Session(results=Results(results_folder), written=Written(results_folder))
        self.publisher = Publisher(self, self.session)
        self.status = Status(self, self.session)
        self.commands = Commands(self, self.session, self.publisher, self.status)

    def report_server_error(self, error: Exception, source: Any) -> None:
        """Errors go to the log: pygls would show every mistake of a client to the user."""
        logger.error("%s: %r", getattr(source, "__name__", source), error)


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
    given = sys.argv[1:] if argv is None else argv
    port, log_file = _arguments(given) if given else (None, None)
    logging.basicConfig(
        filename=log_file, level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    server = make_server()
    gc.freeze()
    gc.enable()
    own_input, output = transport.claim_stdio() if port is None else transport.accept(port)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(server, own_input, output))
    _leave(server)
    return 1  # Not reached.


def _arguments(given: list[str]) -> tuple[int | None, str | None]:
    """The port and the log file of the command line."""
    import argparse  # Editors give no arguments, and wait for every import.

    parser = argparse.ArgumentParser(prog="hiera-lsp", description="Kernel optimisation for LSP editors.")
    parser.add_argument("--tcp", metavar="PORT", type=int, help="listen on a TCP port of this machine instead of stdio")
    parser.add_argument("--log-file", metavar="FILE", help="write the log there instead of to stderr")
    parser.add_argument("--version", action="version", version=__version__)
    parser.add_argument("--stdio", action="store_true", help="speak over stdin and stdout, as it does anyway")
    arguments = parser.parse_args(given)
    return arguments.tcp, arguments.log_file


async def _serve(server: HieraServer, own_input: BinaryIO, output: BinaryIO) -> None:
    gone = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, gone.set)
    writer = transport.Writer(output, lambda: loop.call_soon_threadsafe(gone.set))
    server.protocol.set_writer(writer)
    serving = asyncio.ensure_future(transport.serve(own_input, server.protocol.receive))
    waiting = asyncio.ensure_future(gone.wait())
    await asyncio.wait({serving, waiting}, return_when=asyncio.FIRST_COMPLETED)
    writer.close()
    # Jobs hear it by the end of their input even when we are killed; nothing is left to save.
    _leave(server)


def _leave(server: HieraServer) -> NoReturn:
    """End now, whatever thread still waits for something: 0 after a shutdown request, else 1."""
    try:
        _end_children(server)
        sys.stderr.flush()
    finally:
        os._exit(0 if server.protocol.is_shut_down else 1)


def _end_children(server: HieraServer) -> None:
    """Let the jobs end by themselves, and kill what else commands have started: the check of a machine takes long."""
    server.session.jobs.leave_all()
    kill_tree(os.getpid(), with_root=False, spared=server.session.jobs.processes)


def _lifecycle(server: HieraServer) -> None:
    session = server.session

    @server.feature(types.INITIALIZE)
    def on_initialize(params: types.InitializeParams) -> None:
        session.client = Client.from_capabilities(params.capabilities)
        configuration.begin(server, session, params)
        transport.watch_parent(params.process_id, lambda: _leave(server))

    @server.feature(types.INITIALIZED)
    async def on_initialized(_params: types.InitializedParams) -> None:
        configuration.watch(server, session)
        asyncio.get_running_loop().call_later(WARM_S, _warm)
        await configuration.pull(server, session)
        server.status.tell()

    @server.feature(types.WORKSPACE_DID_CHANGE_WATCHED_FILES)
    async def on_files(_params: types.DidChangeWatchedFilesParams) -> None:
        await configuration.pull(server, session)

    @server.feature(types.WORKSPACE_DID_CHANGE_CONFIGURATION)
    async def on_configuration(params: types.DidChangeConfigurationParams) -> None:
        await configuration.changed(server, session, params)

    @server.feature(types.WORKSPACE_DID_CHANGE_WORKSPACE_FOLDERS)
    async def on_folders(_params: types.DidChangeWorkspaceFoldersParams) -> None:
        await configuration.pull(server, session)

    @server.feature(types.SHUTDOWN)
    def on_shutdown(_params: Any = None) -> None:
        _end_children(server)


def _warm() -> None:
    """Load what the first question needs, after the client has its answer to `initialize`."""
    import contracts.codec
    import contracts.python_sites  # noqa: F401


def _documents(server: HieraServer) -> None:
    @server.feature(types.TEXT_DOCUMENT_DID_OPEN)
    def on_open(params: types.DidOpenTextDocumentParams) -> None:
        configuration.opened(server, server.session, params.text_document.uri)
        server.publisher.opened(params.text_document.uri)

    @server.feature(types.TEXT_DOCUMENT_DID_CHANGE)
    def on_change(params: types.DidChangeTextDocumentParams) -> None:
        server.publisher.changed(params.text_document.uri)

    @server.feature(types.TEXT_DOCUMENT_DID_CLOSE)
    def on_close(params: types.DidCloseTextDocumentParams) -> None:
        server.publisher.closed(params.text_document.uri)


def _features(server: HieraServer) -> None:
    session = server.session
    server.protocol.action_pages = code_actions.PAGES

    @server.feature(
        types.TEXT_DOCUMENT_CODE_ACTION,
        types.CodeActionOptions(code_action_kinds=list(code_actions.KINDS), resolve_provider=True),
    )
    def on_actions(params: types.CodeActionParams) -> list[types.CodeAction | types.Command]:
        return code_actions.code_actions(session, document_of(server, params.text_document.uri), params)

    @server.feature(types.CODE_ACTION_RESOLVE)
    def on_resolve(action: types.CodeAction) -> types.CodeAction:
        data: Any = action.data
        if not isinstance(data, dict) or not isinstance(data.get("uri"), str):
            return action
        return code_actions.resolve(session, document_of(server, data["uri"]), action)

    @server.feature(types.TEXT_DOCUMENT_HOVER)
    def on_hover(params: types.HoverParams) -> types.Hover | None:
        return hover.hover(session, document_of(server, params.text_document.uri), params)

    @server.feature(types.TEXT_DOCUMENT_CODE_LENS)
    def on_lenses(params: types.CodeLensParams) -> list[types.CodeLens]:
        return lenses.code_lenses(session, document_of(server, params.text_document.uri))

    @server.feature(types.TEXT_DOCUMENT_INLAY_HINT)
    def on_hints(params: types.InlayHintParams) -> list[types.InlayHint]:
        return lenses.inlay_hints(session, document_of(server, params.text_document.uri), params)

    @server.feature("workspace/textDocumentContent")
    async def on_content(params: Any) -> dict[str, str]:
        try:
            # Evidence is in the whole run, which a thread reads.
            return {"text": await asyncio.to_thread(content.candidate_content, str(getattr(params, "uri", "")))}
        except HieraError as error:
            raise JsonRpcInvalidParams(message=error.message()) from None
