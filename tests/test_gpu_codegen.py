"""What the expert may choose, judged on a real card: clusters, Tensor Cores, formats, graphs, streams."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from engine import codegen
from engine.devices import find_device
from engine.extract import extract

ROOT = Path(__file__).parent.parent
pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

MODEL = """
import torch
from torch import nn
import torch.nn.functional as F

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        {layers}

    def forward(self, x):
        return {result}

def get_inputs():
    return [torch.randn({shape})]
"""
# Layers, result, shape of the input; end of the choice's name and its value; what the source must then say.
CASES = {
    "cluster": ("pass", "F.log_softmax(x, 1)", "300, 100000", ("cluster", 2), "launch_cluster("),
    "largest cluster": ("pass", "F.instance_norm(x)", "2, 40, 512, 700", ("cluster", 8), "cluster_reduce<8,"),
    "tensor cores": ("self.fc = nn.Linear(512, 640)", "self.fc(x).relu()", "1000, 512", ("means", "tensor_cores"),
                     "mma"),
    "halves": ("self.fc = nn.Linear(8192, 2048)", "self.fc(x).relu()", "1000, 8192", ("means", "halves"), "cublasGemmEx"),
    "channels last": ("self.conv = nn.Conv2d(32, 64, 3)", "self.conv(x).sigmoid()", "8, 32, 60, 60",
                      ("layout", "channels_last"), "x_channels_last_copy"),
    "measured algorithms": ("self.conv = nn.Conv2d(24, 40, (3, 7), padding=(1, 3))", "self.conv(x).sigmoid()",
                            "16, 24, 90, 70", ("algorithms", "measured"), "/*benchmark=*/true"),
    "graph": ("self.a, self.b = nn.Linear(64, 64), nn.Linear(64, 64)", "self.b(self.a(x).tanh()).tanh() + x", "32, 64",
              ("launches", "graph"), "CUDAGraph"),
    "stream": ("self.conv = nn.Conv2d(1, 1, 7, padding=3)", "self.conv(x).relu()", "1, 1, 2000, 1501",
               ("waves", 4), "__pipeline_memcpy_async"),
    "steps": ("self.conv = nn.Conv2d(2, 2, 5, padding=2, groups=2)", "self.conv(self.conv(x).tanh())", "1, 2, 1000, 1004",
              ("steps", 2), "steps = 2"),
}


def source_of(folder: Path, case: tuple, space: str) -> str:
    layers, result, shape, (ending, value), _ = case
    file = folder / "net.py"
    file.write_text(MODEL.format(layers=layers, result=result, shape=shape))
    found = asyncio.run(extract(file, "Net", out=folder / "contract", python=sys.executable, reduce=False))
    device = asyncio.run(find_device())
    default = codegen.write(found.contract, codegen.Recipe(space=space), device)
    chosen = {t.key: value for t in default.tunables
              if (t.key == ending or t.key.endswith(f".{ending}")) and value in t.values}
    assert chosen, [t.key for t in default.tunables]
    return codegen.write(found.contract, codegen.Recipe(space=space, choices=chosen), device).source


@pytest.mark.parametrize("name", CASES)
def test_choice_is_accepted(tmp_path, name):
    space = "cuda" if "cluster" in name else "cuda_libs_torch"
    source = source_of(tmp_path, CASES[name], space)
    assert CASES[name][-1] in source, source
    (tmp_path / "candidate.cu").write_text(source)
    result = tmp_path / "result.json"
    done = subprocess.run(
        [sys.executable, "-m", "engine.cli", "evaluate", str(tmp_path / "contract"), "--candidate",
         str(tmp_path / "candidate.cu"), "--space", space, "--json", str(result)], cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    verdict = json.loads(result.read_text())["candidates"][0]
    assert (verdict["rejected"], verdict["space"]) == (None, space)
    assert verdict["median_us"] > 0
