"""The benchmark on a real GPU: one small task with everything beside it."""

import json

import pytest

from engine.bench.baselines import FORMS
from engine.bench.lines import read_lines
from engine.bench.rows import read_rows
from engine.cli import main

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(590)]

CODE = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        return torch.nn.functional.gelu(self.linear(x)) * 0.5 + x

def get_inputs():
    return [torch.randn(1024, 512)]

def get_init_inputs():
    return [512]
"""


def test_a_task_with_baselines_a_fresh_look_and_kernelbenchs_protocol(tmp_path, monkeypatch):
    monkeypatch.setenv("HIERA_CACHE", str(tmp_path / "cache"))
    tasks, out, summary = tmp_path / "tasks.jsonl", tmp_path / "out.jsonl", tmp_path / "summary.json"
    tasks.write_text(json.dumps({"level": 2, "id": 2, "name": "block", "code": CODE}) + "\n")
    command = ["bench", str(tasks), "--out", str(out), "--preset", "quick", "--no-confirm", "--gpus", "0", "--seconds", "500",
               "--json", str(summary)]

    assert main(command) == 0

    (row,) = read_rows(out)
    assert row["verified"], row["failure"]
    assert row["measured"]
    assert row["best"]["ci95"][0] <= row["best"]["speedup"] <= row["best"]["ci95"][1]
    assert row["reverified"]["accepted"] is True, row["reverified"]
    assert row["reverified"]["speedup"] > 0
    assert (row["kernelbench"]["valid"], row["kernelbench"]["runs"]) == (True, 100), row["kernelbench"]
    kept = {line["form"]: line for line in read_lines(tmp_path / "out.baselines.jsonl")}
    assert set(kept) == set(FORMS)
    assert all(line["median_us"] and line["valid"] for line in kept.values()), kept
    assert {line["device"] for line in kept.values()} == {row["device"]}
    line = next(line for line in json.loads(summary.read_text())["summary"] if line["budget"] == 1)
    assert line["geomean_compile"] is not None, "the baselines belong to the task"
    before = out.with_name("out.baselines.jsonl").read_text()
    assert main([*command, "--resume"]) == 0
    assert out.with_name("out.baselines.jsonl").read_text() == before, "nothing is measured twice"
    assert len(read_rows(out)) == 1
