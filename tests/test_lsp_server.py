"""The server as a process: a whole review on a stored result, with several clients' abilities."""

from __future__ import annotations

import asyncio
import copy
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from lsp_client import FULL, ROOT, Client, LspError

from hiera_lsp.jobs import Site
from hiera_lsp.results import Result, Results
from hiera_lsp.sites import find
from hiera_lsp.summary import CandidateSummary, Summary

MODULE = """\
import torch
from torch import nn


class 𠀀lock(nn.Module):  # a name beyond the basic plane
    def forward(self, x):
        return torch.relu(x)


def get_inputs():
    return [torch.randn(4, 8)]
"""
KERNEL = """\
// my file
// hiera: arg x in float32[64]
// hiera: arg y out float32[64]
// hiera: launch grid=(1) block=(64)
__global__ void twice(const float* x, float* y) {
  y[threadIdx.x] = 2.0f * x[threadIdx.x];
}
"""
FASTER = KERNEL.replace("const float* x, float* y", "const float* __restrict__ x, float* __restrict__ y")


def summary(folder: Path, source: str, name: str) -> Summary:
    (folder / "sources").mkdir(parents=True, exist_ok=True)
    (folder / "contract").mkdir(exist_ok=True)
    path = folder / "sources" / "abc.cu"
    path.write_text(source)
    for file in ("torch_demo.py", "cpp_source.cpp", "groundtruth.py", "params_semantics.json"):
        (folder / "contract" / file).write_text(f"// {file}\n")
    best = CandidateSummary(
        id="abc", round=1, author="expert", title="restrict", space="cuda", direction="M", state="verified",
        source=str(path), accepted=True, median_us=10.0, speedup=1.83, ci95=(1.8, 1.86), speedup_vs_compile=1.2,
    )
    return Summary(
        run="run-1", folder=str(folder), name=name, entry=f"{name}_forward", measured=True, device="NVIDIA H200",
        stop_reason="all 3 rounds done", wall_s=9.0, bound="memory", evidence=("DRAM at 91 % of peak",),
        evidence_how="measured", intensity=0.25, floor_us=4.0, roof_us=9.0, eager_us=18.3, compile_us=12.0,
        space="cuda", space_reason="one pointwise kernel", direction="M", direction_reason="loads are 4 bytes wide",
        scores={"C": (1.0, "no divergence"), "M": (9.0, "narrow loads")}, candidates=(best,), best="abc",
        checks={"numeric": "pass", "memcheck": "not run: no tool"}, where="gpu", isolation="seccomp",
    )


def store_result(cache: Path, uri: str, text: str, symbol: str, found: Summary) -> None:
    (site,) = [s for s in find(uri, text) if s.symbol == symbol]
    result = Result(uri=uri, symbol=symbol, text_hash=site.text_hash, summary=found, chosen="abc",
                    finished_at="2026-01-01T00:00:00+00:00")
    Results(cache / "editor").update(result)


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    started = await Client.start(cache=tmp_path / "cache")
    yield started
    await started.kill()


def project(tmp_path: Path, name: str, text: str) -> Path:
    path = tmp_path / "my project" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


async def test_actions_are_listed_at_the_class_and_honour_only(tmp_path: Path, client: Client) -> None:
    path = project(tmp_path, "model.py", MODULE)
    reply = await client.initialize(folder=path.parent)
    uri = client.open(path)

    assert reply["capabilities"]["workspace"]["textDocumentContent"] == {"schemes": ["hiera-candidate"]}
    titles = [a["title"] for a in await client.actions(uri, 5)]
    assert titles[0] == "Optimize kernel: 𠀀lock"
    assert "Optimize kernel (deep): 𠀀lock" in titles
    assert await client.actions(uri, 5, trigger=2) == []
    assert (await client.actions(uri, 4, trigger=2))[0]["title"] == "Optimize kernel: 𠀀lock"
    assert await client.actions(uri, 4, only=["source"]) == []
    assert len(await client.actions(uri, 4, only=["refactor.rewrite.hiera.optimize"])) == 4


async def test_missing_inputs_disable_the_action_and_offer_a_stub(tmp_path: Path, client: Client) -> None:
    path = project(tmp_path, "model.py", MODULE.split("\n\n\ndef get_inputs")[0])
    await client.initialize(folder=path.parent)
    uri = client.open(path)

    actions = await client.actions(uri, 4)

    assert actions[0]["disabled"]["reason"] == "nothing says what 𠀀lock's example inputs are"
    (stub,) = [a for a in actions if a["kind"] == "quickfix.hiera.inputs"]
    edit = (await client.request("codeAction/resolve", stub))["edit"]
    (change,) = edit["documentChanges"]
    assert change["textDocument"] == {"uri": uri, "version": 1}
    assert "def get_inputs():" in change["edits"][0]["newText"]


async def test_hover_diagnostic_and_lens_tell_the_same_story(tmp_path: Path, client: Client) -> None:
    path = project(tmp_path, "model.py", MODULE)
    store_result(tmp_path / "cache", path.as_uri(), MODULE, "𠀀lock", summary(tmp_path / "cache" / "runs" / "run-1", KERNEL, "Block"))
    await client.kill()
    client = await Client.start(cache=tmp_path / "cache")
    await client.initialize(folder=path.parent)
    uri = client.open(path)

    hover = await client.request("textDocument/hover", {
        "textDocument": {"uri": uri}, "position": {"line": 4, "character": 8}})
    await client.wait_for(lambda: client.diagnostics.get(uri))
    lenses = await client.request("textDocument/codeLens", {"textDocument": {"uri": uri}})
    await client.kill()

    text = hover["contents"]["value"]
    assert "1.83x [1.80, 1.86] over eager" in text
    assert "memory, measured" in text
    assert "memcheck (not run: no tool)" in text
    # The name is five letters, the first of which counts two UTF-16 units.
    assert hover["range"] == {"start": {"line": 4, "character": 6}, "end": {"line": 4, "character": 12}}
    (diagnostic,) = client.diagnostics[uri]
    assert diagnostic["code"] == "hiera.memory-bound"
    assert diagnostic["severity"] == 3
    assert [lens["command"]["title"] for lens in lenses] == [
        "HIERA: 1.83x [1.80, 1.86] over eager", "Accept", "Discard", "Diff", "Report"]


async def test_a_changed_class_is_stale_and_cannot_be_accepted(tmp_path: Path) -> None:
    path = project(tmp_path, "model.py", MODULE)
    store_result(tmp_path / "cache", path.as_uri(), MODULE, "𠀀lock", summary(tmp_path / "cache" / "runs" / "run-1", KERNEL, "Block"))
    client = await Client.start(cache=tmp_path / "cache")
    await client.initialize(folder=path.parent)
    uri = client.open(path)
    await client.wait_for(lambda: client.diagnostics.get(uri))

    client.change(uri, MODULE.replace("torch.relu(x)", "torch.relu(x) + 1"), 2)
    await client.wait_for(lambda: client.diagnostics.get(uri) == [])
    with pytest.raises(LspError, match="changed since it was measured"):
        await client.command("hiera.accept", uri=uri, symbol="𠀀lock")
    titles = [a["title"] for a in await client.actions(uri, 4)]
    await client.kill()

    assert "Re-verify kernel" in titles


async def test_a_stale_result_outlives_a_restart_and_holds_again_when_the_edit_is_taken_back(tmp_path: Path, client: Client) -> None:
    changed = MODULE.replace("torch.relu(x)", "torch.relu(x) + 1")
    path = project(tmp_path, "model.py", changed)
    store_result(tmp_path / "cache", path.as_uri(), MODULE, "𠀀lock", summary(tmp_path / "cache" / "runs" / "run-1", KERNEL, "Block"))
    await client.initialize(folder=path.parent)
    uri = client.open(path)

    titles = {a["title"]: a for a in await client.actions(uri, 4)}
    assert titles["Re-verify kernel"]["command"]["command"] == "hiera.reverify"
    assert titles["Accept kernel abc (1.83x)"]["disabled"]["reason"] == "the source changed: re-verify first"
    hover = await client.request("textDocument/hover", {
        "textDocument": {"uri": uri}, "position": {"line": 4, "character": 8}})
    assert "the source changed since: re-verify before accepting" in hover["contents"]["value"]
    assert client.diagnostics.get(uri, []) == []
    client.change(uri, MODULE)
    await client.wait_for(lambda: client.diagnostics.get(uri))
    assert "Re-verify kernel" not in [a["title"] for a in await client.actions(uri, 4)]


async def test_accepting_a_module_creates_the_contract_folder_in_one_edit(tmp_path: Path) -> None:
    path = project(tmp_path, "model.py", MODULE)
    store_result(tmp_path / "cache", path.as_uri(), MODULE, "𠀀lock", summary(tmp_path / "cache" / "runs" / "run-1", KERNEL, "Block"))
    client = await Client.start(cache=tmp_path / "cache")
    await client.initialize(folder=path.parent)
    uri = client.open(path)

    answer = await client.command("hiera.accept", uri=uri, symbol="𠀀lock")
    (applied,) = [r for r in client.requests if r["method"] == "workspace/applyEdit"]
    await client.kill()

    assert answer["applied"] is True
    edit = applied["params"]["edit"]
    created = [c["uri"].rsplit("/", 1)[1] for c in edit["documentChanges"] if c.get("kind") == "create"]
    assert created == ["params_semantics.json", "torch_demo.py", "cpp_source.cpp", "groundtruth.py", "cuda_source.cu"]
    used = {e.get("annotationId") for c in edit["documentChanges"] for e in c.get("edits", [c])}
    assert used <= set(edit["changeAnnotations"])
    assert not (path.parent / "hiera_kernels").exists()


async def test_a_client_that_cannot_create_files_gets_them_written(tmp_path: Path) -> None:
    path = project(tmp_path, "model.py", MODULE)
    store_result(tmp_path / "cache", path.as_uri(), MODULE, "𠀀lock", summary(tmp_path / "cache" / "runs" / "run-1", KERNEL, "Block"))
    poor = copy.deepcopy(FULL)
    poor["workspace"]["workspaceEdit"] = {}
    client = await Client.start(cache=tmp_path / "cache")
    await client.initialize(poor, folder=path.parent)
    uri = client.open(path)

    folder = path.parent / "hiera_kernels" / "Block"
    folder.parent.mkdir()
    folder.write_text("a file of the user's\n")
    with pytest.raises(LspError, match="not ours"):
        await client.command("hiera.accept", uri=uri, symbol="𠀀lock")
    folder.unlink()

    answer = await client.command("hiera.accept", uri=uri, symbol="𠀀lock")
    await client.kill()

    assert answer["applied"] is True
    assert (folder / "cuda_source.cu").read_text() == KERNEL
    assert not list(folder.glob(".*"))


def test_what_a_job_at_work_has_so_far_is_no_result(tmp_path: Path) -> None:
    results, site = Results(tmp_path / "editor"), Site("file:///model.py", "Block")
    results.keep_part(site, "hash", summary(tmp_path / "run-1", KERNEL, "Block"))

    assert results.at(site) is None


def applied_edits(text: str, edits: list[dict[str, Any]]) -> str:
    lines = text.splitlines(keepends=True)
    for edit in sorted(edits, key=lambda e: e["range"]["start"]["line"], reverse=True):
        start, end = edit["range"]["start"], edit["range"]["end"]
        assert start["character"] == end["character"] == 0
        lines[start["line"]:end["line"]] = [edit["newText"]]
    return "".join(lines)


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
async def test_accepting_a_cu_file_changes_only_what_differs(tmp_path: Path, newline: str) -> None:
    text = KERNEL.replace("\n", newline)
    path = tmp_path / "twice.cu"
    path.write_bytes(text.encode())
    store_result(tmp_path / "cache", path.as_uri(), text, "twice", summary(tmp_path / "cache" / "runs" / "run-1", FASTER, "twice"))
    client = await Client.start(cache=tmp_path / "cache")
    await client.initialize(folder=tmp_path)
    uri = client.open(path, "cuda-cpp")

    (accept,) = [a for a in await client.actions(uri, 5) if a["kind"] == "refactor.rewrite.hiera.accept"]
    resolved = await client.request("codeAction/resolve", accept)
    content = await client.request("workspace/textDocumentContent", {"uri": "hiera-candidate:/run-1/abc/twice.cu"})
    await client.kill()

    (change,) = resolved["edit"]["documentChanges"]
    assert change["textDocument"]["version"] == 1
    assert len(change["edits"]) == 1
    assert applied_edits(text, change["edits"]) == FASTER.replace("\n", newline)
    assert content["text"] == FASTER


async def test_a_stale_action_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "twice.cu"
    path.write_text(KERNEL)
    store_result(tmp_path / "cache", path.as_uri(), KERNEL, "twice", summary(tmp_path / "cache" / "runs" / "run-1", FASTER, "twice"))
    client = await Client.start(cache=tmp_path / "cache")
    await client.initialize(folder=tmp_path)
    uri = client.open(path, "cuda-cpp")

    (accept,) = [a for a in await client.actions(uri, 5) if a["kind"] == "refactor.rewrite.hiera.accept"]
    client.change(uri, KERNEL + "\n", 2)
    with pytest.raises(LspError, match="stale code action"):
        await client.request("codeAction/resolve", accept)
    await client.kill()


async def test_discard_and_bad_settings(tmp_path: Path) -> None:
    path = tmp_path / "twice.cu"
    path.write_text(KERNEL)
    store_result(tmp_path / "cache", path.as_uri(), KERNEL, "twice", summary(tmp_path / "cache" / "runs" / "run-1", FASTER, "twice"))
    client = await Client.start(cache=tmp_path / "cache", settings={"preset": "huge"})
    await client.initialize(folder=tmp_path)
    uri = client.open(path, "cuda-cpp")
    await client.wait_for(lambda: client.diagnostics.get(uri))

    await client.command("hiera.discard", uri=uri, symbol="twice")
    await client.wait_for(lambda: client.diagnostics.get(uri) == [])
    warnings = [n["params"]["message"] for n in client.notifications if n["method"] == "window/showMessage"]
    await client.kill()

    assert len(warnings) == 1
    assert "hiera.preset is 'huge'" in warnings[0]


async def test_untrusted_workspaces_run_nothing(tmp_path: Path, client: Client) -> None:
    path = project(tmp_path, "model.py", MODULE)
    await client.initialize(folder=path.parent, options={"trusted": False})
    uri = client.open(path)

    with pytest.raises(LspError, match="not trusted"):
        await client.command("hiera.optimize", uri=uri, symbol="𠀀lock")
    assert "not trusted" in (await client.actions(uri, 4))[0]["disabled"]["reason"]


async def test_shutdown_exits_zero_and_a_lost_editor_ends_the_server(tmp_path: Path, client: Client) -> None:
    await client.initialize()
    assert await client.shutdown() == 0

    second = await Client.start(cache=tmp_path / "cache")
    await second.initialize()
    assert second.process.stdin is not None
    second.process.stdin.close()
    assert await asyncio.wait_for(second.process.wait(), 5) == 1


async def test_a_port_of_this_machine(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "hiera_lsp", "--tcp", "0", "--log-file", str(tmp_path / "log"), cwd=ROOT,
        stderr=asyncio.subprocess.PIPE, env={**os.environ, "HIERA_CACHE": str(tmp_path)})
    said = await process.stderr.readline()
    reader, writer = await asyncio.open_connection("127.0.0.1", int(said.rsplit(b":")[-1]))
    for number, method in ((1, "initialize"), (2, "shutdown"), (None, "exit")):
        body = {"jsonrpc": "2.0", "method": method, "params": {"processId": None, "rootUri": None, "capabilities": {}}}
        data = json.dumps(body if number is None else {**body, "id": number}).encode()
        writer.write(b"Content-Length: %d\r\n\r\n" % len(data) + data)
    answers = await asyncio.wait_for(reader.read(), 20)
    assert b'"name": "hiera-lsp"' in answers
    assert await asyncio.wait_for(process.wait(), 5) == 0
    writer.close()


async def test_settings_by_folder_and_what_was_said_at_the_start(tmp_path: Path) -> None:
    for name, preset in (("one", "quick"), ("two", "huge")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "pyproject.toml").write_text(f'[tool.hiera]\npreset = "{preset}"\n')
    client = await Client.start(cache=tmp_path / "cache", settings=None)
    client.settings = None  # The client knows no such section.
    client.metadata = True
    await client.request("initialize", {
        "processId": None, "rootUri": None, "capabilities": FULL,
        "workspaceFolders": [{"uri": (tmp_path / name).as_uri(), "name": name} for name in ("one", "two")],
        "initializationOptions": {"settings": {"outputFolder": "kernels", "codeLens": {"enable": False}}}})
    client.notify("initialized", {})
    path = tmp_path / "one" / "model.py"
    path.write_text(MODULE)
    store_result(tmp_path / "cache", path.as_uri(), MODULE, "𠀀lock", summary(tmp_path / "cache" / "runs" / "run-1", KERNEL, "Block"))
    uri = client.open(path)
    await client.wait_for(lambda: client.diagnostics.get(uri))
    assert await client.request("textDocument/codeLens", {"textDocument": {"uri": uri}}) == []
    await client.command("hiera.accept", uri=uri, symbol="𠀀lock")
    warnings = [n["params"]["message"] for n in client.notifications if n["method"] == "window/showMessage"]
    await client.kill()
    assert all("/one/kernels/Block/" in created for created in client.created)
    assert len(client.created) == 5
    assert len(warnings) == 1
    assert "'huge'" in warnings[0]
