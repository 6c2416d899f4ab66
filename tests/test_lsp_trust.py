"""Nothing of the user's runs before an explicit command, and nothing at all in a workspace that is not trusted."""

from __future__ import annotations

import asyncio
import importlib.util
import shutil
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from lsp_client import Client, LspError

MODULE = """\
from pathlib import Path
import torch

Path(__file__).with_name("imported").touch()


class Block(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)


def get_inputs():
    Path(__file__).with_name("called").touch()
    return [torch.randn(4, 8)]
"""
# Names that a careless server would import from the folder it is started in, or from the user's project.
TRAPS = ["json.py", "types.py", "engine/__init__.py", "contracts/__init__.py", "sitecustomize.py", "conftest.py", "torch.py"]
COMMANDS = ["hiera.optimize", "hiera.profile", "hiera.reverify", "hiera.doctor"]


@pytest.fixture
async def started(tmp_path: Path) -> AsyncIterator[Any]:
    clients: list[Client] = []
    folder = tmp_path / "project"
    for name in TRAPS:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("from pathlib import Path\nPath(__file__).with_name('trapped').touch()\n")
    (folder / "model.py").write_text(MODULE)

    async def begin(**options: Any) -> tuple[Client, str, Path]:
        client = await Client.start(cache=tmp_path / "cache")
        clients.append(client)
        await client.initialize(folder=folder, options=options)
        return client, client.open(folder / "model.py"), folder

    yield begin
    for client in clients:
        await client.kill()


def children(client: Client) -> str:
    return Path(f"/proc/{client.process.pid}/task/{client.process.pid}/children").read_text()


def traces(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*") if path.name in ("imported", "called", "trapped")}


async def look_around(client: Client, uri: str) -> None:
    """Everything that an editor asks by itself."""
    for line in range(6, 14):
        actions = await client.actions(uri, line) + await client.actions(uri, line, trigger=2)
        for action in actions:
            if "data" in action:
                await client.request("codeAction/resolve", action)
        await client.request("textDocument/hover", {"textDocument": {"uri": uri}, "position": {"line": line, "character": 7}})
    await client.request("textDocument/codeLens", {"textDocument": {"uri": uri}})
    whole = {"start": {"line": 0, "character": 0}, "end": {"line": 99, "character": 0}}
    await client.request("textDocument/inlayHint", {"textDocument": {"uri": uri}, "range": whole})
    for command in ("hiera.sites", "hiera.result", "hiera.jobs", "hiera.runs"):
        await client.command(command, uri=uri, symbol="Block")
    client.change(uri, client.texts[uri] + "# typing\n")
    client.notify("textDocument/didSave", {"textDocument": {"uri": uri}})
    client.notify("workspace/didChangeWatchedFiles", {"changes": [{"uri": uri, "type": 2}]})
    await client.actions(uri, 6)


async def test_nothing_runs_before_a_command(started) -> None:
    client, uri, folder = await started()
    await look_around(client, uri)
    assert children(client) == ""
    assert traces(folder) == set()
    assert "libtorch" not in Path(f"/proc/{client.process.pid}/maps").read_text()


@pytest.mark.parametrize("command", COMMANDS)
async def test_nothing_runs_where_the_workspace_is_not_trusted(started, command: str) -> None:
    client, uri, folder = await started(trusted=False)
    await look_around(client, uri)
    with pytest.raises(LspError, match="not trusted"):
        await client.command(command, uri=uri, symbol="Block")
    reasons = {a["title"]: a.get("disabled", {}).get("reason", "") for a in await client.actions(uri, 6)}
    assert "not trusted" in reasons["Optimize kernel: Block"]
    assert "not trusted" in reasons["Profile kernel: Block"]
    assert children(client) == ""
    assert traces(folder) == set()


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="no torch")
@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
async def test_a_command_does_run_it(started) -> None:
    """The traces that the tests above look for are really left when the module is imported."""
    client, uri, folder = await started(settings={"device": "none", "preset": "quick"})
    (folder / "torch.py").unlink()  # The user's own interpreter would take it for torch.
    await client.command("hiera.profile", uri=uri, symbol="Block")
    async with asyncio.timeout(100):
        while not {"imported", "called"} <= traces(folder):  # noqa: ASYNC110 - a file appears.
            await asyncio.sleep(0.1)
