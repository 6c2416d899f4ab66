"""`kernel.py` as the editor writes it, on a real GPU: built by PyTorch, used inside of the contract and only there."""

from __future__ import annotations

import copy
import importlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from contracts.contract import Argument, Contract, Variant
from contracts.guarded import guarded_kernel
from contracts.tensors import TensorSpec

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]
ROWS = TensorSpec.contiguous("float32", (64, 256))
SCALE = TensorSpec.contiguous("float32", (256,))
CONTRACT = Contract(
    name="block", entry="block_forward", output_tree=0,
    arguments=(Argument(name="x", role="input", tensor=ROWS, path="x"),
               Argument(name="inner_weight", role="parameter", tensor=SCALE, path="inner.weight")),
    variants=(Variant(name="example", tensors={"x": ROWS, "inner_weight": SCALE}, outputs=(ROWS,)),),
)
MODULES = ({"path": "", "type": "Block", "attributes": {}}, {"path": "inner", "type": "Scale", "attributes": {}})
SOURCE = """\
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>

__global__ void block_kernel(const float4* x, const float4* weight, float4* y) {
  float4 a = x[blockIdx.x * blockDim.x + threadIdx.x], w = weight[threadIdx.x];
  y[blockIdx.x * blockDim.x + threadIdx.x] =
      make_float4(fmaxf(a.x * w.x, 0), fmaxf(a.y * w.y, 0), fmaxf(a.z * w.z, 0), fmaxf(a.w * w.w, 0));
}

torch::Tensor block_forward(torch::Tensor x, torch::Tensor inner_weight) {
  auto y = torch::empty_like(x);
  block_kernel<<<64, 64, 0, at::cuda::getCurrentCUDAStream()>>>(
      reinterpret_cast<const float4*>(x.data_ptr<float>()), reinterpret_cast<const float4*>(inner_weight.data_ptr<float>()),
      reinterpret_cast<float4*>(y.data_ptr<float>()));
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return y;
}
"""
MODEL = """\
import torch
from made_kernels.block.kernel import accelerate as accelerate_block


class Scale(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(-1, 1, 256))

    def forward(self, x):
        return x * self.weight


@accelerate_block
class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Scale()

    def forward(self, x):
        return torch.relu(self.inner(x))
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The edited module with its contract folder, imported; and the calls of the built kernel."""
    torch = pytest.importorskip("torch")
    root = tmp_path_factory.mktemp("project")
    folder = root / "made_kernels" / "block"
    folder.mkdir(parents=True)
    sm = ".".join(map(str, torch.cuda.get_device_capability()))
    text = guarded_kernel(CONTRACT, "x", MODULES, source=SOURCE, sm=sm, module_text=MODEL)
    (folder / "kernel.py").write_text(text)
    (folder / "cuda_source.cu").write_text(SOURCE)
    (folder / "cpp_source.cpp").write_text("#include <torch/extension.h>\n\ntorch::Tensor block_forward(torch::Tensor x, "
                                           "torch::Tensor inner_weight);\n")
    (root / "made_model.py").write_text(MODEL)
    sys.path.insert(0, str(root))
    kernel = importlib.import_module("made_kernels.block.kernel")
    model = importlib.import_module("made_model")
    built, calls = kernel.extension(), []

    class Counted:
        def block_forward(self, *arguments: Any) -> Any:
            calls.append(len(arguments))  # Not the tensors: held ones would be a leak to CUDA graphs.
            return built.block_forward(*arguments)

    kernel.extension = Counted
    yield torch, model, calls, root
    sys.path.remove(str(root))


def expected(torch: Any, model: Any, x: Any) -> Any:
    return torch.relu(x * model.inner.weight)


def test_inside_the_contract_the_built_kernel_runs(made) -> None:
    torch, module, calls, _ = made
    model, x = module.Block().cuda(), torch.randn(64, 256, device="cuda")
    before = len(calls)
    side = torch.cuda.Stream()
    with torch.no_grad():
        for one in (model, copy.deepcopy(model), module.Block().cuda()):
            torch.testing.assert_close(one(x), expected(torch, one, x), rtol=0, atol=0)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            out = model(x)
        side.synchronize()
    torch.testing.assert_close(out, expected(torch, model, x), rtol=0, atol=0)
    assert len(calls) == before + 4
    assert list(model.state_dict()) == ["inner.weight"]


@pytest.mark.parametrize("outside", ["cpu", "gradient", "shape", "half", "autocast", "misaligned", "vmap"])
def test_outside_of_it_the_original_runs(made, outside: str) -> None:
    torch, module, calls, _ = made
    model, x, before = module.Block().cuda(), torch.randn(64, 256, device="cuda"), len(calls)
    if outside == "gradient":
        model(x).sum().backward()
        assert model.inner.weight.grad is not None
    with torch.no_grad():
        match outside:
            case "cpu":
                model, x = model.cpu(), x.cpu()
            case "shape":
                x = x[:32]
            case "half":
                model, x = model.half(), x.half()
            case "misaligned":
                x = torch.randn(64 * 256 + 1, device="cuda")[1:].view(64, 256)
        if outside == "vmap":
            out = torch.vmap(model)(x.expand(2, 64, 256))[0]
        elif outside != "gradient":
            with torch.autocast("cuda", enabled=outside == "autocast"):
                out = model(x)
        if outside != "gradient":
            torch.testing.assert_close(out, expected(torch, model, x))
    assert len(calls) == before


def test_torch_compile_and_cuda_graphs(made) -> None:
    torch, module, calls, _ = made
    model, x = module.Block().cuda(), torch.randn(64, 256, device="cuda")
    before = len(calls)
    with torch.no_grad():
        compiled = torch.compile(model, fullgraph=True)
        torch.testing.assert_close(compiled(x), expected(torch, model, x), rtol=0, atol=0)
        assert len(calls) > before
        fast = torch.compile(model, fullgraph=True, mode="reduce-overhead")
        for _ in range(3):
            torch.testing.assert_close(fast(x).clone(), expected(torch, model, x), rtol=0, atol=0)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = model(x)
        x.copy_(torch.randn(64, 256, device="cuda"))
        graph.replay()
        torch.testing.assert_close(out, expected(torch, model, x), rtol=0, atol=0)
    trained = compiled(x)
    trained.sum().backward()
    assert model.inner.weight.grad is not None


def test_another_gpu_of_the_same_kind(made) -> None:
    torch, module, calls, _ = made
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU only")
    model, x, before = module.Block().to("cuda:1"), torch.randn(64, 256, device="cuda:1"), len(calls)
    with torch.no_grad():
        torch.testing.assert_close(model(x), expected(torch, model, x), rtol=0, atol=0)
    same = torch.cuda.get_device_capability(0) == torch.cuda.get_device_capability(1)
    assert len(calls) == before + same


def test_a_new_process_and_the_switch(made) -> None:
    """A new process finds the built extension; `HIERA_ORIGINAL` keeps it from being loaded at all."""
    _, _, _, root = made
    program = ("import sys, torch, made_model\nfrom made_kernels.block import kernel\n"
               "model, x = made_model.Block().cuda(), torch.randn(64, 256, device='cuda')\n"
               "with torch.no_grad(): out = model(x)\n"
               "torch.testing.assert_close(out, torch.relu(x * model.inner.weight), rtol=0, atol=0)\n"
               "print(kernel.extension.cache_info().currsize)\n")
    for switch, loaded in (("", "1"), ("1", "0")):
        done = subprocess.run([sys.executable, "-c", f"import os\nos.environ['HIERA_ORIGINAL'] = {switch!r}\n{program}"],
                              cwd=root, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip().endswith(loaded)


def test_a_gpu_of_another_kind_runs_the_original(made) -> None:
    torch, module, calls, _ = made
    kernel = importlib.import_module("made_kernels.block.kernel")
    before, usable = len(calls), dict(kernel._usable)
    kernel._usable.clear()
    real, kernel.CAPABILITY = kernel.CAPABILITY, (1, 0)
    try:
        with torch.no_grad():
            module.Block().cuda()(torch.randn(64, 256, device="cuda"))
        assert len(calls) == before
    finally:
        kernel.CAPABILITY = real
        kernel._usable.update(usable)
