"""What the judge does while there is no contract yet: the slow beginnings of a reference run, and nothing else."""

import json
import subprocess
import sys

import pytest

from tests.probe_harness import worker_module

torch = pytest.importorskip("torch")

FRESH = """
import json, sys
from tests.probe_harness import worker_module
import torch
judge, reference = worker_module("judge"), worker_module("judge_reference")
judge.warm({"device": "cpu"})
before = set(sys.modules)
layers = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Linear(6, 2)).double()
with torch.no_grad(), reference._double(torch.float32):
    layers(torch.randn(1, 3, 8, 8))
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def test_after_it_a_first_run_in_fp64_imports_nothing():
    done = subprocess.run([sys.executable, "-c", FRESH], capture_output=True, text=True, check=True)

    assert json.loads(done.stdout) == []


def test_it_leaves_random_numbers_flags_and_dtype_as_they_are():
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul

    def found():
        return (torch.get_rng_state().tolist(), torch.get_default_dtype(), torch.is_grad_enabled(), cudnn.enabled,
                cudnn.allow_tf32, cudnn.deterministic, matmul.allow_tf32)

    before = found()
    worker_module("judge").warm({"device": "cpu"})

    assert found() == before
