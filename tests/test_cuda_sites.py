"""Kernels, launchers and launches, found in text that may be broken."""

import random
import time
from pathlib import Path

from contracts.cuda_sites import CudaParameter, Earlier, Span, parse_cuda

SOURCE = """\
#include <cuda_runtime.h>
// é: columns count characters
__device__ float helper(float x) { return x; }
/* é */ extern "C" __global__ void __launch_bounds__(256) scale(const float* __restrict__ a, float* y, int n) { y[0] = a[0]; }
template <typename T> __global__ void typed(const T* a) {}
torch::Tensor scale_forward(torch::Tensor x, const at::Tensor& w, double s) {
  scale<<<1, 2, 0, stream>>>(x.data_ptr<float>(), nullptr, 3);
  typed<float><<<1, 2>>>(nullptr);
  return x;
}
extern "C" {
void launch(const double* a, double* y, int n, cudaStream_t stream) { scale<<<(n+255)/256, 256>>>(a, y, n); }
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("forward", &scale_forward); }
"""


def test_functions_are_found_with_their_kind() -> None:
    found = parse_cuda(SOURCE)

    assert [(f.name, f.kind, f.template) for f in found.functions] == [
        ("scale", "kernel", False), ("typed", "kernel", True), ("scale_forward", "host", False),
        ("launch", "launcher", False),
    ]
    assert found.has_binding


def test_parameters_keep_type_constness_and_name() -> None:
    kernel = parse_cuda(SOURCE).named("scale")

    assert kernel is not None
    assert kernel.parameters == (
        CudaParameter(type="float", name="a", pointer=True, const=True),
        CudaParameter(type="float", name="y", pointer=True),
        CudaParameter(type="int", name="n"),
    )


def test_host_functions_know_their_tensors() -> None:
    host = parse_cuda(SOURCE).named("scale_forward")

    assert host is not None
    assert [p.is_tensor for p in host.parameters] == [True, True, False]
    assert host.returns == "torch::Tensor"


def test_launches_name_kernel_and_function() -> None:
    launches = parse_cuda(SOURCE).launches

    assert [(x.kernel, x.function) for x in launches] == [
        ("scale", "scale_forward"), ("typed", "scale_forward"), ("scale", "launch"),
    ]


def test_columns_count_characters_not_bytes() -> None:
    kernel = parse_cuda(SOURCE).named("scale")

    assert kernel is not None
    line = SOURCE.split("\n")[3]
    start = line.index("scale(")
    assert kernel.name_span == Span(start_line=3, start_column=start, end_line=3, end_column=start + 5)


def test_a_broken_file_still_gives_its_whole_functions() -> None:
    broken = "__global__ void good(float* x) { x[0] = 1; }\n__global__ void bad(float* x { \n"

    assert "good" in [f.name for f in parse_cuda(broken).functions]


def test_five_thousand_lines_parse_in_milliseconds() -> None:
    big = "\n".join(f"__global__ void k{i}(float* x) {{\n  x[threadIdx.x] = {i};\n}}" for i in range(1700))
    parse_cuda("int x;")

    start = time.process_time()
    found = parse_cuda(big)

    assert len(found.functions) == 1700
    assert time.process_time() - start < 2.0


def test_a_text_that_grows_by_edits_is_read_as_if_it_were_new() -> None:
    chance = random.Random(11)
    text, earlier = (Path(__file__).parent.parent / "examples" / "row_argmax.cu").read_text() * 2, Earlier()
    pieces = ["x", "{", "}", "(", ")", "/*", "*/", "\n", ";", "__global__ void ", "\U0001f600", "", "<<<1, 2>>>", '"']
    alike = 0
    for _ in range(400):
        if chance.random() < 0.1:
            text = (Path(__file__).parent.parent / "examples" / "heat_3d.cu").read_text()
        start = chance.randrange(len(text) + 1)
        text = text[:start] + chance.choice(pieces) + text[start + chance.choice([0, 0, 1, 1, 5, 40]) :]
        anew, grown = parse_cuda(text), parse_cuda(text, earlier)
        alike += anew == grown
    assert alike == 400
