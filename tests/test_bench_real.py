"""The whole benchmark for real, without a GPU: two lanes, killed in the middle, gone on with, summed up."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from engine.bench.protocol import Place, Protocol
from engine.bench.rows import read_rows
from engine.process_tree import descendants
from engine.store import Store

ROOT = Path(__file__).parents[1]
CODE = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scale = nn.Parameter(torch.randn(width))

    def forward(self, x):
        return torch.{function}(x * self.scale)

def get_inputs():
    return [torch.randn(64, 32)]

def get_init_inputs():
    return [32]
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture
def tasks(tmp_path, monkeypatch):
    monkeypatch.setenv("HIERA_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "tasks.jsonl"
    path.write_text("".join(json.dumps({"level": level, "id": 2, "name": name, "code": CODE.format(function=name)}) + "\n"
                            for level, name in ((1, "relu"), (2, "tanh"))))
    return path


def start(tasks, *flags):
    return subprocess.Popen(
        [sys.executable, "-m", "engine.cli", "bench", str(tasks), "--out", str(tasks.parent / "out.jsonl"), "--device", "none",
         "--budget", "1", "--no-confirm", "--gpus", "0,1", "--parallel", "1", *flags], cwd=ROOT, stdout=subprocess.PIPE, text=True)


def test_killed_in_the_middle_gone_on_with_and_summed_up(tasks):
    out = tasks.parent / "out.jsonl"
    bench = start(tasks)
    deadline = time.monotonic() + 600
    while not any('"kind":"candidate"' in path.read_text() for path in tasks.parent.glob("cache/gpu*/runs/*/events.jsonl")):
        assert time.monotonic() < deadline
        assert bench.poll() is None
        time.sleep(0.1)
    below = descendants(bench.pid)

    bench.send_signal(signal.SIGKILL)
    bench.wait()

    deadline = time.monotonic() + 120
    while any(Path(f"/proc/{pid}").exists() for pid in below):
        assert time.monotonic() < deadline, "something outlived the benchmark"
        time.sleep(0.1)
    again = start(tasks, "--resume", "--json", str(tasks.parent / "summary.json"))
    printed, _ = again.communicate(timeout=1200)

    assert again.returncode == 0
    rows = read_rows(out)
    assert [(row["level"], row["verified"], row["failure"]) for row in sorted(rows, key=lambda row: row["level"])] == [
        (1, True, None), (2, True, None)]
    assert {row["lane"] for row in rows} <= {"GPU 0", "GPU 1"}
    assert all(row["reverified"]["accepted"] for row in rows)
    assert all(row["kernelbench"] is None for row in rows), "that needs a GPU"
    assert "Without a GPU, 2 of 2 tasks have a verified kernel" in printed
    summary = json.loads((tasks.parent / "summary.json").read_text())
    assert summary["reverification"] == {"run": 2, "accepted": 2, "not": []}
    assert summary["without_gpu"]["verified"] == 2
    assert summary["summary"][-1]["fast_1"] is None, "nothing was timed"
    assert descendants(os.getpid()) == []

    # What a GPU would do next, here on the CPU: KernelBench's protocol on the winner's own build.
    row = rows[0]
    folder = next(tasks.parent.glob(f"cache/gpu*/runs/{row['run']}"))
    trajectory = Store().load(str(folder))
    build = trajectory.evaluations[trajectory.best.id].build
    asyncio.run(by_kernelbench(folder, trajectory, build))


async def by_kernelbench(folder, trajectory, build):
    measuring = Protocol(Place(python=sys.executable, device="cpu", environment={}), Path(trajectory.job.file))
    try:
        await measuring.open()
        await measuring.candidate(folder / "contract", trajectory.best.source, build)
        assert (await measuring.validate("candidate"))["valid"]
        assert (await measuring.times("candidate"))["runs"] == 100
    finally:
        await measuring.close()
