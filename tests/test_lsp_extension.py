"""What an editor's extension asks of the server: sites for menus, keys, its own packages, the Python that it found."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from lsp_client import ROOT, Client, LspError
from test_lsp_server import FASTER, store_result, summary

from hiera_lsp.session import Session
from hiera_lsp.settings import Settings, read_settings
from hiera_lsp.sites import find_python

MODULE = """import torch
from torch import nn


class Block(nn.Module):
    def forward(self, x):
        return torch.relu(x)


def get_inputs():
    return [torch.randn(4, 8)]
"""


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Any]:
    clients: list[Client] = []

    async def begin(**how: Any) -> tuple[Client, str]:
        path = tmp_path / "project" / "model.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(MODULE)
        client = await Client.start(cache=tmp_path / "cache", fake_jobs=True, **how)
        clients.append(client)
        await client.initialize(folder=path.parent)
        return client, client.open(path)

    yield begin
    for client in clients:
        await client.kill()


async def optimised(client: Client, uri: str) -> None:
    await client.command("hiera.optimize", uri=uri, symbol="Block")
    await client.wait_for(lambda: client.progress("end"))


async def test_sites_tell_where_what_and_how_it_stands(start) -> None:
    client, uri = await start()
    (before,) = await client.command("hiera.sites", uri=uri)
    await optimised(client, uri)
    (after,) = await client.command("hiera.sites", uri=uri)

    assert before == {"uri": uri, "symbol": "Block", "kind": "module", "firstLine": 4, "nameLine": 4, "lastLine": 6,
                      "standing": None, "used": False, "chosen": None, "headline": "", "jobId": None}
    assert (after["standing"], after["chosen"]) == ("offered", "c5")
    assert after["headline"] == "HIERA: 1.60x [1.55, 1.65] over eager"


async def test_an_accepted_module_is_offered_its_use(start) -> None:
    client, uri = await start()
    await optimised(client, uri)
    await client.command("hiera.accept", uri=uri, symbol="Block")
    lenses = await client.request("textDocument/codeLens", {"textDocument": {"uri": uri}})

    assert [lens["command"]["command"] for lens in lenses] == ["hiera.explain", "hiera.use"]


async def test_a_key_reaches_the_job_and_is_forgotten_when_it_is_empty(start) -> None:
    client, _ = await start()

    assert await client.command("hiera.secret", name="MY_KEY", value="sk-1") == {"kept": True}
    assert await client.command("hiera.secret", name="MY_KEY", value="") == {"kept": False}
    with pytest.raises(LspError, match="no name or no value"):
        await client.command("hiera.secret", name="MY_KEY")


def test_what_the_editor_found_counts_only_where_nobody_names_a_python() -> None:
    (site,) = find_python(MODULE).sites
    found, _ = read_settings({"worker.suggested": "/found"})
    both, _ = read_settings({"worker.suggested": "/found"}, Settings(interpreter="/named"))

    assert Session(settings={"": found}).job_for(site, "file:///m.py", None).python == "/found"
    assert Session(settings={"": both}).job_for(site, "file:///m.py", None).python == "/named"


@pytest.mark.parametrize("entry", ["server", "job", "cli"])
def test_packages_that_an_extension_brings_come_first(tmp_path: Path, entry: str) -> None:
    (tmp_path / "brought").mkdir()
    (tmp_path / "brought" / "contracts.py").write_text("import sys; print(sys.path[:3]); raise SystemExit(0)")
    (tmp_path / "brought" / "pygls.py").write_text("import sys; print(sys.path[:3]); raise SystemExit(0)")
    program = (f"import sys; sys.path.insert(0, {str(ROOT)!r}); import hiera_lsp.start as s; "
               f"s.private_root = lambda: {str(tmp_path)!r}; s.{entry}()")
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, text=True, cwd=tmp_path, timeout=60,
        env={**os.environ, "HIERA_LIBRARIES": str(tmp_path / "brought")},
    )

    assert f"'{tmp_path}', '{tmp_path / 'brought'}'" in done.stdout, done.stderr


async def test_a_projects_own_modules_do_not_stand_in_the_way_of_a_job(tmp_path: Path, start) -> None:
    """The server's folder is the user's project; a `json.py` there is none of the job's."""
    project = tmp_path / "shadows"
    project.mkdir()
    (project / "json.py").write_text("raise RuntimeError('the wrong json')")
    client, uri = await start(cwd=project)
    await optimised(client, uri)

    assert (await client.command("hiera.sites", uri=uri))[0]["standing"] == "offered"


async def test_no_key_is_in_any_message_of_the_server(start) -> None:
    client, uri = await start()
    await client.command("hiera.secret", name="OPENAI_API_KEY", value="sk-very-secret")
    await optimised(client, uri)

    assert "sk-very-secret" not in json.dumps([client.notifications, client.requests])


async def test_a_result_names_its_choices_in_the_order_of_stepping(tmp_path: Path, start) -> None:
    uri = (tmp_path / "project" / "model.py").as_uri()
    found = summary(tmp_path / "cache" / "runs" / "run-1", FASTER, "block")
    best = found.candidates[0]
    others = [replace(best, id="slow", speedup=1.1), replace(best, id="bad", accepted=False), replace(best, id="fast", speedup=1.5)]
    store_result(tmp_path / "cache", uri, MODULE, "Block", replace(found, candidates=(*others, best)))
    client, _ = await start()

    result = await client.command("hiera.result", uri=uri, symbol="Block")
    stepped = [(await client.command("hiera.choose", uri=uri, symbol="Block", step=1))["candidate"] for _ in range(3)]

    assert result["choices"] == ["abc", "fast", "slow"]
    assert stepped == ["fast", "slow", "abc"]


async def test_what_is_accepted_is_what_the_review_shows(tmp_path: Path, start) -> None:
    uri = (tmp_path / "project" / "model.py").as_uri()
    found = summary(tmp_path / "cache" / "runs" / "run-1", FASTER, "block")
    other = replace(found.candidates[0], id="other", speedup=1.1)
    store_result(tmp_path / "cache", uri, MODULE, "Block", replace(found, candidates=(*found.candidates, other)))
    client, _ = await start()
    shown = {"uri": uri, "symbol": "Block", "run": found.run, "candidate": "other"}

    for command in ("hiera.accept", "hiera.use", "hiera.discard", "hiera.choose"):
        with pytest.raises(LspError, match=r"Block has another result by now .*open the review again"):
            await client.command(command, **{**shown, "run": "an-older-run"})
    with pytest.raises(LspError, match="candidate gone was not accepted"):
        await client.command("hiera.accept", **{**shown, "candidate": "gone"})
    await client.command("hiera.accept", **shown)

    assert (await client.command("hiera.result", uri=uri, symbol="Block"))["chosen"] == "other"


async def test_an_edit_that_is_confirmed_late_accepts_no_later_result(tmp_path: Path, start) -> None:
    uri = (tmp_path / "project" / "model.py").as_uri()
    store_result(tmp_path / "cache", uri, MODULE, "Block", summary(tmp_path / "cache" / "runs" / "run-1", FASTER, "block"))
    client, _ = await start()
    client.silent.add("workspace/applyEdit")
    accepting = asyncio.create_task(client.command("hiera.accept", uri=uri, symbol="Block"))
    await client.wait_for(lambda: any(r["method"] == "workspace/applyEdit" for r in client.requests))
    asked = next(r for r in client.requests if r["method"] == "workspace/applyEdit")
    await optimised(client, uri)
    client._send({"id": asked["id"], "result": {"applied": True}})

    assert (await accepting)["applied"] is True
    result = await client.command("hiera.result", uri=uri, symbol="Block")
    assert (result["summary"]["run"], result["standing"]) == ("run-Block", "offered")
