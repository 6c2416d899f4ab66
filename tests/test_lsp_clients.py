"""The abilities of real clients, as pytest-lsp recorded them: nothing is sent that a client does not know."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_lsp
from lsprotocol import types
from pygls.capabilities import get_capability

sys.path.insert(0, str(Path(__file__).parent))
from lsp_client import ROOT, edited

CLIENTS = ["neovim@v0.6.1", "neovim@v0.7.0", "neovim@v0.8.0", "neovim@v0.9.1", "neovim@v0.10.0", "neovim@v0.11.0",
           "visual_studio_code@v1.65.2", "emacs@v29.1"]
MODULE = """\
import torch
from torch import nn
'\U0001f600'; x = 1


class Block(nn.Module):
    def forward(self, x):
        return torch.relu(x)


def get_inputs():
    return [torch.randn(4, 8)]
"""
KERNEL = """\
// hiera: arg x in float32[64]
// hiera: arg y out float32[64]
// hiera: launch grid=(1) block=(64)
__global__ void twice(const float* x, float* y) { y[threadIdx.x] = 2.0f * x[threadIdx.x]; }
"""
FASTER = KERNEL.replace("const float* x", "const float* __restrict__ x")
# A server may call none of these unless the client says that it can.
NEEDED = {
    "workspace/applyEdit": "workspace.apply_edit", "workspace/codeLens/refresh": "workspace.code_lens.refresh_support",
    "workspace/inlayHint/refresh": "workspace.inlay_hint.refresh_support", "window/showDocument": "window.show_document",
    "client/registerCapability": "workspace", "window/showMessageRequest": "workspace",
}

pytestmark = pytest.mark.filterwarnings("error::pytest_lsp.LspSpecificationWarning")


class Session:
    """One client of pytest-lsp at a real server, with what the server asked of it."""

    def __init__(self, client: pytest_lsp.LanguageClient, capabilities: types.ClientCapabilities, folder: Path) -> None:
        self.client, self.capabilities, self.folder = client, capabilities, folder
        self.asked: list[tuple[str, Any]] = []
        self.texts: dict[str, str] = {}
        self.served: types.ServerCapabilities | None = None
        answers = {"workspace/applyEdit": self.applied, "window/showDocument": lambda _: types.ShowDocumentResult(success=True)}
        for method in NEEDED:
            if method != "window/showDocument":
                client.feature(method)(self._handler(method, answers.get(method, lambda _: None)))

    def _handler(self, method: str, answer: Any) -> Any:
        def handle(params: Any) -> Any:
            self.asked.append((method, params))
            return answer(params)

        return handle

    def can(self, path: str) -> bool:
        return bool(get_capability(self.capabilities, path, False))

    async def open(self, name: str, text: str, language: str) -> str:
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        uri = path.as_uri()
        self.texts[uri] = text
        self.client.text_document_did_open(types.DidOpenTextDocumentParams(types.TextDocumentItem(uri, language, 1, text)))
        return uri

    async def command(self, name: str, uri: str, symbol: str) -> Any:
        return await self.client.workspace_execute_command_async(
            types.ExecuteCommandParams(command=name, arguments=[{"uri": uri, "symbol": symbol}]))

    async def actions(self, uri: str, place: types.Position, only: list[str] | None = None) -> Any:
        return await self.client.text_document_code_action_async(types.CodeActionParams(
            types.TextDocumentIdentifier(uri), types.Range(place, place), types.CodeActionContext(diagnostics=[], only=only)))

    async def finished(self, uri: str) -> None:
        await until(lambda: any(d.code == "hiera.memory-bound" and "still" not in d.message
                                for d in self.client.diagnostics.get(uri, ())))

    def applied(self, params: types.ApplyWorkspaceEditParams) -> types.ApplyWorkspaceEditResult:
        self.apply(params.edit)
        assert params.metadata is None or self.can("workspace.workspace_edit.metadata_support")
        return types.ApplyWorkspaceEditResult(applied=True)

    def apply(self, edit: types.WorkspaceEdit) -> None:
        """Apply an edit to open texts, refusing everything that this client cannot do."""
        kinds = get_capability(self.capabilities, "workspace.workspace_edit.resource_operations", None) or []
        assert edit.change_annotations is None or self.can("workspace.workspace_edit.change_annotation_support")
        if edit.document_changes is not None:
            # Neovim 0.11 takes document changes without saying so, and says that it creates files.
            assert self.can("workspace.workspace_edit.document_changes") or kinds
        converter = self.client.protocol._converter
        plain = [(uri, converter.unstructure(edits)) for uri, edits in (edit.changes or {}).items()]
        for change in edit.document_changes or ():
            if not isinstance(change, types.TextDocumentEdit):
                assert change.kind in kinds
                continue
            plain.append((change.text_document.uri, converter.unstructure(change.edits)))
        for uri, edits in plain:
            if uri in self.texts:
                self.texts[uri] = edited(self.texts[uri], edits, str(self.encoding))

    @property
    def encoding(self) -> str:
        assert self.served is not None
        return str(getattr(self.served.position_encoding, "value", self.served.position_encoding) or "utf-16")


async def until(condition: Any, limit_s: float = 30) -> None:
    async with asyncio.timeout(limit_s):
        while not condition():  # noqa: ASYNC110 - pytest-lsp wakes nobody.
            await asyncio.sleep(0.05)


@pytest.fixture(params=CLIENTS)
async def session(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Session]:
    capabilities = pytest_lsp.client_capabilities(request.param)
    client = pytest_lsp.make_test_lsp_client()
    made = Session(client, capabilities, tmp_path)
    await client.start_io(sys.executable, str(ROOT / "tests" / "fake_server.py"), cwd=ROOT, env={
        **os.environ, "HIERA_CACHE": str(tmp_path / "cache"), "FAKE_SOURCE": FASTER})
    reply = await client.initialize_session(types.InitializeParams(
        capabilities=capabilities, workspace_folders=[types.WorkspaceFolder(tmp_path.as_uri(), "folder")],
        initialization_options={"preset": "quick"}))
    made.served = reply.capabilities
    yield made
    server = client._server
    await client.shutdown_session()
    await client.stop()
    assert client.error is None
    assert server.returncode == 0


async def test_the_story_with_every_clients_abilities(session: Session) -> None:
    uri = await session.open("model.py", MODULE.replace("x = 1", "x = [1"), "python")
    kernel = await session.open("twice.cu", KERNEL, "cuda-cpp")
    # The bracket after the emoji closes only where it is put by this client's way of counting.
    column = {"utf-8": 4, "utf-16": 2, "utf-32": 1}[session.encoding] + 10
    end = types.Position(2, column)
    session.client.text_document_did_change(types.DidChangeTextDocumentParams(
        types.VersionedTextDocumentIdentifier(uri=uri, version=2),
        [types.TextDocumentContentChangePartial(types.Range(end, end), "]")]))
    (session.folder / "model.py").write_text(MODULE.replace("x = 1", "x = [1]"), encoding="utf-8")
    place = types.Position(5, 7)
    actions = await session.actions(uri, place)
    assert actions[0].title == "Optimize kernel: Block"
    assert getattr(actions[0], "disabled", None) is None

    await session.command("hiera.optimize", uri, "Block")
    await session.command("hiera.optimize", kernel, "twice")
    await session.finished(uri)
    await session.finished(kernel)
    hover = await session.client.text_document_hover_async(types.HoverParams(types.TextDocumentIdentifier(uri), place))
    formats = get_capability(session.capabilities, "text_document.hover.content_format", None) or ["markdown"]
    assert hover.contents.kind == formats[0]
    assert "1.60x [1.55, 1.65] over eager" in hover.contents.value
    (diagnostic,) = session.client.diagnostics[uri]
    assert diagnostic.related_information is None or session.can("text_document.publish_diagnostics.related_information")
    assert diagnostic.code_description is None or session.can("text_document.publish_diagnostics.code_description_support")
    reports = session.client.progress_reports.get("hiera-job-1", [])
    if session.can("window.work_done_progress"):
        assert [report.kind for report in reports[:1] + reports[-1:]] == ["begin", "end"]
        assert any("direction M" in (report.message or "") for report in reports)
    else:
        assert reports == []
        assert any("HIERA Block: 1.60x" in said.message for said in session.client.log_messages)
    # A question is the way out for clients without lenses only.
    questions = [params for method, params in session.asked if method == "window/showMessageRequest"]
    assert bool(questions) == (not session.can("text_document.code_lens"))

    (accept,) = await session.actions(kernel, types.Position(3, 18), only=["refactor.rewrite.hiera.accept"])
    assert accept.title.startswith("Accept kernel c5")
    assert getattr(accept, "tags", None) is None
    assert getattr(accept, "disabled", None) is None
    resolves = get_capability(session.capabilities, "text_document.code_action.resolve_support.properties", None) or []
    if "edit" in resolves:
        accept = await session.client.code_action_resolve_async(accept)
    if isinstance(accept, types.CodeAction) and accept.edit is not None:
        session.apply(accept.edit)
    else:
        await session.command("hiera.accept", kernel, "twice")
    assert session.texts[kernel] == FASTER
    session.client.text_document_did_change(types.DidChangeTextDocumentParams(
        types.VersionedTextDocumentIdentifier(uri=kernel, version=2), [types.TextDocumentContentChangeWholeDocument(FASTER)]))
    await until(lambda: not session.client.diagnostics[kernel])
    assert (await session.command("hiera.result", kernel, "twice"))["standing"] == "accepted"
    assert all(session.can(NEEDED[method]) for method, _ in session.asked)
