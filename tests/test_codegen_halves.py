"""fp32 products as products of half factors by cuBLAS, on the CPU: layouts, odd sizes, accuracy, special values."""

import asyncio
import shutil

import pytest
import torch
from torch import nn

from engine.codegen import Recipe, write
from engine.evaluate.build import Builder
from engine.records import Build, Device
from tests.codegen_harness import H200, export_graph
from tests.program_harness import Lab, Product, contract_of, program_of

pytestmark = [
    pytest.mark.timeout(600), pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler"),
]
INF, NAN = float("inf"), float("nan")


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    torch.manual_seed(0)
    return Lab(tmp_path_factory.mktemp("halves"))


class GemmAddRelu(nn.Module):
    """As KernelBench has it: a layer without bias, then one added, then relu."""

    def __init__(self, k, n):
        super().__init__()
        self.gemm = nn.Linear(k, n, bias=False)
        self.bias = nn.Parameter(torch.randn(n))

    def forward(self, x):
        return torch.relu(self.gemm(x) + self.bias)


def on_halves(module, inputs, space="cuda_libs_torch", **further):
    """Choices that put every product of the program on halves, however small."""
    program, _, _ = program_of(module, inputs, space=space)
    choices = {t.key: "halves" for t in program.tunables if t.key.endswith(".means")}
    assert choices
    return {**choices, **further}


def result_of(lab, module, inputs):
    program, contract, state = program_of(module, inputs, choices=on_halves(module, inputs))
    assert "cublasGemmEx" in program.library_calls
    return lab.load(contract, program.source)(*state, *inputs)


def error(got, a, b):
    """Relative to fp64, over all results."""
    exact = a.double() @ b.double()
    return ((got.double() - exact).norm() / exact.norm()).item()


@pytest.mark.parametrize("a_turned", [False, True])
@pytest.mark.parametrize("b_turned", [False, True])
@pytest.mark.parametrize(("m", "k", "n"), [(40, 68, 72), (33, 51, 37)], ids=["vectors", "odd"])
def test_operands_of_either_order(lab, a_turned, b_turned, m, k, n):
    module = Product(a_turned, b_turned).eval()
    inputs = [torch.randn(k, m) if a_turned else torch.randn(m, k), torch.randn(n, k) if b_turned else torch.randn(k, n)]

    program = lab.check(module, inputs, choices=on_halves(module, inputs))

    vector = 4 if n == 72 else 1
    assert program.kernels == (
        "split_columns" if a_turned else f"split_rows<{vector}>", f"split_rows<{vector}>" if b_turned else "split_columns",
        f"scale_back<{vector}>")


@pytest.mark.parametrize("space", ["cuda_libs", "cuda_libs_torch"])
@pytest.mark.parametrize("bias", ["fused", "library"])
def test_what_follows_is_as_after_cublas(lab, space, bias):
    module, inputs = GemmAddRelu(96, 80).eval(), [torch.randn(3, 30, 96)]
    lab.check(module, inputs, space=space, choices=on_halves(module, inputs, space))

    module = nn.Sequential(nn.Linear(96, 81), nn.GELU()).eval()
    lab.check(module, inputs, space=space, choices=on_halves(module, inputs, space, bias=bias))


def test_factors_of_addmm(lab):
    class Addmm(nn.Module):
        def forward(self, c, a, b):
            return torch.addmm(c, a, b, beta=0.5, alpha=-2)

    inputs = [torch.randn(30, 1), torch.randn(30, 40), torch.randn(40, 50)]

    lab.check(Addmm().eval(), inputs, space="cuda_libs", choices=on_halves(Addmm().eval(), inputs, "cuda_libs"))


@pytest.mark.parametrize("make", [torch.randn, torch.rand], ids=["zero mean", "positive"])
@pytest.mark.parametrize("k", [1000, 3001])
def test_long_sums_are_nearly_as_accurate_as_fp32(lab, make, k):
    a, b = make(32, k), make(32, k)

    got = result_of(lab, Product(b_turned=True).eval(), [a, b])

    assert error(got, a, b.T) < 5e-7


@pytest.mark.parametrize("turned", [False, True])
def test_magnitudes_of_rows_do_not_matter(lab, turned):
    """Of any size that fp32 has, denormals included, also beside each other; zeros stay zeros."""
    rows = torch.tensor([0, 1e-30, 1e30, 1e-40, 3e38, 1e-20, 1])
    a = rows[:, None] * torch.rand(7, 1000).clamp(max=0.99)
    b = torch.tensor([1, 1e-7, 1e7, 0])[:, None] * torch.rand(4, 1000) * 1e-3
    inputs = [a.T.contiguous(), b.T.contiguous()] if turned else [a, b]

    got = result_of(lab, Product(a_turned=turned, b_turned=not turned).eval(), inputs)

    want = (a.double() @ b.double().T).float()
    assert want[4, 2] == INF  # Beyond fp32.
    assert got[0].eq(0).all()
    assert got[:, 3].eq(0).all()
    # Denormals have fewer bits.
    torch.testing.assert_close(got, want, rtol=1e-6, atol=3e-45)


def test_infinities_and_nan_come_out_as_from_fp32(lab):
    a, b = torch.randn(40, 48), torch.randn(36, 48)
    a[3, 5], a[9, 7], b[11, 2], b[12, 0] = INF, NAN, -INF, 0
    a[20, 0] = INF

    got = result_of(lab, Product(b_turned=True).eval(), [a, b])

    want = a @ b.T
    assert want[20, 12].isnan()
    torch.testing.assert_close(got, want, equal_nan=True, rtol=2e-5, atol=2e-5)


def test_offered_for_large_fp32_products_without_tf32_where_libraries_are():
    def means(shapes, space="cuda_libs_torch", device=H200, flags=None, dtype=torch.float32):
        inputs = [torch.empty(shape, dtype=dtype) for shape in shapes]
        graph, _, _ = export_graph(Product().eval(), inputs)
        program = write(contract_of(graph, 0, flags=flags), Recipe(space=space), device)
        return next((t.values for t in program.tunables if t.key.endswith(".means")), ())

    large = ((2048, 1024), (1024, 1024))
    assert means(large) == ("aten", "halves", "tensor_cores", "cublas", "own")
    assert means(large, "cuda_libs") == ("cublas", "halves", "tensor_cores", "own")
    assert means(large, "cuda") == ("own", "tensor_cores")
    assert "halves" not in means(large, flags={"cuda.matmul.allow_tf32": True})
    assert "halves" not in means(large, device=Device(kind="none", name="old", sm="7.5", sm_count=40))
    assert "halves" not in means(large, dtype=torch.float16)
    assert "halves" not in means(((1024, 1024), (1024, 1024)))
    assert "halves" not in means(((8192, 256), (256, 8192)))
    assert "halves" not in means(((8, 1024, 1024), (8, 1024, 1024)))


# What sources use of the real header, which not every machine with nvcc has.
CUBLAS = """
#include <cuda_runtime.h>
#include <library_types.h>
typedef struct cublasContext* cublasHandle_t;
typedef enum { CUBLAS_STATUS_SUCCESS } cublasStatus_t;
typedef enum { CUBLAS_OP_N, CUBLAS_OP_T } cublasOperation_t;
typedef enum { CUBLAS_COMPUTE_32F = 68 } cublasComputeType_t;
typedef enum { CUBLAS_GEMM_DEFAULT = -1 } cublasGemmAlgo_t;
cublasStatus_t cublasCreate(cublasHandle_t* handle);
cublasStatus_t cublasSetStream(cublasHandle_t handle, cudaStream_t stream);
cublasStatus_t cublasGemmEx(
    cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, int m, int n, int k, const void* alpha,
    const void* A, cudaDataType Atype, int lda, const void* B, cudaDataType Btype, int ldb, const void* beta, void* C,
    cudaDataType Ctype, int ldc, cublasComputeType_t computeType, cublasGemmAlgo_t algo);
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
@pytest.mark.parametrize("size", [2048, 2047], ids=["vectors", "element by element"])
@pytest.mark.parametrize("turned", [False, True])
def test_nvcc_compiles_it(lab, tmp_path, size, turned):
    graph, _, _ = export_graph(Product(turned, not turned).eval(), [torch.empty(size, size), torch.empty(size, size)])
    program = write(contract_of(graph, 0), Recipe(space="cuda_libs", choices={"matmul.means": "halves"}), H200)

    source = program.source.replace("#include <cublas_v2.h>", CUBLAS)

    build = asyncio.run(Builder(lab.toolchain, tmp_path).compile_only(source, H200.sm, space="cuda_libs"))

    assert isinstance(build, Build), build
    assert {kernel.spill_bytes for kernel in build.kernels} == {0}
