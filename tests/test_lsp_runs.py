"""Stored runs through the server: the list, one run, evidence as documents, the report, deleting."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.headlines import FILE, Headlines, headline_of, inside, is_at_work
from engine.store import Run, Store
from engine.trajectory import Exchange, Stopped
from hiera_lsp.run_commands import RunCommands
from hiera_lsp.session import Session
from tests import report_runs as records
from tests import stored_runs

sys.path.insert(0, str(Path(__file__).parent))
from lsp_client import Client, LspError

ROOT = Path(__file__).parent.parent


def write(root: Path, name: str, events: list[tuple[str, object]], file: Path | str = "/nowhere/model.py",
          symbol: str = "Chain") -> Path:
    return stored_runs.write(root, name, events, Path(file), symbol)


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Any]:
    clients: list[Client] = []

    async def begin(**how: Any) -> Client:
        folder = tmp_path / "a b"
        folder.mkdir(exist_ok=True)
        client = await Client.start(cache=tmp_path / "cache", **how)
        clients.append(client)
        await client.initialize(folder=folder)
        return client

    yield begin
    for client in clients:
        await client.kill()


async def text_of(client: Client, uri: str) -> str:
    return (await client.request("workspace/textDocumentContent", {"uri": uri}))["text"]


async def test_the_runs_of_this_workspace_are_listed_newest_first(start, tmp_path) -> None:
    cache, model = tmp_path / "cache", tmp_path / "a b" / "model.py"
    write(cache, "20260101-000000-Chain-0001", records.measured_events(), model)
    write(cache, "20260102-000000-Chain-0002", records.unmeasured_events(), model)
    write(cache, "20260103-000000-Chain-0003", records.measured_events((None,)), tmp_path / "another" / "model.py")
    write(cache, "20260104-000000-Chain-0004", records.measured_events()[:8], model)
    (cache / "runs" / "20260105-000000-broken-0005").mkdir()
    (cache / "runs" / "20260106-000000-broken-0006").mkdir()
    (cache / "runs" / "20260106-000000-broken-0006" / "events.jsonl").write_text("{}\n{}\n")
    client = await start()
    model.write_text("")

    found = await client.command("hiera.runs")
    assert [run["run"][-4:] for run in found["runs"]] == ["0004", "0002", "0001"]
    assert found["more"] is False
    killed, unmeasured, measured = found["runs"]
    assert (measured["speedup"], measured["faster"], measured["confirmed"]) == (2.6, True, True)
    assert (measured["written"], measured["judged"], measured["accepted"], measured["planned"]) == (7, 7, 5, 3)
    assert measured["uri"] == model.as_uri()
    assert (unmeasured["measured"], unmeasured["speedup"], unmeasured["faster"]) == (False, None, False)
    assert (killed["stop_reason"], killed["at_work"], killed["resumable"]) == ("", False, True)
    assert (measured["complete"], measured["resumable"]) == (True, False)

    everything = await client.command("hiera.runs", all=True, limit=2)
    assert [run["run"][-4:] for run in everything["runs"]] == ["0004", "0003"]
    assert everything["more"] is True
    rest = await client.command("hiera.runs", all=True, after=everything["runs"][-1]["run"])
    assert [run["run"][-4:] for run in rest["runs"]] == ["0002", "0001"]


async def test_a_run_is_described_with_its_evidence_behind_uris(start, tmp_path) -> None:
    events = records.measured_events()
    made = next(value for kind, value in events if kind == "candidate")
    later = replace(records.candidate(20, round_=3), parents=(made.id,))
    texts = (("system", "be brief"), ("user", "write ``` please"), ("assistant", "````\nint f();\n````"))
    events[-1:] = [
        ("exchange", Exchange(id="e1", about="ssda", round=2, messages=texts, problem="it holds no JSON object")),
        ("exchange", Exchange(id="e2", about="oa", round=1, candidate=made.id, messages=texts)),
        ("candidate", later), ("stopped", Stopped(reason="cancelled", complete=False))]
    run = write(tmp_path / "cache", "20260101-000000-Chain-0001", events, tmp_path / "a b" / "model.py").name
    client = await start()

    found = await client.command("hiera.run", run=run)
    assert [r["round"] for r in found["rounds"]] == [1, 2, 3]
    assert found["rounds"][0]["scores"]["M"] == [8.5, "reason for M"]
    assert (found["resumable"], found["reviewable"], found["at_work"]) == (True, False, False)
    by_id = {c["id"]: c for c in found["candidates"]}
    first, bad, last = by_id[made.id], found["candidates"][1], by_id[later.id]
    best = next(c for c in found["candidates"] if c["best"])
    assert (first["number"], first["speedup"], first["accepted"], first["why"]) == (1, 1.2, True, "")
    assert (bad["accepted"], bad["why"], bad["speedup"]) == (False, "check numeric: 7 of 8 elements differ", None)
    assert (last["state"], last["log"], last["parent"]) == ("not judged", None, first["source"])
    assert await text_of(client, first["source"]) == made.source
    log = await text_of(client, bad["log"])
    assert "rejected at verify: check numeric" in log
    assert "error: line 3: no such type" in log
    assert "stream order: not run: the device has one stream" in log
    assert "variable x was never used" in await text_of(client, first["log"])
    assert "k: 40 registers" in await text_of(client, first["log"])
    counters = await text_of(client, best["counters"])
    assert "DRAM at 91 % of its peak" in counters
    assert "l2_hit = n/a" in counters
    assert (first["counters"], bad["conversation"]) == (None, None)
    talk = await text_of(client, first["conversation"])
    assert talk.startswith("# oa, round 1\n\n## Instructions")
    assert "`````\n````\nint f();\n````\n`````" in talk, "a fence in a text cannot end the fence around it"
    assert [bool(r["conversation"]) for r in found["rounds"]] == [False, True, False]
    assert "could not be used: it holds no JSON object" in await text_of(client, found["rounds"][1]["conversation"])


@pytest.mark.parametrize("uri", [
    "hiera-candidate:/{run}/{id}/nothing.txt", "hiera-candidate:/{run}/000000000000/build.log",
    "hiera-candidate:/{run}/round-9/conversation.md", "hiera-candidate:/none/{id}/build.log",
    "hiera-candidate:/../../etc/build.log", "hiera-candidate:/{run}/{id}/conversation.md",
])
async def test_what_is_not_there_is_refused_in_words(start, tmp_path, uri) -> None:
    events = records.measured_events()
    run = write(tmp_path / "cache", "20260101-000000-Chain-0001", events).name
    made = next(value for kind, value in events if kind == "candidate")
    client = await start()
    with pytest.raises(LspError, match=r"stands behind|no run under"):
        await text_of(client, uri.format(run=run, id=made.id))


@pytest.mark.parametrize("run", [None, 3, "", "../runs", "/tmp", "never", "2026"])
async def test_a_run_that_is_none_is_refused(start, tmp_path, run) -> None:
    write(tmp_path / "cache", "20260101-000000-Chain-0001", records.measured_events())
    client = await start()
    for command in ("hiera.page", "hiera.deleteRun") if run == "2026" else ("hiera.run", "hiera.page", "hiera.deleteRun"):
        if run == "2026" and command == "hiera.page":
            continue  # A unique beginning names a run everywhere, but for deleting it.
        with pytest.raises(LspError, match="run"):
            await client.command(command, run=run)
    assert (tmp_path / "cache" / "runs" / "20260101-000000-Chain-0001" / "events.jsonl").exists()


async def test_the_report_comes_in_parts(start, tmp_path) -> None:
    run = write(tmp_path / "cache", "20260101-000000-Chain-0001", records.measured_events()).name
    client = await start()
    found = await client.command("hiera.page", run=run)
    assert found["title"] == "HIERA report: Chain"
    assert found["body"].startswith("<main>")
    assert "--vscode-editor-background" in found["style"]
    assert found["finished"] is True


@pytest.mark.parametrize("what", ["runs", "run", "page", "kernel", "delete"])
async def test_other_questions_are_answered_while_a_run_is_read(tmp_path, monkeypatch, what) -> None:
    events = records.measured_events()
    run = write(tmp_path, "20260101-000000-Chain-0001", events).name
    made = next(value for kind, value in events if kind == "candidate")
    expected = {"runs": {"more": False}, "kernel": {"space": made.space}, "delete": {"deleted": run}}.get(what, {"run": run})
    monkeypatch.setenv("HIERA_CACHE", str(tmp_path))
    others, load, waited = threading.Event(), Store.load, []

    def slow(store: Store, name: str) -> Any:
        waited.append(others.wait(20))
        return load(store, name)

    monkeypatch.setattr(Store, "load", slow)
    asking = asyncio.create_task(getattr(RunCommands(Session(), None), what)({"run": run, "candidate": made.id, "all": True}))
    await asyncio.sleep(0)
    others.set()
    assert expected.items() <= (await asking).items()
    assert waited == [True]


async def test_a_run_is_deleted_only_when_nobody_works_on_it(start, tmp_path) -> None:
    cache = tmp_path / "cache"
    folder = write(cache, "20260101-000000-Chain-0001", records.measured_events())
    open_run = Run(folder)
    client = await start()
    with pytest.raises(LspError, match="another process is working on this run"):
        await client.command("hiera.deleteRun", run=folder.name)
    assert is_at_work(folder)
    open_run.close()
    assert not is_at_work(folder)
    assert await client.command("hiera.deleteRun", run=folder.name) == {"deleted": folder.name}
    assert not folder.exists()
    assert (await client.command("hiera.runs", all=True))["runs"] == []


async def test_a_job_at_work_is_in_the_list_and_its_run_is_not_deleted(start, tmp_path) -> None:
    client = await start(fake_jobs=True)
    path = tmp_path / "a b" / "model.py"
    path.write_text("import torch\nfrom torch import nn\n\nclass SlowA(nn.Module):\n    def forward(self, x):\n"
                    "        return torch.relu(x)\n\n\ndef get_inputs():\n    return [torch.randn(4, 8)]\n")
    uri = client.open(path)
    job = await client.command("hiera.optimize", uri=uri, symbol="SlowA")
    await client.wait_for(lambda: any("round 1" in r.get("message", "") for r in client.progress("report")))
    # The stand-in for a job writes no events; what the store knows of its run is put there by hand.
    write(tmp_path / "cache", "run-SlowA", records.measured_events()[:8], path, "SlowA")
    (found,) = (await client.command("hiera.runs"))["runs"]
    assert (found["at_work"], found["resumable"]) == (True, False)
    with pytest.raises(LspError, match="a job is working on this run"):
        await client.command("hiera.deleteRun", run="run-SlowA")
    await client.command("hiera.cancel", **job)
    await client.wait_for(lambda: client.progress("end"))
    assert (await client.command("hiera.run", run="run-SlowA"))["reviewable"] is True
    assert (await client.command("hiera.result", uri=uri, symbol="SlowA"))["standing"] == "offered"
    await client.command("hiera.deleteRun", run="run-SlowA")
    assert (await client.command("hiera.result", uri=uri, symbol="SlowA"))["standing"] == "discarded", \
        "what cannot be read any more is not offered"


async def test_a_candidate_of_an_older_run_is_judged_against_the_source_as_it_is(start, tmp_path) -> None:
    client = await start(fake_jobs=True)
    path = tmp_path / "a b" / "model.py"
    path.write_text("import torch\nfrom torch import nn\n\nclass Block(nn.Module):\n    def forward(self, x):\n"
                    "        return torch.relu(x)\n\n\ndef get_inputs():\n    return [torch.randn(4, 8)]\n")
    events = records.measured_events()
    made = next(value for kind, value in events if kind == "candidate")
    run = write(tmp_path / "cache", "20260101-000000-Block-0001", events, path).name
    uri = client.open(path)
    with pytest.raises(LspError, match="no such candidate"):
        await client.command("hiera.reverify", uri=uri, symbol="Block", run=run, candidate="nothing")
    await client.command("hiera.reverify", uri=uri, symbol="Block", run=run, candidate=made.id)
    await client.wait_for(lambda: client.progress("end"))
    assert (await client.command("hiera.result", uri=uri, symbol="Block"))["standing"] == "offered"


def test_headlines_are_made_once_and_again_when_the_run_has_grown(tmp_path, monkeypatch) -> None:
    store = Store(tmp_path)
    folder = write(tmp_path, "20260101-000000-Chain-0001", records.measured_events())
    read: list[str] = []
    load = store.load
    monkeypatch.setattr(store, "load", lambda run: read.append(run) or load(run))

    first = Headlines(store).of(folder)
    assert first == headline_of(load(str(folder)), (folder / "events.jsonl").stat().st_size)
    assert (Headlines(store).of(folder), len(read)) == (first, 1), "another process reads the small file"
    run = Run(folder)
    run.append("stopped", Stopped(reason="cancelled", complete=False))
    run.close()
    again = Headlines(store).of(folder)
    assert (again.stop_reason, again.complete, len(read)) == ("cancelled", False, 2)
    for content in ("", "{", "[]", '{"version": 0}', json.dumps({"version": 1, "run": 3})):
        (folder / FILE).write_text(content)
        assert Headlines(store).of(folder) == again
    headlines = Headlines(store)
    assert headlines.of(folder) == again
    shutil.rmtree(folder)
    assert headlines.of(folder) is None


def test_a_run_at_work_is_read_anew_as_it_grows(tmp_path) -> None:
    store, events = Store(tmp_path), records.measured_events()
    run = Run(tmp_path / "runs" / "20260101-000000-Chain-0001")
    headlines, counts = Headlines(store), []
    for kind, value in events:
        run.append(kind, value)
        counts.append(headlines.of(run.folder).judged)
        assert (run.folder / FILE).exists() == (kind == "stopped")
    run.close()
    assert counts == sorted(counts)
    assert counts[-1] == 7


def test_files_are_inside_a_folder_under_either_of_its_names(tmp_path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.mkdir()
    link.symlink_to(real)
    wanted = inside([str(link)])
    assert wanted(str(link / "a.py"))
    assert wanted(str(real / "b" / "a.py"))
    assert wanted(str(real))
    assert not wanted(str(tmp_path / "really.py"))
    assert not wanted(str(tmp_path / "real2" / "a.py"))
    assert not wanted("")


def test_another_programs_run_at_work_is_seen(tmp_path) -> None:
    folder = write(tmp_path, "20260101-000000-Chain-0001", records.measured_events()[:4])
    code = (f"import sys; sys.path.insert(0, {str(ROOT)!r}); from pathlib import Path; from engine.store import Run; "
            f"run = Run(Path({str(folder)!r})); print('open', flush=True); sys.stdin.read()")
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ) as other:
        assert other.stdout.readline() == b"open\n"
        assert is_at_work(folder)
        other.stdin.close()
        other.wait(20)
    assert not is_at_work(folder)
