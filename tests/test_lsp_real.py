"""The server with real jobs and no GPU: a `.cu` file profiled and optimised, a class verified again after an edit."""

from __future__ import annotations

import importlib.util
import shutil
import sys
import venv
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from lsp_client import Client

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="no torch"),
    pytest.mark.skipif(shutil.which("g++") is None, reason="no g++"),
]
SETTINGS = {"preset": "quick", "device": "none", "budget": {"candidates": 1}}
KERNEL = """\
// my file
// hiera: arg x in float32[4096]
// hiera: arg y out float32[4096]
// hiera: launch grid=(16) block=(256)
__global__ void twice(const float* x, float* y) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  y[i] = 2.0f * x[i];
}
"""
MODULE = """\
import torch


class Block(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)


def get_inputs():
    return [torch.randn(4, 8)]
"""


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    started = await Client.start(cache=tmp_path / "cache", settings=SETTINGS)
    await started.initialize(folder=tmp_path)
    yield started
    await started.kill()


async def run(client: Client, command: str, uri: str, symbol: str, **more: Any) -> str:
    before = len(client.progress("end"))
    await client.command(command, uri=uri, symbol=symbol, **more)
    await client.wait_for(lambda: len(client.progress("end")) > before, 200)
    return client.progress("end")[-1]["message"]


async def test_a_cu_file(tmp_path: Path, client: Client) -> None:
    path = tmp_path / "twice.cu"
    path.write_text(KERNEL)
    uri = client.open(path, "cuda-cpp")

    assert await run(client, "hiera.profile", uri, "twice") == "verified without a GPU: no speed-up is claimed"
    await client.wait_for(lambda: client.diagnostics.get(uri))
    assert client.diagnostics[uri][0]["code"].endswith("-bound")
    found = await client.command("hiera.result", uri=uri, symbol="twice")
    assert [c["author"] for c in found["summary"]["candidates"]] == ["user"]
    assert "nothing was searched" in found["summary"]["stop_reason"]

    await run(client, "hiera.optimize", uri, "twice")
    found = await client.command("hiera.result", uri=uri, symbol="twice")
    ours = [c["id"] for c in found["summary"]["candidates"] if c["accepted"] and c["author"] != "user"]
    assert ours
    await client.command("hiera.choose", uri=uri, symbol="twice", candidate=ours[0])
    await client.command("hiera.accept", uri=uri, symbol="twice")
    assert client.texts[uri] != KERNEL
    assert client.texts[uri].startswith("// my file\n")
    assert "hiera: the adaptor" not in client.texts[uri]
    client.undo(uri)
    assert client.texts[uri] == KERNEL
    assert (await client.command("hiera.report", uri=uri, symbol="twice"))["file"].endswith("report.html")


BINDING = """\
// Doubles and clips, bound to Python.
// hiera: arg x in float32[64, 64]
// hiera: returns float32[64, 64]
// hiera: reference torch.relu(2.0 * x)
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>

struct Pack { int mine; };  // used by other files

__global__ void clip_kernel(const float* x, float* y) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  y[i] = x[i] < 0.0f ? 0.0f : 2.0f * x[i];
}

// What Python calls.
torch::Tensor clip(torch::Tensor x) {
\tauto y = torch::empty_like(x);
\tclip_kernel<<<16, 256, 0, at::cuda::getCurrentCUDAStream()>>>(x.data_ptr<float>(), y.data_ptr<float>());
\treturn y;
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("clip", &clip); }
"""


async def test_a_kernel_written_anew_leaves_the_rest_of_the_users_file(tmp_path: Path, client: Client) -> None:
    path = tmp_path / "clip.cu"
    path.write_text(BINDING)
    uri = client.open(path, "cuda-cpp")
    await run(client, "hiera.optimize", uri, "clip")
    found = await client.command("hiera.result", uri=uri, symbol="clip")
    ours = [c["id"] for c in found["summary"]["candidates"] if c["accepted"] and c["author"] != "user"]
    assert ours, found["summary"]["candidates"]
    await client.command("hiera.choose", uri=uri, symbol="clip", candidate=ours[0])
    await client.command("hiera.accept", uri=uri, symbol="clip")
    lost = [line for line in BINDING.splitlines() if line not in client.texts[uri].splitlines()]
    # The old kernel and the old body are gone, and nothing else.
    assert lost == BINDING.splitlines()[9:12] + BINDING.splitlines()[16:19]
    assert (await client.command("hiera.result", uri=uri, symbol="clip"))["standing"] == "accepted"
    client.undo(uri)
    assert client.texts[uri] == BINDING


async def test_verified_again_after_an_edit(tmp_path: Path, client: Client) -> None:
    path = tmp_path / "model.py"
    path.write_text(MODULE)
    uri = client.open(path)
    await run(client, "hiera.optimize", uri, "Block")

    for body, fits in (("torch.relu(x)  # the same", True), ("torch.relu(x) + 1", False)):
        text = MODULE.replace("torch.relu(x)", body)
        path.write_text(text)
        client.change(uri, text)
        assert (await client.command("hiera.result", uri=uri, symbol="Block"))["standing"] == "stale"
        await run(client, "hiera.reverify", uri, "Block")
        found = await client.command("hiera.result", uri=uri, symbol="Block")
        assert (found["standing"] == "offered") == fits
    await client.wait_for(lambda: client.diagnostics.get(uri))
    assert client.diagnostics[uri][0]["code"] == "hiera.reverify"


async def test_a_mistake_of_the_users_is_shown_on_its_line(tmp_path: Path, client: Client) -> None:
    path = tmp_path / "model.py"
    path.write_text(MODULE.replace("import torch\n", "import torch\nimport no_such_package\n"))
    uri = client.open(path)
    assert (await run(client, "hiera.optimize", uri, "Block")).startswith("not done: ")
    (diagnostic,) = client.diagnostics[uri]
    assert diagnostic["range"]["start"]["line"] == 1
    assert diagnostic["code"] == "hiera.input"


async def test_an_interpreter_without_torch_is_told_with_a_way_out(tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    venv.create(bare, with_pip=False, symlinks=True)
    python = str(bare / "bin" / "python")
    client = await Client.start(cache=tmp_path / "cache", settings={**SETTINGS, "worker": {"interpreter": python}})
    await client.initialize(folder=tmp_path)
    path = tmp_path / "model.py"
    path.write_text(MODULE)
    uri = client.open(path)
    await run(client, "hiera.optimize", uri, "Block")
    (diagnostic,) = client.diagnostics[uri]
    assert diagnostic["code"] in ("hiera.environment", "hiera.configuration")
    assert python in diagnostic["message"]
    assert "torch" in diagnostic["message"]
    place = diagnostic["range"]
    actions = await client.request("textDocument/codeAction", {
        "textDocument": {"uri": uri}, "range": place, "context": {"diagnostics": [diagnostic], "only": ["quickfix"]}})
    assert [a["title"] for a in actions] == ["Show what HIERA finds on this machine"]
    told = await client.request("workspace/executeCommand", {
        "command": actions[0]["command"]["command"], "arguments": actions[0]["command"]["arguments"]}, 120)
    await client.kill()
    assert "torch" in told["text"]
