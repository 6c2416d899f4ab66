"""The whole job with the real parts and without a GPU: extraction, plan, code, build, judge, folder, evaluate."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path

import pytest

from engine import requests
from engine.cli import main
from engine.store import Store

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="no torch"),
    pytest.mark.skipif(shutil.which("g++") is None, reason="no g++"),
]
MODEL = '''
import torch

class Chain(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.randn(8))

    def forward(self, x):
        return torch.relu(x * self.scale) + 1

def get_inputs():
    return [torch.randn(4, 8)]
'''


@pytest.fixture
def project(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("HIERA_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(requests, "_ours", lambda: "one version")  # Someone may edit us while tests run.
    # A user's own packages of our names, in the project that is optimised.
    for name in ("engine", "contracts"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError('the user code of this name was imported')\n")
    (tmp_path / "model.py").write_text(MODEL)
    return tmp_path


def test_from_a_module_to_a_verified_kernel_and_back(project, capsys):
    assert main(["optimize", "model.py", "--budget", "2", "--rounds", "1", "--device", "none", "--json", "r.json",
                 "--out", "out"]) == 0
    found = json.loads((project / "r.json").read_text())
    best = next(c for c in found["candidates"] if c["id"] == found["best"])
    assert found["measured"] is False
    assert best["verification"]["match"] is True
    assert best["verification"]["where"].startswith("cpu emulation")
    assert best["speedup"] is None
    assert best["space"] == "cuda"
    assert best["round"] == 1
    source = (project / "out" / "cuda_source.cu").read_text()
    assert "__global__" in source

    assert main(["evaluate", "out", "--device", "none"]) == 0
    assert "accepted" in capsys.readouterr().out
    wrong = source.replace("+ 1", "+ 2")
    assert wrong != source
    (project / "wrong.cu").write_text(wrong)
    (project / "broken.cu").write_text(source.replace("__global__", "__globule__"))
    assert main(["evaluate", "out", "--device", "none", "--candidate", "wrong.cu", "--candidate", "broken.cu",
                 "--json", "e.json"]) == 1
    said = capsys.readouterr().out
    assert "wrong.cu: rejected in space cuda_libs_torch at verify" in said
    assert "broken.cu: rejected in space cuda_libs_torch at build" in said
    stages = {c["title"]: c["rejected_at"] for c in json.loads((project / "e.json").read_text())["candidates"]}
    assert stages == {"wrong.cu": "verify", "broken.cu": "build"}

    assert main(["optimize", "model.py", "--budget", "2", "--rounds", "1", "--device", "none"]) == 0
    assert len(list(Store().runs())) == 1, "the same request is answered from the earlier run"
