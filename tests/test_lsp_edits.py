"""Edits in clients of several kinds: what an accepted kernel does to the text, and that one undo takes it all back."""

from __future__ import annotations

import asyncio
import copy
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from pygls.workspace import PositionCodec

sys.path.insert(0, str(Path(__file__).parent))
from lsp_client import FULL, Client, LspError, edited
from test_guarded_kernel import CONTRACT, MODULES
from test_lsp_server import FASTER, KERNEL, store_result, summary

from contracts import codec
from contracts.cuda_adaptor import MARK
from contracts.demo import torch_demo
from contracts.errors import ConfigError
from hiera_lsp.command_results import ResultCommands
from hiera_lsp.documents import Document
from hiera_lsp.features import edits
from hiera_lsp.session import Session
from hiera_lsp.written import Written

VSCODE = FULL
NEOVIM = {  # Neovim 0.11: no annotations, no documentChanges flag, utf-8 first.
    "workspace": {"applyEdit": True, "configuration": True, "workspaceEdit": {"resourceOperations": ["rename", "create", "delete"]},
                  "codeLens": {"refreshSupport": True}},
    "textDocument": {"codeAction": {"dataSupport": True, "isPreferredSupport": True, "resolveSupport": {"properties": ["edit", "command"]},
                                    "codeActionLiteralSupport": {"codeActionKind": {"valueSet": [""]}}},
                     "hover": {"contentFormat": ["markdown", "plaintext"]}, "codeLens": {}, "publishDiagnostics": {}},
    "window": {"workDoneProgress": True, "showDocument": {"support": True}},
    "general": {"positionEncodings": ["utf-8", "utf-16", "utf-32"]},
}
EGLOT = {  # eglot 1.9: no resource operations, no progress, no resolve, plain text first.
    "workspace": {"applyEdit": True, "workspaceEdit": {"documentChanges": True}, "configuration": True},
    "textDocument": {"codeAction": {"codeActionLiteralSupport": {"codeActionKind": {"valueSet": ["quickfix", "refactor"]}}},
                     "hover": {"contentFormat": ["plaintext"]}, "publishDiagnostics": {}},
    "window": {}, "general": {"positionEncodings": ["utf-16"]},
}
CLIENTS = {"vscode": VSCODE, "neovim": NEOVIM, "eglot": EGLOT}
MODULE = """\
'''A module.'''
from __future__ import annotations
import torch
from torch import nn


@torch.no_grad()
def other(): ...


class Block(nn.Module):
    def __init__(self, alpha: float = 0.5):
        super().__init__()
        self.norm = nn.LayerNorm(8, bias=False)
        self.alpha = alpha

    def forward(self, x, y=None):
        return torch.relu(self.norm(x)) * self.alpha


def get_inputs():
    return [torch.randn(4, 8)]
"""
LINE = 10


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Any]:
    clients: list[Client] = []

    async def begin(path: Path, capabilities: dict[str, Any] = FULL, language: str = "python", **how: Any) -> tuple[Client, str]:
        client = await Client.start(cache=tmp_path / "cache", **how)
        clients.append(client)
        await client.initialize(capabilities, folder=path.parent)
        return client, client.open(path, language)

    yield begin
    for client in clients:
        await client.kill()


def run_folder(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "runs" / "run-1"


def cu_file(tmp_path: Path, form: str) -> tuple[Path, str]:
    text = {"plain": KERNEL, "crlf": KERNEL.replace("\n", "\r\n"), "bom": "\ufeff" + KERNEL, "no end": KERNEL.rstrip("\n"),
            "bom crlf no end": "\ufeff" + KERNEL.rstrip("\n").replace("\n", "\r\n"),
            "form feed": KERNEL.replace("// my file\n", "// my\x0c \u2028file \U0001f600\n")}[form]
    path = tmp_path / "twice.cu"
    path.write_bytes(text.encode())
    faster = FASTER.replace("// my file\n", "// my\x0c \u2028file \U0001f600\n") if form == "form feed" else FASTER
    # As the store keeps it.
    faster = f"{faster.rstrip()}\n{MARK}\n#include <torch/extension.h>\n"
    store_result(tmp_path / "cache", path.as_uri(), text, "twice", summary(run_folder(tmp_path), faster, "twice"))
    return path, text


def module_file(tmp_path: Path, text: str = MODULE) -> Path:
    path = tmp_path / "project" / "model.py"
    path.parent.mkdir()
    path.write_bytes(text.encode())
    found = replace(summary(run_folder(tmp_path), FASTER, "block"), sm="9.0")
    contract = run_folder(tmp_path) / "contract"
    (contract / "contract.json").write_text(json.dumps(codec.to_data(CONTRACT)))
    (contract / "params_semantics.json").write_text(json.dumps({"modules": MODULES}))
    (contract / "torch_demo.py").write_text(torch_demo(CONTRACT, "x, y=None"))
    store_result(tmp_path / "cache", path.as_uri(), text, "Block", found)
    return path


async def standing(client: Client, uri: str, symbol: str) -> str:
    return (await client.command("hiera.result", uri=uri, symbol=symbol))["standing"]


@pytest.mark.parametrize("form", ["plain", "crlf", "bom", "no end", "bom crlf no end", "form feed"])
@pytest.mark.parametrize("late", [False, True])
async def test_accepting_a_cu_file_and_taking_it_back(tmp_path: Path, start, form: str, late: bool) -> None:
    path, text = cu_file(tmp_path, form)
    client, uri = await start(path, NEOVIM if late else VSCODE, "cuda-cpp")
    client.echo_late = late
    await client.wait_for(lambda: client.diagnostics.get(uri))

    assert (await client.command("hiera.accept", uri=uri, symbol="twice"))["applied"] is True
    await client.wait_for(lambda: client.diagnostics.get(uri) == [])
    assert await standing(client, uri, "twice") == "accepted"
    assert "__restrict__" in client.texts[uri]
    assert client.texts[uri].startswith("\ufeff") == text.startswith("\ufeff")
    assert ("\r\n" in client.texts[uri]) == ("\r\n" in text)
    assert client.texts[uri].endswith("\n") == text.endswith("\n")
    assert MARK not in client.texts[uri]
    titles = [a["title"] for a in await client.actions(uri, 5)]
    assert "Re-verify kernel" not in titles
    assert not any(title.startswith("Accept") for title in titles)

    client.undo(uri)
    assert client.texts[uri].encode() == path.read_bytes()
    await client.wait_for(lambda: client.diagnostics.get(uri))
    assert await standing(client, uri, "twice") == "offered"
    client.change(uri, client.texts[uri] + "// more\n")
    assert await standing(client, uri, "twice") == "stale"


async def test_a_client_that_refuses_the_edit_keeps_the_offer(tmp_path: Path, start) -> None:
    path, _ = cu_file(tmp_path, "plain")
    client, uri = await start(path, VSCODE, "cuda-cpp")
    client.refuse_edits = True
    assert (await client.command("hiera.accept", uri=uri, symbol="twice"))["applied"] is False
    assert await standing(client, uri, "twice") == "offered"


async def test_a_resolved_action_needs_no_word_of_the_client_afterwards(tmp_path: Path, start) -> None:
    path, _ = cu_file(tmp_path, "crlf")
    client, uri = await start(path, VSCODE, "cuda-cpp")
    (accept,) = [a for a in await client.actions(uri, 5) if a["kind"] == "refactor.rewrite.hiera.accept"]
    edit = (await client.request("codeAction/resolve", accept))["edit"]
    for changed, text in client.apply(edit).items():
        client.change(changed, text)
    assert await standing(client, uri, "twice") == "accepted"


@pytest.mark.parametrize("name", list(CLIENTS))
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
async def test_using_the_kernel_is_two_lines_and_one_undo(tmp_path: Path, start, name: str, newline: str) -> None:
    text = MODULE.replace("\n", newline)
    path = module_file(tmp_path, text)
    client, uri = await start(path, CLIENTS[name])
    await client.wait_for(lambda: client.diagnostics.get(uri))
    action = next(a for a in await client.actions(uri, LINE) if a["title"] == "Use the kernel in this module")
    if name != "eglot":
        action = await client.request("codeAction/resolve", action)
    if "edit" in action:
        for changed, new in client.apply(action["edit"]).items():
            client.change(changed, new)
    await client.request("workspace/executeCommand", {
        "command": action["command"]["command"], "arguments": action["command"]["arguments"]})

    expected = MODULE.splitlines()
    expected.insert(4, "from hiera_kernels.block.kernel import accelerate as accelerate_block")
    expected.insert(LINE + 1, "@accelerate_block")
    assert client.texts[uri] == newline.join([*expected, ""])
    assert await standing(client, uri, "Block") == "accepted"
    await client.wait_for(lambda: client.diagnostics.get(uri) == [])
    folder = path.parent / "hiera_kernels" / "block"
    if name == "eglot":
        written = {p.name: p.read_text() for p in folder.iterdir()}
    else:
        written = {u.rsplit("/", 1)[1]: t for u, t in client.created.items()}
        assert not folder.exists()
    assert set(written) == {"kernel.py", "torch_demo.py", "cpp_source.cpp", "groundtruth.py", "params_semantics.json", "cuda_source.cu"}
    assert "def accelerate(_target):" in written["kernel.py"]
    assert "CAPABILITY = (9, 0)" in written["kernel.py"]
    compile(written["kernel.py"], "kernel.py", "exec")

    client.undo(uri)
    assert client.texts[uri].encode() == path.read_bytes()
    assert await standing(client, uri, "Block") == "offered"


@pytest.mark.parametrize("name", list(CLIENTS))
async def test_a_use_that_was_undone_does_not_stand_in_the_way_of_accepting(tmp_path: Path, start, name: str) -> None:
    path = module_file(tmp_path)
    client, uri = await start(path, CLIENTS[name])
    await client.command("hiera.use", uri=uri, symbol="Block")
    (used,) = await client.command("hiera.sites", uri=uri)
    client.undo(uri)
    (undone,) = await client.command("hiera.sites", uri=uri)
    client.created.clear()
    await client.command("hiera.accept", uri=uri, symbol="Block")
    lenses = await client.request("textDocument/codeLens", {"textDocument": {"uri": uri}})

    assert (used["standing"], used["used"]) == ("accepted", True)
    assert (undone["standing"], undone["used"]) == ("offered", False)
    assert [lens["command"]["command"] for lens in lenses] == ["hiera.explain", "hiera.use"]


@pytest.mark.parametrize("name", list(CLIENTS))
async def test_what_the_user_made_of_an_accepted_kernel_is_kept(tmp_path: Path, start, name: str) -> None:
    path = module_file(tmp_path)
    folder = path.parent / "hiera_kernels" / "block"
    client, uri = await start(path, CLIENTS[name])

    async def accept() -> dict[str, str]:
        await client.command("hiera.accept", uri=uri, symbol="Block")
        for created, text in client.created.items():
            file = Path(unquote(created.removeprefix("file://")))
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return {file.name: file.read_text() for file in folder.iterdir()}

    def change(mine: str) -> None:
        (folder / "cuda_source.cu").write_text(mine)
        if name != "eglot":
            client.created[(folder / "cuda_source.cu").as_uri()] = mine

    offered = await accept()
    kernel = offered["cuda_source.cu"]
    assert set(offered) == set(edits.FILES)
    change(kernel.replace("\n", "\r\n") + "\r\n")  # As an editor may save it.
    assert set(await accept()) == set(edits.FILES)
    change(kernel + "// mine\n")
    kept = await accept()
    assert kept == {**offered, "cuda_source.kept.cu": kernel + "// mine\n"}
    change(kernel + "// mine\n")
    assert await accept() == kept
    change(kernel + "// mine again\n")
    assert await accept() == {**kept, "cuda_source.kept-2.cu": kernel + "// mine again\n"}
    assert await accept() == {**kept, "cuda_source.kept-2.cu": kernel + "// mine again\n"}


async def test_a_file_that_is_no_text_is_not_replaced(tmp_path: Path, start) -> None:
    path = module_file(tmp_path)
    folder = path.parent / "hiera_kernels" / "block"
    client, uri = await start(path, EGLOT)
    await client.command("hiera.accept", uri=uri, symbol="Block")
    (folder / "cuda_source.cu").write_bytes(b"// caf\xe9\n")
    with pytest.raises(LspError, match=r"not UTF-8 text and would be replaced.*move it away"):
        await client.command("hiera.accept", uri=uri, symbol="Block")
    assert (folder / "cuda_source.cu").read_bytes() == b"// caf\xe9\n"


def test_what_was_written_is_known_after_a_restart(tmp_path: Path) -> None:
    Written(lambda: tmp_path).add(["one\n", "two"])
    (tmp_path / "a.cu").write_text("two\n")
    (tmp_path / "b.cu").write_text("three\n")
    assert Written(lambda: tmp_path).kept(tmp_path, {"a.cu": "new", "b.cu": "new"}) == {"b.kept.cu": "three\n"}


async def test_listing_whole_actions_changes_nothing(tmp_path: Path, start) -> None:
    """A client that cannot resolve gets its actions whole, and may take none of them."""
    whole = copy.deepcopy(FULL)
    del whole["textDocument"]["codeAction"]["resolveSupport"]
    path = module_file(tmp_path)
    client, uri = await start(path, whole)
    await client.command("hiera.accept", uri=uri, symbol="Block")
    actions = await client.actions(uri, LINE)

    assert await standing(client, uri, "Block") == "accepted"
    assert next(a for a in actions if a["title"].startswith("Use"))["command"]["command"] == "hiera.use"
    whole["workspace"]["applyEdit"] = False
    client, uri = await start(path, whole)
    assert "edit" in next(a for a in await client.actions(uri, LINE) if a["title"].startswith("Use"))


def test_a_disk_that_gets_full_leaves_a_whole_kernel_in_a_folder_that_is_ours(tmp_path: Path, monkeypatch) -> None:
    write, folder = Path.write_text, tmp_path / "block"
    commands = ResultCommands(None, Session(), None)
    files = dict.fromkeys(edits.FILES, "old")

    def full(path: Path, text: str, **how: Any) -> int:
        if "cpp_source" in path.name:
            write(path, text[:1], **how)
            raise OSError(28, "No space left on device")
        return write(path, text, **how)

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(ConfigError, match="No space left"):
        commands._write(folder, files)
    assert edits.is_ours(folder)
    monkeypatch.undo()
    commands._write(folder, files)
    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(ConfigError, match="No space left"):
        commands._write(folder, dict.fromkeys(edits.FILES, "new"))
    assert (folder / "cpp_source.cpp").read_text() == "old"


CHECKS = """
import copy, pickle, torch, model
from torch import nn
block, x = model.Block(), torch.randn(4, 8)
assert list(block.state_dict()) == ["norm.weight"], list(block.state_dict())
plain = torch.relu(block.norm(x)) * 0.5
for one in (block, copy.deepcopy(block), pickle.loads(pickle.dumps(block))):
    torch.testing.assert_close(one(x), plain)
torch.testing.assert_close(block.double()(x.double()).float(), plain)
block.float()
compiled = torch.compile(block, fullgraph=True, backend="eager")
torch.testing.assert_close(compiled(x), plain)
compiled(x).sum().backward()
assert block.norm.weight.grad is not None
assert issubclass(model.Block, nn.Module) and model.Block.__module__ == "model"
print("fine")
"""


@pytest.mark.slow
async def test_the_edited_module_is_still_the_users_module(tmp_path: Path, start) -> None:
    pytest.importorskip("torch")
    path = module_file(tmp_path)
    client, uri = await start(path)
    await client.command("hiera.use", uri=uri, symbol="Block")
    path.write_text(client.texts[uri])
    for created, text in client.created.items():
        file = Path(unquote(created.removeprefix("file://")))
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    command = [sys.executable, "-c", CHECKS]
    done = await asyncio.to_thread(subprocess.run, command, cwd=path.parent, capture_output=True, text=True, timeout=110)
    assert done.stdout == "fine\n", done.stderr


async def test_a_kernel_is_not_used_where_the_module_cannot_import_it(tmp_path: Path, start) -> None:
    path = module_file(tmp_path)
    client, uri = await start(path, settings={"outputFolder": "../else where"})
    action = next(a for a in await client.actions(uri, LINE) if a["title"] == "Use the kernel in this module")
    assert action["disabled"]["reason"].startswith("the module cannot import from")
    with pytest.raises(LspError, match="cannot import from"):
        await client.command("hiera.use", uri=uri, symbol="Block")


async def test_a_package_imports_from_where_it_begins(tmp_path: Path, start) -> None:
    path = module_file(tmp_path)
    (path.parent / "__init__.py").write_text("")
    client, uri = await start(path)
    await client.command("hiera.use", uri=uri, symbol="Block")
    assert {u.rsplit("/", 3)[0] for u in client.created} == {tmp_path.as_uri()}
    assert "from hiera_kernels.block.kernel import" in client.texts[uri]


async def test_what_is_not_faster_is_not_offered(tmp_path: Path, start) -> None:
    path, text = cu_file(tmp_path, "plain")
    found = summary(run_folder(tmp_path), FASTER, "twice")
    slower = replace(found.candidates[0], speedup=0.98, ci95=(0.96, 1.0))
    store_result(tmp_path / "cache", path.as_uri(), text, "twice", replace(found, candidates=(slower,)))
    client, uri = await start(path, VSCODE, "cuda-cpp")
    accept = next(a for a in await client.actions(uri, 5) if a["title"].startswith("Accept"))
    assert accept["disabled"]["reason"] == "it is not faster than your code"
    lenses = await client.request("textDocument/codeLens", {"textDocument": {"uri": uri}})
    assert [lens["command"]["title"] for lens in lenses] == [
        "HIERA: nothing faster was found (best 0.98x [0.96, 1.00] over eager)", "Discard", "Diff", "Report"]


async def test_files_of_a_stranger_need_a_confirmation(tmp_path: Path, start) -> None:
    path = module_file(tmp_path)
    folder = path.parent / "hiera_kernels" / "block"
    folder.mkdir(parents=True)
    (folder / "cuda_source.cu").write_text("// mine\n")
    client, uri = await start(path)
    action = next(a for a in await client.actions(uri, LINE) if a["kind"] == "refactor.rewrite.hiera.accept")
    edit = (await client.request("codeAction/resolve", action))["edit"]
    assert edit["changeAnnotations"]["hiera"]["needsConfirmation"] is True
    poor, uri = await start(path, EGLOT)
    with pytest.raises(LspError, match="not ours"):
        await poor.command("hiera.accept", uri=uri, symbol="Block")
    assert (folder / "cuda_source.cu").read_text() == "// mine\n"


async def test_a_class_that_does_not_parse_keeps_its_place_and_says_why(tmp_path: Path, start) -> None:
    path = module_file(tmp_path)
    client, uri = await start(path)
    await client.wait_for(lambda: client.diagnostics.get(uri))
    client.change(uri, MODULE.replace("return torch.relu(", "return torch.relu((").replace("'''A module.'''", "# moved\n"))
    actions = await client.actions(uri, LINE + 1)
    assert actions[0]["title"] == "Optimize kernel: Block"
    assert "does not parse" in actions[0]["disabled"]["reason"]
    lenses = await client.request("textDocument/codeLens", {"textDocument": {"uri": uri}})
    assert lenses[0]["command"]["title"].endswith("(source changed)")
    assert lenses[0]["range"]["start"] == {"line": LINE + 1, "character": 6}


async def test_the_cheapest_client_gets_plain_text_and_whole_actions(tmp_path: Path, start) -> None:
    path = module_file(tmp_path)
    client, uri = await start(path, EGLOT)
    hover = await client.request("textDocument/hover", {"textDocument": {"uri": uri}, "position": {"line": LINE, "character": 7}})
    assert hover["contents"]["kind"] == "plaintext"
    assert "|" not in hover["contents"]["value"]
    actions = await client.actions(uri, LINE)
    assert all("disabled" not in a for a in actions)
    accept = next(a for a in actions if a["title"].startswith("Accept"))
    assert accept["command"]["command"] == "hiera.accept"


async def test_explain_report_and_profile(tmp_path: Path, start) -> None:
    path = module_file(tmp_path)
    client, uri = await start(path)
    told = await client.command("hiera.explain", uri=uri, symbol="Block")
    assert "## Candidates" in told["markdown"]
    await client.wait_for(lambda: any(r["method"] == "window/showDocument" for r in client.requests))
    assert client.requests[-1]["params"]["uri"].endswith("explanation.md")
    with pytest.raises(LspError):  # The stored run has no events: an error with words, not a crash.
        await client.command("hiera.report", uri=uri, symbol="Block")
    assert (await client.actions(uri, LINE))[4]["title"] == "Profile kernel: Block"


def test_the_ends_of_a_large_file_are_changed_in_no_time() -> None:
    lines = [line for n in range(4000) for line in (f"__global__ void k{n}() {{\n", "  __syncthreads();\n", "}\n", "\n")]
    changed = ["// first\n", *lines[1:9000], *lines[9003:-3], "  // last\n", *lines[-2:]]
    document = Document("file:///a.cu", source="".join(lines), position_codec=PositionCodec())
    begun = time.monotonic()
    made = edits.line_edits(document, "".join(changed))
    took_s = time.monotonic() - begun
    plain = [{"range": {"start": {"line": e.range.start.line, "character": 0}, "end": {"line": e.range.end.line, "character": 0}},
              "newText": e.new_text} for e in made]

    assert edited(document.source, plain, "utf-16") == "".join(changed)
    assert [(e.range.start.line, e.range.end.line) for e in made] == [(0, 1), (9000, 9003), (15997, 15998)]
    assert took_s < 5  # Far below a second; each line with each takes many.


def test_the_test_client_applies_edits_as_editors_do() -> None:
    edits = [{"range": {"start": {"line": 0, "character": 2}, "end": {"line": 1, "character": 0}}, "newText": "|"}]
    assert edited("\U0001f600a\x0cb\r\nc", edits, "utf-16") == "\U0001f600|c"


@pytest.mark.parametrize("command", ["hiera.accept", "hiera.use"])
async def test_what_is_not_faster_is_not_put_into_a_users_files(tmp_path: Path, start, command: str) -> None:
    path = module_file(tmp_path)
    found = summary(run_folder(tmp_path), FASTER, "block")
    slower = replace(found.candidates[0], speedup=1.01, ci95=(0.98, 1.04))
    store_result(tmp_path / "cache", path.as_uri(), MODULE, "Block", replace(found, candidates=(slower,)))
    client, uri = await start(path)

    with pytest.raises(LspError, match="it is not faster than your code"):
        await client.command(command, uri=uri, symbol="Block")
    action = await client.request("codeAction/resolve", {
        "title": "Accept kernel abc", "data": {"do": command.removeprefix("hiera."), "uri": uri, "symbol": "Block", "version": None}})
    assert "edit" not in action
    assert client.texts == {uri: MODULE}
    assert await standing(client, uri, "Block") == "offered"
