"""The four forms of .cu files, and what is refused."""

import sys
from pathlib import Path

import pytest

from contracts.cuda_adaptor import MARK, without_adaptor
from contracts.errors import InputError
from contracts.tensors import TensorSpec
from engine.extract_cu import CudaExtraction, extract_cu

KERNEL = """\
// hiera: arg x in float32[8, 16]
// hiera: arg y out float32[8, 16]
// hiera: arg n 128
// hiera: launch grid=((128 + 63) / 64) block=(64)
__global__ void twice(const float* x, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = 2.0f * x[i];
}
"""
LAUNCHER = KERNEL + """\
extern "C" void run_twice(const float* x, float* y, int n, cudaStream_t stream) {
  twice<<<2, 64, 0, stream>>>(x, y, n);
}
"""
BINDING = """\
#include <torch/extension.h>
// hiera: arg x in float32[8, 16]
// hiera: returns float32[8, 16]
torch::Tensor twice_forward(torch::Tensor x) { return x; }
"""


async def extract(tmp_path: Path, text: str, name: str | None = None) -> CudaExtraction:
    file = tmp_path / "my kernel.cu"
    file.write_text(text, encoding="utf-8")
    return await extract_cu(file, name, out=tmp_path / "out", python=sys.executable)


async def test_a_bare_kernel_gets_an_adaptor_that_comes_off_again(tmp_path: Path) -> None:
    found = await extract(tmp_path, KERNEL)

    assert found.contract.entry == "twice_forward"
    assert [(a.name, a.role, a.value) for a in found.contract.arguments] == [("x", "input", None), ("n", "attribute", 128)]
    assert found.contract.outputs == (TensorSpec.contiguous("float32", (8, 16)),)
    assert "twice<<<hiera_grid, hiera_block, 0, at::cuda::getCurrentCUDAStream()>>>(" in found.source
    assert MARK in found.source
    assert without_adaptor(found.source) == KERNEL.rstrip("\n")


async def test_a_launcher_is_preferred_and_gets_the_stream(tmp_path: Path) -> None:
    found = await extract(tmp_path, LAUNCHER)

    assert found.function == "run_twice"
    assert (
        "run_twice(reinterpret_cast<const float*>(x.data_ptr()), reinterpret_cast<float*>(y.data_ptr()), "
        "static_cast<int>(n), at::cuda::getCurrentCUDAStream());" in found.source
    )


async def test_a_host_function_with_tensors_stays_as_it_is(tmp_path: Path) -> None:
    found = await extract(tmp_path, BINDING)

    assert found.source == BINDING
    assert (found.folder / "cpp_source.cpp").read_text().endswith("torch::Tensor twice_forward(torch::Tensor x);\n")
    assert found.contract.reference == "cuda"


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        (KERNEL.replace("// hiera: arg n 128\n", ""), 4, "nothing says what argument 'n' of 'twice' is"),
        (KERNEL.replace("x in float32", "x in float64"), 1, "argument 'x' is float* in the code and float64"),
        ("\n".join(s for s in KERNEL.split("\n") if "launch" not in s), 4, "nothing says how kernel 'twice' is launched"),
        (BINDING.replace("// hiera: returns float32[8, 16]\n", ""), 3, "returns tensors of unknown layout"),
        ("int x;\n", 1, "no kernel and no host function"),
        (KERNEL.replace("y out", "y in"), 5, "writes nothing that could be checked"),
        (KERNEL + KERNEL.replace("twice", "thrice"), 5, "several functions could be meant: twice, thrice"),
    ],
)
async def test_what_is_missing_is_named_with_its_line(tmp_path: Path, text: str, line: int, message: str) -> None:
    with pytest.raises(InputError) as caught:
        await extract(tmp_path, text)

    assert message in str(caught.value)
    assert f"my kernel.cu:{line}: " in str(caught.value)
    assert caught.value.hint


async def test_a_missing_file_and_binary_noise_are_refused(tmp_path: Path) -> None:
    noise = tmp_path / "noise.cu"
    noise.write_bytes(b"\xff\xfe\x00")

    for file, message in ((tmp_path / "none.cu", "no such file"), (noise, "not UTF-8")):
        with pytest.raises(InputError, match=message):
            await extract_cu(file, None, out=tmp_path / "out", python=sys.executable)
