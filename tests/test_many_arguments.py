"""Models with hundreds of parameters: pybind11 cannot bind them one by one, so the contract's binding takes a tuple."""

import json
import re
import sys
from dataclasses import replace

import pytest

from contracts.folder import MANY_ARGUMENTS, binding, declared
from engine.cli import main
from engine.evaluate.binding import read_binding
from engine.extract import extract

MODEL = """
import torch
from torch import nn

class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.steps = nn.ModuleList([nn.Linear(4, 4) for _ in range({layers})])

    def forward(self, x, factor=0.5):
        for step in self.steps:
            x = x + factor * torch.tanh(step(x))
        return x

def get_inputs():
    return [torch.randn(16, 4)]
"""


@pytest.fixture
def model(tmp_path):
    def write(layers):
        path = tmp_path / "deep.py"
        path.write_text(MODEL.format(layers=layers))
        return path

    return write


async def test_the_binding_of_many_arguments_declares_the_same_function(model, tmp_path):
    found = await extract(model(MANY_ARGUMENTS), None, out=tmp_path / "contract", python=sys.executable, reduce=False)
    contract = found.contract
    text = (tmp_path / "contract" / "cpp_source.cpp").read_text()

    assert len(contract.arguments) > MANY_ARGUMENTS
    assert text == binding(contract)
    assert re.findall(r'\.def\("(\w+)"', text) == [contract.entry]
    assert declared(tmp_path / "contract").entry == contract.entry
    assert len(declared(tmp_path / "contract").parameters) == len(contract.arguments)
    read = read_binding(tmp_path / "contract" / "cpp_source.cpp")
    assert (read.exported, read.declared) == ((contract.entry,), (contract.entry,))
    few = replace(contract, arguments=contract.arguments[:MANY_ARGUMENTS])
    assert "PYBIND11_MODULE" not in binding(few)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_model_of_many_parameters_is_verified(model, tmp_path, monkeypatch):
    monkeypatch.setenv("HIERA_CACHE", str(tmp_path / "cache"))
    record = tmp_path / "record.json"
    assert main(["optimize", str(model(258)), "--device", "none", "--budget", "1", "--no-confirm",
                 "--json", str(record)]) == 0
    document = json.loads(record.read_text())
    assert len(document["contract"]["arguments"]) > 512, "more than pybind11 binds one by one"
    assert document["best"] is not None
