"""Everything a user can do, in any order, with jobs at work: refusals have words, nothing breaks, nothing is left behind."""

from __future__ import annotations

import asyncio
import random
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from lsp_client import FULL, Client, LspError
from test_lsp_server import FASTER, KERNEL

STEPS = 400
SYMBOLS = ["Block", "SlowA", "Fails", "Dies", "twice", "gone"]
HEAD = "import torch\nfrom torch import nn\nBAD = 1\n"
CLASS = "\n\nclass {}(nn.Module):\n    def forward(self, x):\n        return torch.relu(x)\n"
TAIL = "\n\ndef get_inputs():\n    return [torch.randn(4, 8)]\n"
# What a refusal may be: the parameters, or a sentence for the user. Never an accident inside of the server.
REFUSALS = {-32602, -32803}


class User:
    """Picks what to do next."""

    def __init__(self, client: Client, folder: Path, chance: random.Random) -> None:
        self.client, self.chance, self.folder = client, chance, folder
        self.files = {"model.py": HEAD + "".join(map(CLASS.format, SYMBOLS[:4])) + TAIL, "twice.cu": KERNEL}
        self.refused: set[int] = set()
        self.done: dict[str, int] = {}
        for name, text in self.files.items():
            (folder / name).write_text(text)

    def uri(self) -> str:
        return (self.folder / self.chance.choice(list(self.files))).as_uri()

    async def step(self) -> None:
        kinds = ["type", "save", "revert", "open", "close", "menu", "look", "command", "command", "command", "cancel", "wait"]
        kind = self.chance.choice(kinds)
        self.done[kind] = self.done.get(kind, 0) + 1
        try:
            await getattr(self, kind)(self.uri())
        except LspError as error:
            self.refused.add(error.code)

    async def type(self, uri: str) -> None:
        if uri in self.client.texts:
            text = self.client.texts[uri]
            place = self.chance.randrange(len(text) + 1)
            self.client.change(uri, text[:place] + self.chance.choice(["x", "(", "\n", "\r\n", "\U0001f600", "# "]) + text[place:])

    async def save(self, uri: str) -> None:
        if uri in self.client.texts:
            Path(uri.removeprefix("file://")).write_text(self.client.texts[uri])

    async def revert(self, uri: str) -> None:
        text = self.files[uri.rpartition("/")[2]]
        Path(uri.removeprefix("file://")).write_text(text)
        if uri in self.client.texts:
            self.client.change(uri, text)

    async def open(self, uri: str) -> None:
        if uri not in self.client.texts:
            self.client.open(Path(uri.removeprefix("file://")), "python" if uri.endswith(".py") else "cuda-cpp")

    async def close(self, uri: str) -> None:
        if self.client.texts.pop(uri, None) is not None:
            self.client.versions.pop(uri)
            self.client.notify("textDocument/didClose", {"textDocument": {"uri": uri}})

    async def menu(self, uri: str) -> None:
        """Takes an entry of the menu, as an editor does: resolve, edit, command."""
        self.client.created.clear()
        actions = await self.client.actions(uri, self.chance.randrange(25))
        able = [action for action in actions if "disabled" not in action]
        if not able:
            return
        action = self.chance.choice(able)
        if "data" in action:
            action = await self.client.request("codeAction/resolve", action)
        if "edit" in action and uri in self.client.texts:
            for changed, text in self.client.apply(action["edit"]).items():
                self.client.change(changed, text)
        if "command" in action:
            await self.client.request("workspace/executeCommand", {
                "command": action["command"]["command"], "arguments": action["command"]["arguments"]})

    async def look(self, uri: str) -> None:
        document = {"textDocument": {"uri": uri}}
        place = {"line": self.chance.randrange(25), "character": self.chance.randrange(20)}
        await asyncio.gather(
            self.client.request("textDocument/hover", {**document, "position": place}),
            self.client.request("textDocument/codeLens", document),
            self.client.request("textDocument/inlayHint", {**document, "range": {"start": place, "end": place}}))

    async def command(self, uri: str) -> None:
        self.client.created.clear()
        name = self.chance.choice(["optimize", "optimize", "profile", "reverify", "accept", "use", "accepted", "discard", "choose",
                                   "diff", "explain", "result", "sites", "jobs", "runs"])
        await self.client.command(f"hiera.{name}", uri=uri, symbol=self.chance.choice(SYMBOLS))

    async def cancel(self, uri: str) -> None:
        if self.chance.random() < 0.5:
            self.client.notify("window/workDoneProgress/cancel", {"token": f"hiera-job-{self.chance.randrange(1, 30)}"})
        else:
            await self.client.command("hiera.cancel", symbol=self.chance.choice(SYMBOLS))

    async def wait(self, _uri: str) -> None:
        await asyncio.sleep(self.chance.random() / 4)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", [1, 2])
async def test_any_order(tmp_path: Path, seed: int) -> None:
    able: dict[str, Any] = {**FULL, "textDocument": {**FULL["textDocument"], "codeLens": {}}}
    client = await Client.start(cache=tmp_path / "cache", fake_jobs=True, env={"FAKE_SOURCE": FASTER}, errors=tmp_path / "log")
    client.metadata = True
    await client.initialize(able, folder=tmp_path)
    user = User(client, tmp_path, random.Random(seed))
    for _ in range(STEPS):
        await user.step()
    assert user.refused <= REFUSALS
    await client.command("hiera.cancel")
    async with asyncio.timeout(20):
        while await client.command("hiera.jobs"):  # noqa: ASYNC110 - asked, as an editor would.
            await asyncio.sleep(0.1)
    assert Path(f"/proc/{client.process.pid}/task/{client.process.pid}/children").read_text() == ""
    begun, ended = (len(client.progress(kind)) for kind in ("begin", "end"))
    assert begun == ended > 3
    # After all that, the story works as on the first day.
    uri = (tmp_path / "model.py").as_uri()
    await user.open(uri)
    await user.revert(uri)
    await client.command("hiera.optimize", uri=uri, symbol="Block", fresh=True)
    await client.wait_for(lambda: len(client.progress("end")) > ended)
    assert (await client.command("hiera.result", uri=uri, symbol="Block"))["standing"] == "offered"
    assert await client.shutdown() == 0
    assert "Traceback" not in (tmp_path / "log").read_text()
