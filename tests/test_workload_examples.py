"""The examples: each is a file people could have, with inputs that fit."""

import importlib.util
from pathlib import Path

import pytest

from contracts.cuda_pragmas import read_pragmas
from contracts.cuda_sites import parse_cuda

FOLDER = Path(__file__).parent.parent / "examples"
MODULES = sorted(FOLDER.glob("*.py"))
KERNELS = sorted(FOLDER.glob("*.cu"))


def test_all_kinds_are_there():
    assert len(MODULES) >= 9
    assert len(KERNELS) >= 4


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_module_runs_on_its_inputs(path):
    torch = pytest.importorskip("torch")
    spec = importlib.util.spec_from_file_location(f"example_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (kind,) = [thing for thing in vars(module).values()
               if isinstance(thing, type) and issubclass(thing, torch.nn.Module)]
    with torch.device("meta"), torch.no_grad():
        outputs = kind(*module.get_init_inputs()).eval()(*module.get_inputs())
    for output in outputs if isinstance(outputs, tuple) else (outputs,):
        assert isinstance(output, torch.Tensor)


@pytest.mark.parametrize("path", KERNELS, ids=lambda path: path.stem)
def test_kernel_file_says_how_it_is_called(path):
    text = path.read_text()
    pragmas = read_pragmas(text, path)
    functions = {function.name: function for function in parse_cuda(text).functions}
    assert pragmas.entry in functions
    assert {a.name for a in pragmas.arguments} <= {p.name for p in functions[pragmas.entry].parameters}
