"""The probe's process, begun before there is a request."""

import asyncio
import sys
from pathlib import Path

import pytest

from contracts.errors import ToolError
from engine.extract import extract
from engine.probing import Probe
from tests.probe_harness import worker_module

torch = pytest.importorskip("torch")

MODEL = """
import gc
import torch

COLLECTS = gc.isenabled()


class Model(torch.nn.Module):
    def forward(self, x):
        assert COLLECTS, "the collector is off while user code runs"
        return torch.relu(x)


def get_inputs():
    return [torch.randn(4, 8)]
"""


async def test_what_was_begun_serves_the_request_and_ends_with_it(tmp_path):
    file = tmp_path / "model.py"
    file.write_text(MODEL)
    probe = Probe(sys.executable, file)
    probe.begin()
    await asyncio.wait({probe._warming})
    process = probe._worker.pid

    found = await extract(file, "Model", out=tmp_path / "out", python=sys.executable, reduce=False, probe=probe)

    assert [a.name for a in found.contract.arguments] == ["x"]
    assert process is not None
    assert not Path(f"/proc/{process}").exists()


async def test_what_was_begun_and_never_asked_ends_when_closed(tmp_path):
    probe = Probe(sys.executable, tmp_path / "model.py")
    probe.begin()
    await asyncio.wait({probe._warming}, timeout=1)  # Its process has started by then, and imports torch.
    process = probe._worker.pid
    assert process is not None

    await probe.close()

    assert not Path(f"/proc/{process}").exists()


async def test_an_interpreter_that_does_not_run_is_told_by_the_request(tmp_path):
    file = tmp_path / "model.py"
    file.write_text(MODEL)
    probe = Probe("/no/such/python", file)
    probe.begin()

    with pytest.raises(ToolError, match="no interpreter"):
        await extract(file, "Model", out=tmp_path / "out", python="/no/such/python", probe=probe)


def test_beginning_draws_no_random_numbers():
    before = torch.get_rng_state()
    worker_module("probe").handle("warm", {}, None)

    assert torch.equal(torch.get_rng_state(), before)
