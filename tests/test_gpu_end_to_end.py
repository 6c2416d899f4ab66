"""The whole job on a real GPU: accepted kernels, claims that survive a fresh judge, cheats that only a GPU shows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
pytestmark = [pytest.mark.gpu, pytest.mark.timeout(400)]

HEAD = """
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
__global__ void twice(const float* x, float* y, int64_t n) {
  int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
  if (i < n) y[i] = 2.0f * x[i] + 1.0f;
}
"""
HONEST = HEAD + """
torch::Tensor twice_forward(torch::Tensor x) {
  auto y = torch::empty_like(x);
  twice<<<(x.numel() + 255) / 256, 256, 0, at::cuda::getCurrentCUDAStream()>>>(
      x.data_ptr<float>(), y.data_ptr<float>(), x.numel());
  return y;
}
"""
SIDE_STREAM = HEAD + """
torch::Tensor twice_forward(torch::Tensor x) {
  static cudaStream_t side = [] { cudaStream_t s; cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking); return s; }();
  auto y = torch::empty_like(x);
  twice<<<(x.numel() + 255) / 256, 256, 0, side>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.numel());
  return y;
}
"""
LATER = HEAD + """
torch::Tensor twice_forward(torch::Tensor x) {
  static torch::Tensor kept = torch::empty_like(x);
  static int calls = 0;
  if (calls++ < 40 || calls % 2)
    twice<<<(x.numel() + 255) / 256, 256, 0, at::cuda::getCurrentCUDAStream()>>>(
        x.data_ptr<float>(), kept.data_ptr<float>(), x.numel());
  return kept;
}
"""
OUT_OF_BOUNDS = HEAD.replace("if (i < n)", "if (true)") + HONEST.removeprefix(HEAD).replace("255) / 256", "255) / 256 + 4")
GROUNDTRUTH = """
import torch

def reference(x):
    return 2.0 * x + 1.0

def get_inputs():
    return [torch.randn(8192, 4096)]
"""


def hiera(*arguments: str, timeout_s: float = 300) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "engine.cli", *arguments], cwd=ROOT, capture_output=True, text=True,
                          timeout=timeout_s)


def folder(tmp_path: Path, source: str) -> Path:
    out = tmp_path / "twice"
    out.mkdir()
    (out / "groundtruth.py").write_text(GROUNDTRUTH)
    (out / "cpp_source.cpp").write_text("torch::Tensor twice_forward(torch::Tensor x);\n")
    (out / "cuda_source.cu").write_text(source)
    return out


def judged(tmp_path: Path, source: str) -> tuple[int, dict[str, Any], str]:
    result = tmp_path / "result.json"
    done = hiera("evaluate", str(folder(tmp_path, source)), "--json", str(result))
    found = json.loads(result.read_text())["candidates"][0] if result.exists() else {}
    return done.returncode, found, done.stdout + done.stderr


def test_an_honest_kernel_is_accepted_and_timed(tmp_path: Path) -> None:
    status, found, text = judged(tmp_path, HONEST)

    assert status == 0, text
    assert found["verification"]["where"] == "gpu"
    assert found["speedup"] > 1.2, "one fused kernel must beat two eager ones"
    assert found["ci95"][0] <= found["speedup"] <= found["ci95"][1]


@pytest.mark.parametrize("source", [SIDE_STREAM, LATER, OUT_OF_BOUNDS], ids=["side stream", "idles later", "out of bounds"])
def test_cheats_that_only_a_gpu_shows_are_rejected(tmp_path: Path, source: str) -> None:
    status, found, text = judged(tmp_path, source)

    assert status == 1, text
    assert found["rejected"]


def test_an_optimised_module_is_faster_and_its_winner_passes_a_fresh_judge(tmp_path: Path) -> None:
    module = tmp_path / "softmax_bias.py"
    module.write_text(
        "import torch\nfrom torch import nn\n\n\nclass Block(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.scale = nn.Parameter(torch.rand(2048))\n\n"
        "    def forward(self, x):\n        return torch.softmax(torch.nn.functional.gelu(x) * self.scale, dim=-1) + x\n\n\n"
        "def get_inputs():\n    return [torch.randn(16384, 2048)]\n"
    )
    result, out = tmp_path / "result.json", tmp_path / "out"

    done = hiera("optimize", str(module), "--preset", "quick", "--json", str(result), "--out", str(out))

    assert done.returncode == 0, done.stderr
    document = json.loads(result.read_text())
    best = next(c for c in document["candidates"] if c["id"] == document["best"])
    assert document["measured"] is True
    assert best["ci95"][0] > 1.5, "four memory-bound operators in one kernel"
    assert best["confirmed"] is True
    assert best["counters"]["status"] == "measured"
    again = hiera("evaluate", str(out), "--json", str(tmp_path / "again.json"))
    assert again.returncode == 0, again.stdout + again.stderr


def test_a_bare_kernel_is_candidate_zero(tmp_path: Path) -> None:
    file = tmp_path / "saxpy.cu"
    file.write_text(
        "// hiera: arg x in float32[4194304]\n// hiera: arg y out float32[4194304]\n// hiera: arg n 4194304\n"
        "// hiera: launch grid=((4194304 + 127) / 128) block=(128)\n"
        "__global__ void saxpy(const float* x, float* y, int n) {\n"
        "  int i = blockIdx.x * blockDim.x + threadIdx.x;\n  if (i < n) y[i] = 2.0 * x[i] + 1.0;\n}\n"
    )
    result = tmp_path / "result.json"

    done = hiera("optimize", str(file), "--preset", "quick", "--budget", "3", "--json", str(result))

    assert done.returncode == 0, done.stderr
    document = json.loads(result.read_text())
    assert document["candidates"][0]["author"] == "user"
    assert document["candidates"][0]["rejected"] is None
    assert document["best"] is not None
