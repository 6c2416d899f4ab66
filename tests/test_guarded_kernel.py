"""`kernel.py`: the kernel inside the contract, the original everywhere else, one graph for torch.compile."""

from __future__ import annotations

import copy
import importlib.util
import pickle
import sys
import types
import warnings
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
    sys.modules[spec.name] = module  # torch.export imports it by name, as it may a real one.
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
    "layer setting", "hook on a part", "hook before a part", "forward of a part", "weight norm", "half", "misaligned", "vmap",
    "forward mode",
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
        case "hook on a part":
            model.norm.register_forward_hook(lambda _module, _inputs, out: out + 1)
        case "hook before a part":
            model.norm.register_forward_pre_hook(lambda _module, inputs: (inputs[0] + 1,))
        case "forward of a part":
            model.norm.forward = lambda value: value - 1
        case "weight norm":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                torch.nn.utils.weight_norm(model.norm, dim=None)
            model.norm.weight_g.data.mul_(2)
        case "half":
            x, model = x.half(), model.half()
        case "misaligned":
            x = torch.randn(33)[1:].view(4, 8)
    with grad:
        if outside == "autocast":
            with torch.autocast("cpu"):
                out = model(x)
        elif outside == "vmap":
            out = torch.vmap(model)(x.expand(3, 4, 8))[0]
        elif outside == "forward mode":
            with torch.autograd.forward_ad.dual_level():
                dual = model(torch.autograd.forward_ad.make_dual(x, torch.ones_like(x)))
                out, tangent = torch.autograd.forward_ad.unpack_dual(dual)
                assert tangent is not None
        else:
            out = model(x, *more)
        expected = torch.relu(model.norm(x)) * model.alpha + (more[0] if more else 0)

    assert stand.calls == 0
    torch.testing.assert_close(out, expected, rtol=2e-2, atol=1e-2)
    if outside == "gradient":
        out.sum().backward()
        assert model.norm.weight.grad is not None


def test_copies_and_other_instances_use_the_kernel_too(tmp_path, guarded, monkeypatch) -> None:
    cls, stand = guarded
    cls.__module__, cls.__qualname__ = "made", "Block"
    monkeypatch.setitem(sys.modules, "made", types.SimpleNamespace(Block=cls))
    first, x = cls(), torch.randn(4, 8)
    with torch.no_grad():
        first.norm.weight.copy_(torch.arange(8.0))
    second, third, plain = copy.deepcopy(first), pickle.loads(pickle.dumps(first)), torch.nn.LayerNorm(8, bias=False)
    fourth = cls()
    fourth.load_state_dict(first.state_dict())
    torch.save(first, tmp_path / "whole.pt")
    fifth = torch.load(tmp_path / "whole.pt", weights_only=False)
    models = [first, second, third, fourth, fifth, torch.nn.Sequential(first)]
    with torch.no_grad():
        plain.weight.copy_(first.norm.weight)
        expected = torch.relu(plain(x)) * 0.5
        for model in models:
            torch.testing.assert_close(model(x), expected)
    assert stand.calls == len(models)
    with torch.inference_mode():
        torch.testing.assert_close(first(x), expected)
    # Converted, it runs its own code; back again, the kernel.
    count = stand.calls
    with torch.no_grad():
        first.double()(x.double())
        assert stand.calls == count
        first.float()(x)
    assert stand.calls == count + 1


def test_gradients_by_torch_func_are_those_of_the_original(guarded) -> None:
    cls, stand = guarded
    model, x = cls(), torch.randn(4, 8)
    weights = dict(model.named_parameters())

    def loss(parameters):
        return torch.func.functional_call(model, parameters, (x,)).square().sum()

    found = torch.func.grad(loss)(weights)["norm.weight"]
    model(x).square().sum().backward()
    torch.testing.assert_close(found, model.norm.weight.grad)
    assert stand.calls == 0


def test_loaded_again_it_still_runs(tmp_path) -> None:
    """As a notebook's reload does it: the same operator is registered a second time."""
    for _ in range(2):
        module, stand = load(tmp_path, CONTRACT, "x, y=None", same)
        with torch.no_grad():
            block(module)()(torch.randn(4, 8))
        assert stand.calls == 1


def test_an_exported_program_holds_the_operator(guarded) -> None:
    cls, _ = guarded
    model = cls()
    with torch.no_grad():
        program = torch.export.export(model, (torch.randn(4, 8),), strict=True)
    assert "block_forward" in str(program.graph)


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
