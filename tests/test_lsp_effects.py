"""Every setting has its effect, in the folder that it was given for; and what a client switches on in the protocol."""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from lsp_client import FULL, Client
from test_lsp_server import FASTER, KERNEL, store_result, summary

from hiera_lsp.settings import KEYS
from hiera_lsp.summary import HotLineSummary

MODULE = "import torch\n\n\nclass {}(torch.nn.Module):\n    def forward(self, x):\n        return x\n\n\ndef get_inputs():\n    return []\n"
# Setting, a value that is not its default, and what a job is told because of it.
IN_THE_JOB: dict[str, tuple[Any, dict[str, Any]]] = {
    "worker.interpreter": ("/other/python", {"python": "/other/python"}),
    "worker.suggested": ("/found/python", {"python": "/found/python"}),
    "device": ("cuda:1", {"device": "cuda:1"}),
    "preset": ("deep", {"preset": "deep"}),
    "budget.candidates": (7, {"budget": 7}),
    "budget.seconds": (90, {"seconds": 90.0}),
    "budget.tokens": (5000, {"tokens": 5000}),
    "precision": ("strict", {"precision": "strict"}),
    "space": ("cuda_libs", {"space": "cuda_libs"}),
    "agent": ("llm", {"agent": "llm"}),
    "llm.baseUrl": ("http://127.0.0.1:1/v1", {"llm.base_url": "http://127.0.0.1:1/v1"}),
    "llm.model": ("small", {"llm.name": "small"}),
    "llm.keyVariable": ("MY_KEY", {"llm.key_variable": "MY_KEY"}),
}
ELSEWHERE = {"outputFolder", "codeLens.enable", "inlayHints.enable", "showNotifications"}  # Tests of their own, below.


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Any]:
    clients: list[Client] = []

    async def begin(*, capabilities: dict[str, Any] = FULL, options: Any = None, folders: tuple[Path, ...] = (), **how: Any) -> Client:
        client = await Client.start(cache=tmp_path / "cache", fake_jobs=True, **how)
        clients.append(client)
        if folders:
            await client.request("initialize", {
                "processId": None, "rootUri": None, "capabilities": capabilities,
                "workspaceFolders": [{"uri": folder.as_uri(), "name": folder.name} for folder in folders],
                "initializationOptions": options or {}})
            client.notify("initialized", {})
        else:
            await client.initialize(capabilities, folder=tmp_path, options=options)
        return client

    yield begin
    for client in clients:
        await client.kill()


def module(folder: Path, name: str = "Block") -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "model.py"
    path.write_text(MODULE.format(name))
    return path


async def asked(client: Client, tmp_path: Path, uri: str, symbol: str) -> dict[str, Any]:
    """What the job that is started now is told, with the model's options by dotted names."""
    before = len(client.progress("end"))
    await client.command("hiera.optimize", uri=uri, symbol=symbol)
    await client.wait_for(lambda: len(client.progress("end")) > before)
    last = json.loads((tmp_path / "cache" / "requests.jsonl").read_text().splitlines()[-1])
    return {**last["job"], **{f"llm.{key}": value for key, value in last["job"]["llm"].items()}, "key": last["key"]}


def test_no_setting_is_forgotten_here() -> None:
    assert set(IN_THE_JOB) | ELSEWHERE == set(KEYS.values())


async def test_every_setting_of_a_job_reaches_it_and_goes_again(tmp_path: Path, start) -> None:
    client = await start()
    uri = client.open(module(tmp_path / "project"))
    plain = await asked(client, tmp_path, uri, "Block")
    for key, (value, told) in IN_THE_JOB.items():
        assert {name: plain[name] for name in told} != told
        client.settings = {key: value}
        client.notify("workspace/didChangeConfiguration", {"settings": {"hiera": {key: value}}})
        now = await asked(client, tmp_path, uri, "Block")
        assert {name: now[name] for name in told} == told
        ours = ("file", "name", "llm", "key", *told)
        assert {k: v for k, v in now.items() if k not in ours} == {k: v for k, v in plain.items() if k not in ours}


async def test_each_folder_has_its_own_settings(tmp_path: Path, start) -> None:
    one, two, inner = tmp_path / "one", tmp_path / "two", tmp_path / "one" / "inner"
    paths = [module(folder, name) for folder, name in ((one, "A"), (two, "B"), (inner, "C"))]
    (two / "pyproject.toml").write_text('[tool.hiera]\nworker.interpreter = "/two/python"\npreset = "quick"\n')
    client = await start(folders=(one, two, inner))
    by_folder = {one.as_uri(): {"worker.interpreter": "/one/python"}, two.as_uri(): {"preset": "deep"},
                 inner.as_uri(): {"device": "none"}}
    client.scoped = by_folder
    client.notify("workspace/didChangeConfiguration", {"settings": None})
    told = [await asked(client, tmp_path, client.open(path), name) for path, name in zip(paths, "ABC", strict=True)]
    # The editor's value wins over the project's; the deepest folder counts; nothing leaks between folders.
    assert [t["python"] for t in told] == ["/one/python", "/two/python", ""]
    assert [t["preset"] for t in told] == ["normal", "deep", "normal"]
    assert [t["device"] for t in told] == ["auto", "auto", "none"]

    client.notify("workspace/didChangeWorkspaceFolders", {"event": {"added": [], "removed": [{"uri": inner.as_uri(), "name": "inner"}]}})
    assert (await asked(client, tmp_path, client.open(paths[2]), "C"))["python"] == "/one/python"
    (two / "pyproject.toml").write_text('[tool.hiera]\nworker.interpreter = "/new/python"\n')
    client.notify("workspace/didChangeWatchedFiles", {"changes": [{"uri": (two / "pyproject.toml").as_uri(), "type": 2}]})
    assert (await asked(client, tmp_path, client.open(paths[1]), "B"))["python"] == "/new/python"


async def test_a_project_inside_of_a_folder_or_outside_of_all_has_its_own_settings(tmp_path: Path, start) -> None:
    whole, part, lone = tmp_path / "whole", tmp_path / "whole" / "part", tmp_path / "lone"
    paths = [module(folder, name) for folder, name in ((whole, "A"), (part, "B"), (lone, "C"))]
    (whole / "hiera.toml").write_text('space = "cuda"\n')
    (part / "pyproject.toml").write_text('[tool.hiera]\npreset = "quick"\nspace = "cuda_libs"\n')
    (lone / "hiera.toml").write_text('preset = "huge"\nprecision = "strict"\n')
    client = await start(folders=(whole,))
    client.scoped = {whole.as_uri(): {"space": "cuda_libs_torch"}}
    for _ in range(2):  # Before and after the client's settings came again.
        told = [await asked(client, tmp_path, client.open(path), name) for path, name in zip(paths, "ABC", strict=True)]
        assert [t["preset"] for t in told] == ["normal", "quick", "normal"]
        assert [t["space"] for t in told] == ["cuda_libs_torch", "cuda_libs_torch", None]
        assert [t["precision"] for t in told] == ["match", "match", "strict"]
        client.notify("workspace/didChangeConfiguration", {"settings": None})
    warnings = [n["params"]["message"] for n in client.notifications if n["method"] == "window/showMessage"]
    assert len(warnings) == 1
    assert "'huge'" in warnings[0]


async def test_a_key_from_the_editors_store_reaches_its_job_alone(tmp_path: Path, start) -> None:
    client = await start(options={"agent": "llm", "llm": {"keyVariable": "MY_KEY", "baseUrl": "http://127.0.0.1:1/v1"}})
    client.settings = {"agent": "llm", "llm": {"keyVariable": "MY_KEY", "baseUrl": "http://127.0.0.1:1/v1"}}
    uri = client.open(module(tmp_path / "project"))
    assert (await asked(client, tmp_path, uri, "Block"))["key"] is None
    await client.command("hiera.secret", name="MY_KEY", value="s3cret")
    assert (await asked(client, tmp_path, uri, "Block"))["key"] == "s3cret"
    # The first run with a model names the endpoint, and only the first.
    told = [n["params"]["message"] for n in client.notifications if n["method"] == "window/showMessage"]
    assert [t for t in told if t.startswith("HIERA sends the source of this kernel to http://127.0.0.1:1/v1")] == told
    # A job that asks no model gets no key.
    client.settings = {**client.settings, "agent": "expert"}
    client.notify("workspace/didChangeConfiguration", {"settings": None})
    without = await asked(client, tmp_path, uri, "Block")
    assert (without["agent"], without["llm.key_variable"], without["key"]) == ("expert", "MY_KEY", None)


@pytest.mark.parametrize(("wanted", "good", "bad"), [("off", 0, 0), ("onError", 0, 1), ("always", 1, 1)])
async def test_notifications(tmp_path: Path, start, wanted: str, good: int, bad: int) -> None:
    with_lenses = {**FULL, "textDocument": {**FULL["textDocument"], "codeLens": {}}}  # Others are asked a question.
    client = await start(settings={"showNotifications": wanted}, capabilities=with_lenses)
    path = module(tmp_path / "project", "Fails")
    path.write_text("BAD = 1\n" + path.read_text() + MODULE.format("Block").partition("\n")[2])
    uri = client.open(path)

    def shown() -> list[str]:
        return [n["params"]["message"] for n in client.notifications if n["method"] == "window/showMessage"]

    for symbol, count in (("Block", good), ("Fails", bad)):
        before = len(shown())
        ends = len(client.progress("end"))
        await client.command("hiera.optimize", uri=uri, symbol=symbol)
        await client.wait_for(lambda ends=ends: len(client.progress("end")) > ends)
        assert [symbol in said for said in shown()[before:]] == [True] * count


async def test_new_settings_take_away_what_was_wrong_with_the_machine_and_nothing_else(tmp_path: Path, start) -> None:
    client = await start()
    path = module(tmp_path / "project", "FailsMachine")
    path.write_text("BAD = 1\n" + path.read_text() + MODULE.format("Fails").partition("\n")[2])
    uri = client.open(path)
    for symbol in ("FailsMachine", "Fails"):
        await client.command("hiera.optimize", uri=uri, symbol=symbol)
    await client.wait_for(lambda: len(client.diagnostics.get(uri, ())) == 2)
    client.requests.clear()
    client.notify("workspace/didChangeConfiguration", {"settings": {"hiera": {"worker.interpreter": "/other/python"}}})
    await client.wait_for(lambda: [d["code"] for d in client.diagnostics[uri]] == ["hiera.input"])
    await client.wait_for(lambda: any(r["method"] == "workspace/codeLens/refresh" for r in client.requests))


async def test_lenses_hints_and_the_output_folder(tmp_path: Path, start) -> None:
    path = tmp_path / "twice.cu"
    path.write_text(KERNEL)
    found = summary(tmp_path / "cache" / "runs" / "run-1", FASTER, "twice")
    own = replace(found.candidates[0], author="user")
    found = replace(found, candidates=(own,), hot_lines=(HotLineSummary(line=6, share=0.7, stall="long scoreboard"),))
    store_result(tmp_path / "cache", path.as_uri(), KERNEL, "twice", found)
    client = await start()
    uri = client.open(path, "cuda-cpp")
    span = {"start": {"line": 0, "character": 0}, "end": {"line": 9, "character": 0}}

    async def seen() -> tuple[bool, list[str]]:
        lenses = await client.request("textDocument/codeLens", {"textDocument": {"uri": uri}})
        hints = await client.request("textDocument/inlayHint", {"textDocument": {"uri": uri}, "range": span})
        return bool(lenses), [hint["label"].strip() for hint in hints]

    assert await seen() == (True, [])
    client.settings = {"codeLens.enable": False, "inlayHints.enable": True}
    client.notify("workspace/didChangeConfiguration", {"settings": {"hiera": client.settings}})
    assert await seen() == (False, ["70 %"])
    model = module(tmp_path / "project")
    text = model.read_text()
    store_result(tmp_path / "cache", model.as_uri(), text, "Block", summary(tmp_path / "cache" / "runs" / "run-1", KERNEL, "Block"))
    client.notify("workspace/didChangeConfiguration", {"settings": {"hiera": {"outputFolder": "made/kernels"}}})
    await client.command("hiera.accept", uri=client.open(model), symbol="Block")
    assert {u.rsplit("/", 1)[0] for u in client.created} == {(tmp_path / "project" / "made" / "kernels" / "Block").as_uri()}


async def test_a_trace_is_sent_to_who_asks_and_never_holds_texts_or_secrets(tmp_path: Path, start) -> None:
    client = await start()

    def traces() -> list[dict[str, Any]]:
        return [n["params"] for n in client.notifications if n["method"] == "$/logTrace"]

    uri = client.open(module(tmp_path / "project"))
    await client.actions(uri, 3)
    assert traces() == []
    client.notify("$/setTrace", {"value": "messages"})
    await client.actions(uri, 3)
    assert any(t["message"].startswith("textDocument/codeAction was handled in ") for t in traces())
    assert not [t for t in traces() if "verbose" in t]
    client.notify("$/setTrace", {"value": "verbose"})
    client.change(uri, client.texts[uri] + "# my own words\n")
    client.change(uri, client.texts[uri].replace("# my own words\n", ""))
    await client.command("hiera.secret", name="MY_KEY", value="s3cret")
    await client.command("hiera.optimize", uri=uri, symbol="Block")
    await client.wait_for(lambda: client.progress("end"))
    assert any(t["message"].startswith("hiera-job-1, Block: round 1/1") for t in traces())
    assert any(t["message"].startswith("hiera-job-1 ended: 1.60x") for t in traces())
    assert any(uri in t.get("verbose", "") for t in traces())
    assert "s3cret" not in json.dumps(traces())
    assert "my own words" not in json.dumps(traces())
    client.notify("$/setTrace", {"value": "off"})
    before = len(traces())
    await client.actions(uri, 3)
    assert len(traces()) == before


async def test_pages_about_code_actions_for_clients_that_show_them(tmp_path: Path, start) -> None:
    able = copy.deepcopy(FULL)
    able["textDocument"]["codeAction"]["documentationSupport"] = True
    client = await Client.start(cache=tmp_path / "cache")
    reply = await client.initialize(able)
    (page,) = reply["capabilities"]["codeActionProvider"]["documentation"]
    shown = await client.request("workspace/executeCommand", {
        "command": page["command"]["command"], "arguments": page["command"]["arguments"]})
    await client.wait_for(lambda: client.requests)
    assert client.requests[-1]["params"]["uri"] == shown["uri"]
    file, _, heading = shown["uri"].removeprefix("file://").partition("#")
    assert f"\n## {heading.replace('-', ' ').capitalize()}\n" in Path(file).read_text()
    assert (await client.command("hiera.help", code="hiera.agent"))["uri"].endswith("diagnostics.md#hieraagent")
    await client.kill()
    unable = await Client.start(cache=tmp_path / "cache")
    assert "documentation" not in (await unable.initialize(FULL))["capabilities"]["codeActionProvider"]
    await unable.kill()
