"""`kernel.py`: the kernel inside the contract, the original everywhere else, one graph for torch.compile."""

from __future__ import annotations

import importlib.util
import types
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from contracts.contract import Argument, Contract, Variant
from contracts.errors import InputError
from contracts.guarded import guarded_kernel, mode_matters
from contracts.tensors import TensorSpec

torch = pytest.importorskip("torch")

ROWS = TensorSpec.contiguous("float32", (4, 8))
WIDE = TensorSpec.contiguous("float32", (16, 8))
SCALE = TensorSpec.contiguous("float32", (8,))
CONTRACT = Contract(
    name="block", entry="block_forward", output_tree=0,
    arguments=(Argument(name="x", role="input", tensor=ROWS, path="x"),
               Argument(name="norm_weight", role="parameter", tensor=SCALE, path="norm.weight")),
    variants=(Variant(name="example", tensors={"x": ROWS, "norm_weight": SCALE}, outputs=(ROWS,)),
              Variant(name="batch 16", tensors={"x": WIDE, "norm_weight": SCALE}, outputs=(WIDE,))),
)
MODULES = ({"path": "", "type": "Block", "attributes": {"alpha": 0.5}},
           {"path": "norm", "type": "LayerNorm", "attributes": {"eps": 1e-05, "normalized_shape": [8]}})


class Stand:
    """Stands in for the built extension and counts its calls."""

    def __init__(self, function) -> None:
        self.calls = 0
        self.function = function

    def __getattr__(self, _name):
        def call(*arguments):
            self.calls += 1
            return self.function(*arguments)
        return call


def load(tmp_path: Path, contract: Contract, signature: str, function, modules: Sequence[Mapping[str, object]] = MODULES,
         module_text: str = "class Block(nn.Module): ...") -> tuple[types.ModuleType, Stand]:
    text = guarded_kernel(contract, signature, modules, source="text", sm="9.0", module_text=module_text)
    path = tmp_path / "kernel.py"
    path.write_text(text.replace('DEVICE_TYPE = "cuda"', 'DEVICE_TYPE = "cpu"'))
    spec = importlib.util.spec_from_file_location("kernel_under_test", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    stand = Stand(function)
    module.extension = lambda: stand
    return module, stand


def block(module: types.ModuleType, cls_extra: dict | None = None):
    @module.accelerate
    class Block(torch.nn.Module):
        def __init__(self, alpha: float = 0.5) -> None:
            super().__init__()
            self.norm = torch.nn.LayerNorm(8, bias=False)
            self.alpha = alpha

        def forward(self, x, y=None):
            """Doc."""
            out = torch.relu(self.norm(x)) * self.alpha
            return out if y is None else out + y

    return Block


def same(x, weight):
    return torch.relu(torch.nn.functional.layer_norm(x, (8,), weight)) * 0.5


@pytest.fixture
def guarded(tmp_path):
    module, stand = load(tmp_path, CONTRACT, "x, y=None", same)
    return block(module), stand


def test_inside_the_contract_the_kernel_runs(guarded) -> None:
    cls, stand = guarded
    model, x = cls(), torch.randn(4, 8)
    with torch.no_grad():
        out = model(x)
        torch.testing.assert_close(out, torch.relu(model.norm(x)) * 0.5)
        model(torch.randn(16, 8))
        model.eval()(x)

    assert stand.calls == 3
    assert cls.forward.__doc__ == "Doc."
    assert list(model.state_dict()) == ["norm.weight"]


@pytest.mark.parametrize("outside", [
    "gradient", "shape", "dtype", "stride", "argument", "setting", "part", "subclass", "autocast", "switched off",
    "layer setting",
])
def test_outside_of_the_contract_the_original_runs(guarded, monkeypatch, outside: str) -> None:
    cls, stand = guarded
    model, x, more = cls(), torch.randn(4, 8), ()
    grad = torch.no_grad()
    match outside:
        case "gradient":
            grad = torch.enable_grad()
        case "shape":
            x = torch.randn(5, 8)
        case "dtype":
            x, model = x.double(), model.double()
        case "stride":
            x = torch.randn(8, 4).t()
        case "argument":
            more = (torch.ones(4, 8),)
        case "setting":
            model = cls(alpha=0.25)
        case "part":
            model.norm = torch.nn.Sequential(model.norm)
        case "subclass":
            model = type("Other", (cls,), {})()
        case "switched off":
            monkeypatch.setenv("HIERA_ORIGINAL", "1")
        case "layer setting":
            model.norm.eps = 1e-3
    with grad:
        if outside == "autocast":
            with torch.autocast("cpu"):
                out = model(x)
        else:
            out = model(x, *more)
        expected = torch.relu(model.norm(x)) * model.alpha + (more[0] if more else 0)

    assert stand.calls == 0
    torch.testing.assert_close(out, expected, rtol=2e-2, atol=1e-2)
    if outside == "gradient":
        out.sum().backward()
        assert model.norm.weight.grad is not None


def test_a_kernel_that_cannot_be_built_is_one_warning(tmp_path) -> None:
    module, _ = load(tmp_path, CONTRACT, "x, y=None", same)

    def broken():
        raise RuntimeError("no nvcc")

    module.extension = broken
    model = block(module)()

    def twice():
        with torch.no_grad():
            model(torch.randn(4, 8))
            model(torch.randn(4, 8))

    with pytest.warns(UserWarning, match="no nvcc") as warned:
        twice()
    assert len(warned) == 1


def test_torch_compile_makes_one_graph_with_the_operator_in_it(guarded) -> None:
    cls, stand = guarded
    model, x = cls(), torch.randn(4, 8)
    graphs = []

    def backend(graph, _inputs):
        graphs.append(graph)
        return graph

    compiled = torch.compile(model, fullgraph=True, backend=backend)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), same(x, model.norm.weight))
    assert stand.calls == 1
    assert any("block_forward" in str(node.target) for node in graphs[0].graph.nodes)

    out = compiled(x)  # Gradients are needed now: the original is compiled.
    out.sum().backward()
    assert stand.calls == 1
    with torch.no_grad():
        torch.testing.assert_close(compiled(torch.randn(5, 8)).shape, torch.Size([5, 8]))
    assert stand.calls == 1


def test_the_operator_passes_torch_s_own_checks(tmp_path) -> None:
    module, _ = load(tmp_path, CONTRACT, "x, y=None", same)
    torch.library.opcheck(module._kernel, (torch.randn(4, 8), torch.ones(8)),
                          test_utils=("test_schema", "test_faketensor"))


def test_several_outputs_mutation_and_names_that_collide(tmp_path) -> None:
    contract = replace(
        CONTRACT, output_tree={"dict": {"a": 1, "b": {"tuple": [0, {"value": None}]}}},
        arguments=(Argument(name="target", role="input", tensor=ROWS, path="target"),
                   Argument(name="out", role="input", tensor=SCALE, path="out[0]", mutable=True),
                   Argument(name="gain", role="attribute", value=2.0, path="gain")),
        variants=(Variant(name="example", tensors={"target": ROWS, "out": SCALE}, outputs=(ROWS, SCALE)),),
        reference="function",
    )

    def work(target, out, gain):
        out.add_(1)
        return [target * gain, target[0]]

    module, stand = load(tmp_path, contract, "target, out, *, gain=2.0, names=()", work, modules=())

    @module.accelerate
    def original(target, out, *, gain=2.0, names=()):
        return {"a": "original", "b": names}

    target, state = torch.randn(4, 8), torch.zeros(8)
    found = original(target, [state])
    torch.testing.assert_close(found["b"][0], target * 2)
    assert found["b"][1] is None
    assert found["a"].untyped_storage().data_ptr() != target.untyped_storage().data_ptr()
    assert state.sum() == 8
    assert original(target, [state], gain=3.0)["a"] == "original"
    assert original(target, [state, state])["a"] == "original"
    assert original(target, [state], names=(1,)) == {"a": "original", "b": (1,)}
    assert stand.calls == 1


def test_names_beyond_ascii(tmp_path) -> None:
    contract = replace(CONTRACT, name="blöck", entry="blöck_forward", arguments=(
        replace(CONTRACT.arguments[0], name="größe"), CONTRACT.arguments[1]),
        variants=tuple(replace(v, tensors={"größe": v.tensors["x"], "norm_weight": SCALE}) for v in CONTRACT.variants))
    module, stand = load(tmp_path, contract, "x, y=None", same)
    with torch.no_grad():
        block(module)()(torch.randn(4, 8))
    assert stand.calls == 1


def test_batch_norm_and_dropout_depend_on_the_mode() -> None:
    assert mode_matters([{"path": "n", "type": "BatchNorm2d"}], "")
    assert mode_matters([], "if self.training:\n")
    assert not mode_matters([{"path": "", "type": "Block"}, {"path": "a", "type": "Linear"}], "class Block(nn.Module):")
    text = guarded_kernel(CONTRACT, "x, y=None", MODULES, source="s", sm="9.0", module_text="F.dropout(x)")
    assert "and self.training is False" in text


@pytest.mark.parametrize(("contract", "signature", "why"), [
    (replace(CONTRACT, random=True), "x, y=None", "random numbers"),
    (CONTRACT, "x, y", "has no default"),
    (replace(CONTRACT, arguments=(replace(CONTRACT.arguments[0], path="x[0][1]"), *CONTRACT.arguments[1:])), "x", "too deep"),
])
def test_what_no_guard_can_tell_is_refused(contract, signature, why: str) -> None:
    with pytest.raises(InputError, match=why):
        guarded_kernel(contract, signature, MODULES, source="s", sm="9.0", module_text="")
