"""The stencil benchmark: its modules are what it compares them with, and without a GPU it says so."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import torch

FILE = Path(__file__).parents[1] / "bench" / "stencil.py"
SPEC = importlib.util.spec_from_file_location("stencil_bench", FILE)
stencil = importlib.util.module_from_spec(SPEC)
sys.modules["stencil_bench"] = stencil
SPEC.loader.exec_module(stencil)


@pytest.mark.parametrize("case", stencil.cases(size=20, steps=2), ids=lambda case: case.name)
def test_a_module_does_what_the_reference_does(case):
    names = {}
    exec(compile(case.text(), case.name, "exec"), names)
    (x,) = names["get_inputs"]()
    model = names["Stencil"]()
    weight = stencil.taps_of(case, model, x.device)

    want = x.double()
    for _ in range(case.steps):
        want = stencil.stepped(want, weight, torch.nn.functional)

    torch.testing.assert_close(model(x).double(), want, rtol=1e-5, atol=1e-6)
    assert weight.sum().item() == pytest.approx(1.0)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_one_line_says_so():
    done = subprocess.run([sys.executable, str(FILE)], capture_output=True, text=True, check=False)

    assert done.returncode == 2
    assert done.stdout.startswith("bench/stencil.py needs a GPU: ")
    assert len(done.stdout.splitlines()) == 1
