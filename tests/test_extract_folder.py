"""From a file to its contract folder and back, through the real probe process."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from contracts.errors import ContractError, InputError, ToolError
from contracts.folder import FILES, declared, read_contract
from engine.example_inputs import InputScript
from engine.extract import Extraction, extract, read_folder

HEAD = "import torch\nimport torch.nn as nn\n"
BLOCK = HEAD + """
print("noise on import")
width = 4096

class Part(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(n))
    def forward(self, x): return x * self.scale

class Block(nn.Module):
    def __init__(self, n, bias=True):
        super().__init__()
        self.parts = nn.Sequential(Part(n), nn.Linear(n, n, bias=bias))
    def forward(self, x, y=None):
        out = self.parts(x)
        return out, {"sum": out.sum(0)}

def get_inputs(): return [torch.randn(512, width)]
def get_init_inputs(): return [[width], {"bias": False}]
"""


async def run(file: Path, name: str | None = None, **fields: object) -> Extraction:
    return await extract(file, name, out=file.parent / "out", python=sys.executable, **fields)


def write(folder: Path, text: str, name: str = "block.py") -> Path:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file


def in_python(code: str, cwd: Path) -> str:
    done = subprocess.run([sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


async def test_a_module_becomes_a_folder_with_a_reduced_one(tmp_path: Path) -> None:
    found = await run(write(tmp_path, BLOCK), source="// the source\n")
    contract = found.contract
    assert found.site is not None
    assert (found.site.name, contract.name, contract.entry) == ("Block", "block", "block_forward")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {*FILES, "contract.json", "reduced"}
    assert [a.path for a in contract.arguments] == ["x", "parts.0.scale", "parts.1.weight"]
    assert read_contract(tmp_path / "out") == contract
    assert declared(tmp_path / "out").parameters == tuple(("torch::Tensor", a.name) for a in contract.arguments)
    told = json.loads((tmp_path / "out" / "params_semantics.json").read_text())
    assert told["arguments"][1]["meaning"] == "parameter `scale` of Part `parts.0`"
    assert found.reduced is not None
    assert found.reduced.arguments[0].tensor is not None
    assert found.reduced.arguments[0].tensor.numel < 100_000
    assert "width: 4096 becomes " in found.reduced_reason
    # Both references stand alone, and torch_demo.py has the original's signature and state.
    out = in_python(
        "import groundtruth as g, torch; m = g.Model(*g.get_init_inputs()); assert m.parts[1].bias is None;"
        "print(m(*g.get_inputs())[1]['sum'].shape)", tmp_path / "out" / "reduced")
    assert f"torch.Size([{found.reduced.arguments[0].tensor.shape[1]}])" in out
    out = in_python(
        "import torch_demo as d, inspect; m = d.ModelNew(8);"
        "print(inspect.signature(m.forward), sorted(m.state_dict()));"
        "d.extension = lambda: type('E', (), {'block_forward': staticmethod(lambda *a: [len(a), 'second'])});"
        "print(m(1))", tmp_path / "out")
    assert "(x, y=None) ['parts.0.scale', 'parts.1.bias', 'parts.1.weight']" in out
    assert "(3, {'sum': 'second'})" in out
    # Our own folder is read without running anything.
    again = await read_folder(tmp_path / "out", python="/no/such/python")
    assert (again.contract, again.reduced) == (contract, found.reduced)
    assert again.modules


async def test_a_project_with_its_own_engine_and_contracts(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'user'\n")
    write(tmp_path, "SCALE = 3.0\n", "engine/__init__.py")
    write(tmp_path, "def check(x):\n    return x\n", "contracts/rules.py")
    write(tmp_path, "", "app/__init__.py")
    write(tmp_path, "from engine import SCALE\n", "app/base.py")
    file = write(tmp_path, HEAD + """
from contracts.rules import check
from .base import SCALE
class Model(nn.Module):
    def forward(self, x): return check(x) * SCALE
def get_inputs(): return [torch.randn(64, 100000)]
""", "app/model.py")
    found = await run(file)
    assert found.contract.graph is not None
    assert found.contract.graph.nodes[0].args["other"] == 3.0
    for folder in (found.folder, found.reduced_folder):
        assert folder is not None
        text = (folder / "groundtruth.py").read_text()
        assert "loaded from the project" in text
        assert in_python("import groundtruth as g; print(g.Model()(g.get_inputs()[0]).dim())", folder) == "2\n"


async def test_inputs_from_settings_and_from_a_named_script(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.hiera.inputs]\n"net.py::Net" = "tests/inputs.py::net_inputs"\n')
    file = write(tmp_path, HEAD + """
class Net(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.fc = nn.Linear(n, 2)
    def forward(self, x): return self.fc(x)
""", "net.py")
    write(tmp_path, "import torch\ndef net_inputs(): return [torch.randn(7, 6)]\ndef get_init_inputs(): return [6]\n",
          "tests/inputs.py")
    found = await run(file, reduce=False)
    assert found.contract.arguments[0].tensor is not None
    assert found.contract.arguments[0].tensor.shape == (7, 6)
    assert in_python("import groundtruth as g; print(g.Model(*g.get_init_inputs())(*g.get_inputs()).shape)",
                     found.folder) == "torch.Size([7, 2])\n"
    script = write(tmp_path, "import torch\ndef get_inputs(): return [torch.randn(3, 5)]\n"
                             "def get_init_inputs(): return [5]\n", "other.py")
    named = await run(file, "Net", inputs=InputScript(script), reduce=False)
    assert named.contract.arguments[0].tensor is not None
    assert named.contract.arguments[0].tensor.shape == (3, 5)


async def test_a_folder_written_by_hand(tmp_path: Path) -> None:
    write(tmp_path, HEAD + """
class Model(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.norm, self.add = nn.LayerNorm(n), nn.Linear(n, n)
        self.idle = nn.Parameter(torch.ones(3))
    def forward(self, x, y): return self.norm(self.add(x)) + y
def get_inputs(seed, n=64, device="cpu"):
    return [torch.randn(n, 32), torch.randn(n, 32)]
def get_init_inputs(): return [32]
""", "groundtruth.py")
    write(tmp_path, """#include <torch/extension.h>
// the entry: ln(x)
at::Tensor ln_forward(const torch::Tensor& x, torch::Tensor y, torch::Tensor gamma, torch::Tensor beta,
                      torch::Tensor add_weight, torch::Tensor add_bias, torch::Tensor idle, double eps);
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("forward", &ln_forward, "a norm"); }
""", "cpp_source.cpp")
    semantics = {"arguments": [{"name": "gamma", "path": "norm.weight"}, {"name": "beta", "path": "norm.bias"}]}
    write(tmp_path, json.dumps(semantics), "params_semantics.json")
    contract = (await read_folder(tmp_path, python=sys.executable)).contract
    assert contract.entry == "ln_forward"
    assert [(a.name, a.path, a.value) for a in contract.arguments] == [
        ("x", "x", None), ("y", "y", None), ("gamma", "norm.weight", None), ("beta", "norm.bias", None),
        ("add_weight", "add.weight", None), ("add_bias", "add.bias", None), ("idle", "idle", None), ("eps", "", 1e-5),
    ]
    assert contract.graph is not None
    assert contract.graph.inputs == ("x", "y", "gamma", "beta", "add_weight", "add_bias", "idle")
    assert [list(n.refs()) for n in contract.graph.nodes] == [
        ["x", "add_weight", "add_bias"], ["linear", "gamma", "beta"], ["layer_norm", "y"],
    ]
    assert set(contract.example.tensors) == set(contract.graph.inputs)


async def test_a_hand_written_reference_function(tmp_path: Path) -> None:
    write(tmp_path, "import torch\ndef reference(a, b): return a @ b\n"
                    "def get_inputs(): return [torch.randn(3, 4), torch.randn(4, 5)]\n", "groundtruth.py")
    write(tmp_path, "torch::Tensor mm(torch::Tensor left, torch::Tensor right);", "cpp_source.cpp")
    contract = (await read_folder(tmp_path, python=sys.executable)).contract
    assert (contract.reference, contract.entry) == ("function", "mm")
    assert [a.name for a in contract.arguments] == ["left", "right"]
    write(tmp_path, "torch::Tensor mm(torch::Tensor left);", "cpp_source.cpp")
    with pytest.raises(ContractError, match="no parameter for input"):
        await read_folder(tmp_path, python=sys.executable)


async def test_bad_files_and_interpreters(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        await run(tmp_path / "gone.py")
    with pytest.raises(InputError, match="this is a folder"):
        await run(tmp_path)
    (tmp_path / "latin.py").write_bytes(b"x = '\xe9\xff'\n")
    with pytest.raises(InputError, match="not UTF-8"):
        await run(tmp_path / "latin.py")
    with pytest.raises(InputError, match=r"broken\.py:2: syntax error"):
        await run(write(tmp_path, "x = 1\nclass Broken(\n", "broken.py"))
    with pytest.raises(InputError, match=r"no class here derives"):
        await run(write(tmp_path, "x = 1\n", "empty.py"))
    two = HEAD + "class A(nn.Module): pass\nclass B(nn.Module): pass\n"
    with pytest.raises(InputError, match=r"two\.py:3: several .* A, B .*FILE::NAME"):
        await run(write(tmp_path, two, "two.py"))
    with pytest.raises(ToolError, match="no interpreter /no/such/python"):
        await extract(write(tmp_path, BLOCK), None, out=tmp_path / "out", python="/no/such/python")
    torchless = write(tmp_path, f"#!/bin/sh\nexec {sys.executable} -S -I \"$@\"\n", "python-without-torch")
    torchless.chmod(0o755)
    with pytest.raises(ToolError, match="has no torch"):
        await extract(write(tmp_path, BLOCK), None, out=tmp_path / "out", python=str(torchless))
    assert not (tmp_path / "out").exists()


async def test_an_import_that_hangs_or_kills_the_process(tmp_path: Path) -> None:
    slow = write(tmp_path, "import time\ntime.sleep(60)\n" + BLOCK, "slow.py")
    with pytest.raises(InputError, match=r"slow\.py: importing the file took longer than 4 s .*__main__"):
        await run(slow, timeout_s=4.0)
    dead = write(tmp_path, "import os\nos.abort()\n" + BLOCK, "dead.py")
    with pytest.raises(InputError, match=r"dead\.py: importing the file ended the interpreter .*signal 6"):
        await run(dead)


async def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file is in the way")
    with pytest.raises(InputError, match="the contract folder cannot be written"):
        await run(write(tmp_path, BLOCK), reduce=False)


def test_declarations_in_several_forms(tmp_path: Path) -> None:
    forms = {
        "std::vector<at::Tensor> f(at::Tensor a, int64_t k = 3);": ("f", (("at::Tensor", "a"), ("int64_t", "k"))),
        "torch::Tensor g(\n  torch::Tensor, const std::optional<at::Tensor>& b\n);": (
            "g", (("torch::Tensor", ""), ("std::optional<at::Tensor>", "b"))),
        "void h(torch::Tensor out);\nstatic int helper(int x) { return x + 1; }\n"
        'PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("run", &h); }': ("h", (("torch::Tensor", "out"),)),
    }
    for text, (entry, parameters) in forms.items():
        write(tmp_path, text, "cpp_source.cpp")
        found = declared(tmp_path)
        assert (found.entry, found.parameters) == (entry, parameters), text
    write(tmp_path, "// nothing here\n", "cpp_source.cpp")
    with pytest.raises(ContractError, match="must declare one host function"):
        declared(tmp_path)
    (tmp_path / "cpp_source.cpp").unlink()
    with pytest.raises(ContractError, match=r"no cpp_source\.cpp"):
        declared(tmp_path)
