"""Jobs through the server: progress, results, cancelling, failing, reloading, and that nothing is left behind."""

from __future__ import annotations

import asyncio
import copy
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from lsp_client import FULL, Client, LspError

from contracts import codec
from engine.trajectory import Event, Job, Trajectory
from hiera_lsp import job
from hiera_lsp.sites import find

CLASS = """

class {name}(nn.Module):
    def forward(self, x):
        return torch.relu(x)
"""
HEAD = "import torch\nfrom torch import nn\nBAD = 1\n"
TAIL = "\n\ndef get_inputs():\n    return [torch.randn(4, 8)]\n"
# Line of the n-th class.
LINES = [5, 10, 15, 20]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Any]:
    clients: list[Client] = []

    async def begin(*names: str, capabilities: dict[str, Any] | None = None, again: bool = False,
                    **how: Any) -> tuple[Client, str, Path]:
        path = tmp_path / "a b" / "model.py"
        path.parent.mkdir(exist_ok=True)
        if not again:
            path.write_text(HEAD + "".join(CLASS.format(name=name) for name in names) + TAIL)
        client = await Client.start(cache=tmp_path / "cache", fake_jobs=True, **how)
        clients.append(client)
        await client.initialize(capabilities, folder=path.parent)
        return client, client.open(path), path

    yield begin
    for client in clients:
        await client.kill()


def ended(client: Client, count: int = 1) -> Any:
    return lambda: len(client.progress("end")) >= count


async def test_the_whole_story(start) -> None:
    client, uri, path = await start("Block")
    action = (await client.actions(uri, LINES[0]))[0]
    answer = await client.request("workspace/executeCommand", {
        "command": action["command"]["command"], "arguments": action["command"]["arguments"]})
    await client.wait_for(ended(client))
    await client.wait_for(lambda: client.diagnostics.get(uri) and "still" not in client.diagnostics[uri][0]["message"])

    (begin,), (end,) = client.progress("begin"), client.progress("end")
    assert answer == {"jobId": "hiera-job-1"}
    assert begin["title"] == "Optimize kernel Block"
    assert begin["cancellable"] is True
    assert begin["percentage"] == 0
    assert any("direction M" in report["message"] for report in client.progress("report"))
    assert end["message"] == "1.60x [1.55, 1.65] over eager"
    (diagnostic,) = client.diagnostics[uri]
    assert diagnostic["code"] == "hiera.memory-bound"
    hover = await client.request("textDocument/hover", {
        "textDocument": {"uri": uri}, "position": {"line": LINES[0], "character": 8}})
    assert "1.60x" in hover["contents"]["value"]

    assert await client.command("hiera.accept", uri=uri, symbol="Block") == {"applied": True, "reason": None}
    assert {u.rsplit("/", 1)[1] for u in client.created} == {
        "torch_demo.py", "cpp_source.cpp", "groundtruth.py", "params_semantics.json", "cuda_source.cu"}
    assert all("/hiera_kernels/block/" in u for u in client.created)
    await client.wait_for(lambda: client.diagnostics.get(uri) == [])
    assert (await client.command("hiera.result", uri=uri, symbol="Block"))["standing"] == "accepted"
    assert path.read_text() == client.texts[uri]


async def test_each_stage_shows_at_once(start) -> None:
    client, uri, _ = await start("SlowA", env={"FAKE_CLOCK": "1"})
    lags = []
    take = client._take

    def timed(message: dict[str, Any]) -> None:
        take(message)
        if message.get("method") == "textDocument/publishDiagnostics":
            lags.extend(time.time() - float(diagnostic["message"].split("told at ")[1].split()[0])
                        for diagnostic in message["params"]["diagnostics"])

    client._take = timed
    await client.command("hiera.optimize", uri=uri, symbol="SlowA")
    await client.wait_for(lambda: len(lags) > 10)
    assert sorted(lags)[len(lags) // 2] < 0.1
    assert "(still searching)" in client.diagnostics[uri][0]["message"]
    hover = await client.request("textDocument/hover", {
        "textDocument": {"uri": uri}, "position": {"line": LINES[0], "character": 8}})
    assert hover["contents"]["value"].startswith("HIERA is working: round 1/1")
    assert "over eager" in hover["contents"]["value"]
    await client.command("hiera.cancel")
    await client.wait_for(ended(client))
    assert "(still searching)" not in client.diagnostics[uri][0]["message"]


async def test_several_sites_at_once_and_one_job_a_site(start) -> None:
    client, uri, _ = await start("SlowA", "SlowB", "SlowC")
    for name in ("SlowA", "SlowB", "SlowC"):
        await client.command("hiera.optimize", uri=uri, symbol=name)
    with pytest.raises(LspError, match="a job for SlowB is running"):
        await client.command("hiera.optimize", uri=uri, symbol="SlowB")
    # The same path, spelled by another client, is the same site.
    with pytest.raises(LspError, match="a job for SlowB is running"):
        await client.command("hiera.optimize", uri=uri.replace("%20", " "), symbol="SlowB")
    assert {job["symbol"] for job in await client.command("hiera.jobs")} == {"SlowA", "SlowB", "SlowC"}
    actions = await client.actions(uri, LINES[1])
    assert actions[0]["disabled"]["reason"] == "a job for it is running"

    await client.wait_for(lambda: len(client.progress("report")) > 6)
    assert await client.command("hiera.cancel", uri=uri, symbol="SlowA") == {"cancelled": ["hiera-job-1"]}
    client.notify("window/workDoneProgress/cancel", {"token": "hiera-job-2"})
    await client.wait_for(ended(client, 2))
    assert [job["symbol"] for job in await client.command("hiera.jobs")] == ["SlowC"]
    assert all(end["message"].startswith("cancelled, kept the best so far: 1.") for end in client.progress("end"))
    titles = [a["title"] for a in await client.actions(uri, LINES[0])]
    assert any(title.startswith("Resume optimisation") for title in titles)
    assert any(title.startswith("Accept kernel c") for title in titles)
    assert (await client.command("hiera.cancel"))["cancelled"] == ["hiera-job-3"]


async def test_a_failed_job_is_a_diagnostic_on_the_users_line_until_it_is_edited(start) -> None:
    client, uri, _ = await start("Fails")
    await client.command("hiera.optimize", uri=uri, symbol="Fails")
    await client.wait_for(lambda: client.diagnostics.get(uri))
    (diagnostic,) = client.diagnostics[uri]
    assert diagnostic["message"] == "the module cannot be imported\nTo fix: mend line"
    assert diagnostic["code"] == "hiera.input"
    assert diagnostic["range"] == {"start": {"line": 2, "character": 0}, "end": {"line": 2, "character": 7}}
    await client.wait_for(ended(client))
    assert client.progress("end")[0]["message"] == "not done: the module cannot be imported"

    client.change(uri, client.texts[uri].replace("BAD = 1", "BAD = 2"))
    await client.wait_for(lambda: client.diagnostics.get(uri) == [])


@pytest.mark.parametrize(("name", "why"), [("Garbage", "make no sense"), ("Dies", "ended with status 7")])
async def test_a_job_that_breaks_is_told_and_leaves_the_server_well(start, name: str, why: str) -> None:
    client, uri, _ = await start(name, "Block")
    await client.command("hiera.optimize", uri=uri, symbol=name)
    await client.wait_for(lambda: client.diagnostics.get(uri))
    assert why in client.diagnostics[uri][0]["message"]
    await client.command("hiera.optimize", uri=uri, symbol="Block")
    await client.wait_for(ended(client, 2))
    assert client.progress("end")[1]["message"].startswith("1.60x")


async def test_editing_while_it_runs_makes_the_result_stale_and_keeps_it(start) -> None:
    client, uri, path = await start("SlowA")
    await client.command("hiera.optimize", uri=uri, symbol="SlowA")
    await client.wait_for(lambda: client.progress("report"))
    client.change(uri, client.texts[uri].replace("torch.relu(x)", "torch.relu(x) + 1"))
    await client.command("hiera.cancel")
    await client.wait_for(ended(client))
    await client.wait_for(lambda: client.diagnostics.get(uri, []) == [])

    titles = {a["title"]: a for a in await client.actions(uri, LINES[0])}
    assert "Re-verify kernel" in titles
    accept = next(a for title, a in titles.items() if title.startswith("Accept kernel"))
    assert accept["disabled"]["reason"].startswith("the source changed")
    assert client.diagnostics.get(uri, []) == []
    with pytest.raises(LspError, match="unsaved changes"):
        await client.command("hiera.reverify", uri=uri, symbol="SlowA")
    # The user takes it back: the result holds again.
    client.change(uri, path.read_text())
    await client.wait_for(lambda: client.diagnostics.get(uri))


async def test_a_result_belongs_to_the_text_that_its_job_has_read(start) -> None:
    client, uri, path = await start("NewerBlock")
    asked = path.read_text()
    read = asked.replace("torch.relu(x)", "torch.tanh(x)")
    await client.command("hiera.optimize", uri=uri, symbol="NewerBlock")
    path.write_text(read)  # The job's process waits for it before it reads.
    client.change(uri, read)
    await client.wait_for(ended(client))
    stands = (await client.command("hiera.result", uri=uri, symbol="NewerBlock"))["standing"]
    client.change(uri, asked)
    taken_back = (await client.command("hiera.result", uri=uri, symbol="NewerBlock"))["standing"]

    assert (stands, taken_back) == ("offered", "stale")


@pytest.mark.parametrize(("saved", "told"), [("before", "b"), ("meanwhile", None), ("later", "a")])
async def test_a_job_tells_which_text_it_has_read(tmp_path: Path, monkeypatch, saved: str, told: str | None) -> None:
    path, texts = tmp_path / "a.py", {name: HEAD + CLASS.format(name="Block") + f"    {name} = 1\n" for name in "ab"}
    path.write_text(texts["b" if saved == "before" else "a"])
    sent: list[tuple[str, dict[str, Any]]] = []

    async def optimize(_job: Job, *, on_event: Any, **_how: Any) -> Trajectory:
        trajectory = Trajectory(run="r")
        if saved == "meanwhile":
            path.write_text(texts["b"])
        on_event(Event("contract", 0.0, None), trajectory)
        if saved == "later":
            path.write_text(texts["b"])
        return trajectory

    monkeypatch.setattr(job, "optimize", optimize)
    monkeypatch.setattr(job.one_request, "listen", lambda _cancel: None)
    monkeypatch.setenv("HIERA_CACHE", str(tmp_path / "cache"))
    asked = {"job": codec.to_data(Job(file=str(path), name="Block")), "fresh": True}
    await job._run(asked, lambda what, /, **fields: sent.append((what, fields)))
    hashes = {name: find(path.as_uri(), text)[0].text_hash for name, text in texts.items()}

    assert [fields["text_hash"] for what, fields in sent if what == "read"] == [hashes.get(told, job.CHANGED)]


async def test_a_gpu_that_is_taken_shows_in_the_progress(start) -> None:
    client, uri, _ = await start("Waits")
    await client.command("hiera.optimize", uri=uri, symbol="Waits")
    await client.wait_for(ended(client))
    messages = [report["message"] for report in client.progress("report")]
    assert "waiting for GPU 0: another job is timing on it" in messages
    assert "round 1/1" in messages[-1]


async def test_a_reload_keeps_results_and_resumes_what_a_killed_server_left(start) -> None:
    client, uri, _ = await start("SlowA", "Block")
    await client.command("hiera.optimize", uri=uri, symbol="Block")
    await client.wait_for(ended(client))
    await client.command("hiera.optimize", uri=uri, symbol="SlowA")
    await client.wait_for(lambda: sum("/600" in r["message"] for r in client.progress("report")) > 1)
    client.process.kill()
    await client.process.wait()

    client, uri, _ = await start("SlowA", "Block", again=True)
    await client.wait_for(lambda: len(client.diagnostics.get(uri, ())) == 2)
    (resume,) = [a for a in await client.actions(uri, LINES[0]) if a["title"].startswith("Resume")]
    assert resume["command"]["arguments"][0]["resume"] == "run-SlowA"
    await client.request("workspace/executeCommand", {
        "command": "hiera.optimize", "arguments": resume["command"]["arguments"]})
    await client.wait_for(lambda: client.progress("report"))
    assert "4/600" in client.progress("report")[0]["message"]


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


async def until_gone(pids: list[int], limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while any(alive(pid) for pid in pids):
        assert time.monotonic() < deadline, f"{[pid for pid in pids if alive(pid)]} still run"
        await asyncio.sleep(0.05)


async def test_a_job_that_does_not_listen_is_killed_with_all_it_started(start) -> None:
    client, uri, path = await start("Orphan")
    await client.command("hiera.optimize", uri=uri, symbol="Orphan")
    await client.wait_for(lambda: path.with_suffix(".pid").exists() and client.progress("begin"))
    pids = [int(word) for word in path.with_suffix(".pid").read_text().split()]
    begun = time.monotonic()
    await client.command("hiera.cancel")
    await client.wait_for(ended(client))
    assert time.monotonic() - begun < 20  # It is killed after five seconds; by itself it would end after a minute.
    await until_gone(pids, 1)


@pytest.mark.parametrize("how", ["shutdown", "SIGTERM", "SIGKILL", "closed"])
async def test_the_end_of_the_server_ends_its_jobs(start, how: str) -> None:
    client, uri, _ = await start("SlowA")
    await client.command("hiera.optimize", uri=uri, symbol="SlowA")
    await client.wait_for(lambda: client.progress("report"))
    pids = [int(pid) for pid in Path(f"/proc/{client.process.pid}/task/{client.process.pid}/children").read_text().split()]
    assert pids
    begun = time.monotonic()
    if how == "shutdown":
        assert await client.shutdown() == 0
        assert time.monotonic() - begun < 10
    elif how == "closed":
        client.process.stdin.close()
        assert await asyncio.wait_for(client.process.wait(), 5) == 1
    else:
        client.process.send_signal(getattr(signal, how))
        await client.process.wait()
    await until_gone(pids, 5)


@pytest.mark.parametrize("how", ["shutdown", "closed"])
async def test_the_end_of_the_server_ends_a_check_of_the_machine_and_spares_its_jobs(start, tmp_path: Path, how: str) -> None:
    seen = tmp_path / "seen"
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho $$ > '{seen}'\nexec sleep 60\n")
    python.chmod(0o755)
    client, uri, path = await start("Orphan", settings={"worker.interpreter": str(python)})
    await client.command("hiera.optimize", uri=uri, symbol="Orphan")
    await client.wait_for(lambda: path.with_suffix(".pid").exists() and client.progress("begin"))
    checking = asyncio.create_task(client.command("hiera.doctor", uri=uri))
    async with asyncio.timeout(60):
        while not (seen.exists() and seen.read_text()):  # noqa: ASYNC110 - a file appears.
            await asyncio.sleep(0.05)
    if how == "shutdown":
        await client.request("shutdown", None)
    else:
        client.process.stdin.close()
        await asyncio.wait_for(client.process.wait(), 5)
    await until_gone([int(seen.read_text())], 5)
    with pytest.raises((LspError, ConnectionError)):
        await checking
    # This job does not listen. One that does has time to keep what it has.
    job = [int(word) for word in path.with_suffix(".pid").read_text().split()]
    assert all(alive(pid) for pid in job)
    for pid in job:
        os.kill(pid, signal.SIGKILL)


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="the system does not tell of a process that ends")
async def test_a_killed_editor_leaves_nothing_even_where_its_pipes_stay_open(tmp_path: Path) -> None:
    path, seen, tests = tmp_path / "model.py", tmp_path / "seen", Path(__file__).parent
    path.write_text(HEAD + CLASS.format(name="SlowA") + TAIL)
    editor = await asyncio.create_subprocess_exec(
        sys.executable, str(tests / "editors" / "dying_editor.py"), str(tests / "fake_server.py"), str(path), "SlowA", str(seen),
        env={**os.environ, "HIERA_CACHE": str(tmp_path / "cache")})
    async with asyncio.timeout(60):
        while not (seen.exists() and seen.read_text()):  # noqa: ASYNC110 - a file appears.
            await asyncio.sleep(0.05)
    sleeper, *ours = map(int, seen.read_text().split())
    try:
        assert len(ours) >= 2
        assert all(alive(pid) for pid in ours)
        editor.kill()
        await until_gone(ours, 5)
        assert alive(sleeper)
    finally:
        os.kill(sleeper, signal.SIGKILL)
        await editor.wait()


async def test_an_editor_that_cannot_be_seen_is_not_watched(tmp_path: Path) -> None:
    """As from outside of the server's container: its number is nobody's here."""
    client = await Client.start(cache=tmp_path / "cache", fake_jobs=True)
    await client.request("initialize", {"processId": 2**22 + 1, "rootUri": None, "capabilities": FULL})
    client.notify("initialized", {})
    await asyncio.sleep(2.5)
    assert await client.command("hiera.jobs") == []
    assert await client.shutdown() == 0


async def test_a_job_goes_on_when_its_tab_is_closed(start) -> None:
    client, uri, path = await start("Block")
    await client.command("hiera.optimize", uri=uri, symbol="Block")
    await client.wait_for(lambda: client.progress("begin"))
    client.notify("textDocument/didClose", {"textDocument": {"uri": uri}})
    await client.wait_for(ended(client))
    client.diagnostics.clear()
    client.open(path)
    await client.wait_for(lambda: client.diagnostics.get(uri))
    assert "1.60x" in client.diagnostics[uri][0]["message"]


async def test_shutdown_is_answered_within_a_second_in_the_middle_of_a_job(start) -> None:
    client, uri, _ = await start("SlowA", "SlowB")
    for name in ("SlowA", "SlowB"):
        await client.command("hiera.optimize", uri=uri, symbol=name)
    await client.wait_for(lambda: client.progress("report"))
    client.silent.add("window/showDocument")
    begun = time.monotonic()
    await client.request("shutdown", None)
    assert time.monotonic() - begun < 5  # Far below a second on an idle core.
    client.notify("exit", None)
    assert await asyncio.wait_for(client.process.wait(), 10) == 0


async def test_a_client_without_progress_or_lenses_is_asked_at_the_end(start) -> None:
    poor = copy.deepcopy(FULL)
    poor["window"] = {}
    client, uri, _ = await start("Block", capabilities=poor)
    client.answers["window/showMessageRequest"] = {"title": "Discard"}
    await client.command("hiera.optimize", uri=uri, symbol="Block")
    await client.wait_for(lambda: any(r["method"] == "window/showMessageRequest" for r in client.requests))
    (question,) = [r["params"] for r in client.requests if r["method"] == "window/showMessageRequest"]
    assert question["message"] == "HIERA Block: 1.60x [1.55, 1.65] over eager"
    await client.wait_for(lambda: uri in client.diagnostics and client.diagnostics[uri] == [])
    logs = [n["params"]["message"] for n in client.notifications if n["method"] == "window/logMessage"]
    assert "HIERA Block: 1.60x [1.55, 1.65] over eager" in logs


async def test_a_button_that_cannot_be_followed_says_so(start) -> None:
    poor = copy.deepcopy(FULL)
    poor["window"] = {}
    client, uri, path = await start("Block", capabilities=poor)
    client.silent.add("window/showMessageRequest")
    await client.command("hiera.optimize", uri=uri, symbol="Block")
    await client.wait_for(lambda: any(r["method"] == "window/showMessageRequest" for r in client.requests))
    question = next(r for r in client.requests if r["method"] == "window/showMessageRequest")
    client.change(uri, path.read_text().replace("torch.relu(x)", "torch.tanh(x)"))
    client._send({"id": question["id"], "result": {"title": "Accept"}})
    shown = lambda: [n["params"]["message"] for n in client.notifications if n["method"] == "window/showMessage"]  # noqa: E731
    await client.wait_for(shown)

    assert shown() == ["HIERA: Block changed since it was measured (to fix: re-verify the kernel first)"]


async def test_a_client_that_never_answers_holds_nothing_up(start) -> None:
    client, uri, _ = await start("Block")
    client.silent |= {"window/workDoneProgress/create", "workspace/codeLens/refresh"}
    await client.command("hiera.optimize", uri=uri, symbol="Block")
    await client.wait_for(lambda: client.diagnostics.get(uri))
    assert client.progress("begin") == client.progress("end") == []
