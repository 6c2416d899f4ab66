"""Products on Tensor Cores, played instruction by instruction on the CPU: layouts, edges, accuracy, special values."""

import asyncio
import shutil

import pytest
import torch
from torch import nn

from engine.codegen import Recipe, write
from engine.evaluate.build import Builder
from engine.evaluate.cuda_to_host import blockers, transform
from engine.records import Build, Device
from tests.codegen_harness import H200, export_graph
from tests.program_harness import Lab, Product, contract_of, program_of

pytestmark = [
    pytest.mark.timeout(600), pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler"),
]


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    torch.manual_seed(0)
    return Lab(tmp_path_factory.mktemp("tensor_cores"))


def on_tensor_cores(module, inputs, space="cuda", **values):
    """Choices that put every product of the program on Tensor Cores."""
    program, _, _ = program_of(module, inputs, space=space)
    choices = {t.key: "tensor_cores" for t in program.tunables if t.key.endswith(".means")}
    assert choices
    program, _, _ = program_of(module, inputs, space=space, choices=choices)
    for tunable in program.tunables:
        value = values.get(tunable.key.rpartition(".")[2])
        if value in tunable.values:
            choices[tunable.key] = value
    return choices


@pytest.mark.parametrize("a_turned", [False, True])
@pytest.mark.parametrize("b_turned", [False, True])
@pytest.mark.parametrize(("m", "k", "n"), [(100, 68, 72), (33, 51, 37)], ids=["vectors", "odd"])
def test_operands_of_either_order_and_edges_of_tiles(lab, a_turned, b_turned, m, k, n):
    module = Product(a_turned, b_turned).eval()
    inputs = [torch.randn(k, m) if a_turned else torch.randn(m, k), torch.randn(n, k) if b_turned else torch.randn(k, n)]

    program = lab.check(module, inputs, space="cuda", choices=on_tensor_cores(module, inputs))

    assert any("tensor_core_product" in kernel for kernel in program.kernels)


@pytest.mark.slow
@pytest.mark.parametrize("values", [
    {"tile": "128x128"}, {"tile": "128x64", "depth": 16, "stages": 2}, {"tile": "64x128", "stages": 3},
    {"tile": "32x128"}, {"tile": "128x32"}, {"tile": "32x64", "splits": 4}, {"tile": "64x32", "depth": 16, "splits": 8},
], ids=str)
def test_every_tile_and_depth(lab, values):
    module, inputs = Product().eval(), [torch.randn(2, 130, 100), torch.randn(2, 100, 132)]

    lab.check(module, inputs, space="cuda", choices=on_tensor_cores(module, inputs, **values))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("turned", [False, True])
def test_half_types_go_in_as_they_are(lab, dtype, turned):
    module = Product(turned, turned).eval()
    inputs = [torch.randn(72, 72).to(dtype), torch.randn(72, 72).to(dtype)]

    lab.check(module, inputs, space="cuda", choices=on_tensor_cores(module, inputs),
              tolerance=1e-2 if dtype == torch.float16 else 1e-1)


def test_bias_and_library_spaces(lab):
    module, inputs = nn.Linear(96, 80).eval(), [torch.randn(3, 30, 96)]
    for space in ("cuda_libs", "cuda_libs_torch"):
        lab.check(module, inputs, space=space, choices=on_tensor_cores(module, inputs, space))


@pytest.mark.slow
@pytest.mark.parametrize(("module", "shape"), [
    (nn.Conv2d(20, 40, 1), (2, 20, 9, 11)), (nn.Conv2d(6, 36, 3, stride=2, padding=1, groups=2), (2, 6, 13, 11)),
    (nn.ConvTranspose2d(18, 20, 4, stride=2, padding=1), (1, 18, 7, 9)),
], ids=lambda v: type(v).__name__)
def test_convolutions_as_gathered_products(lab, module, shape):
    module, inputs = module.eval(), [torch.randn(shape)]

    # The default flags let the reference round to TF32, so the kernel may as well; on the CPU it does not.
    lab.check(module, inputs, space="cuda", choices=on_tensor_cores(module, inputs), tolerance=5e-3)
    lab.check(module, inputs, space="cuda", choices=on_tensor_cores(module, inputs, arithmetic="compensated"))


@pytest.mark.parametrize("make", [torch.randn, torch.rand], ids=["zero mean", "positive"])
def test_compensated_sums_are_no_less_accurate_than_fp32(lab, make):
    """Positive terms show what cutting instead of rounding would do to a long sum."""
    module, inputs = Product().eval(), [make(32, 6000), make(6000, 32)]
    program, contract, _ = program_of(module, inputs, space="cuda",
                                      choices=on_tensor_cores(module, inputs, splits=1))
    exact = inputs[0].double() @ inputs[1].double()

    got = lab.load(contract, program.source)(*inputs)

    def error(result):
        return ((result.double() - exact).norm() / exact.norm()).item()

    in_order = torch.zeros(32, 32)
    for k in range(6000):
        in_order += inputs[0][:, k : k + 1] * inputs[1][k : k + 1]
    assert error(got) <= error(in_order)
    assert error(got) < 5e-7


def test_infinities_and_nan_come_out_as_from_fp32(lab):
    module, inputs = Product().eval(), [torch.randn(40, 48), torch.randn(48, 40)]
    inputs[0][3, 5], inputs[0][9, 7], inputs[1][11, 2] = float("inf"), float("nan"), float("-inf")
    inputs[0][20, 0] = 3.4e38  # Rounds up to infinity.
    program, contract, _ = program_of(module, inputs, space="cuda", choices=on_tensor_cores(module, inputs))

    got = lab.load(contract, program.source)(*inputs)

    torch.testing.assert_close(got, inputs[0] @ inputs[1], equal_nan=True, rtol=2e-5, atol=2e-5)


def test_tf32_only_where_the_reference_has_it():
    graph, _, _ = export_graph(Product().eval(), [torch.randn(64, 64), torch.randn(64, 64)])
    recipe = Recipe(space="cuda", choices={"matmul.means": "tensor_cores"})

    strict = write(contract_of(graph, 0), recipe, H200).source
    loose = write(contract_of(graph, 0, flags={"cuda.matmul.allow_tf32": True}), recipe, H200).source

    assert "struct CompensatedTf32" in strict
    assert "struct Tf32 " not in strict
    assert "struct Tf32 " in loose


def test_default_stays_and_small_or_old_is_not_offered():
    def means(shape, device):
        graph, _, _ = export_graph(Product().eval(), [torch.randn(shape), torch.randn(shape[::-1])])
        program = write(contract_of(graph, 0), Recipe(space="cuda"), device)
        return next((t.values for t in program.tunables if t.key.endswith(".means")), ())

    assert means((128, 128), H200) == ("own", "tensor_cores")
    assert means((4, 128), H200) == ()
    assert means((128, 128), Device(kind="none", name="old", sm="7.5", sm_count=40)) == ()


def test_ptx_becomes_calls_in_the_order_of_the_instruction():
    text = 'asm("cvt.rna.tf32.f32 %0, %1;"\n : "=r"(r[0]) : "f"(x + f(1, 2)));'

    assert transform(text) == "::hiera_emu::cvt_rna_tf32((r[0]), (x + f(1, 2)))\n;"
    assert blockers(text) == ()
    assert blockers('asm("cvt.rna.tf32.f32 %0, %5;" : "=r"(r) : "f"(x));') == ("inline PTX",)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
@pytest.mark.parametrize("size", [4096, 4093], ids=["vectors", "element by element"])
def test_nvcc_keeps_sums_and_addresses_in_registers(lab, tmp_path, size):
    graph, _, _ = export_graph(Product().eval(), [torch.empty(size, size), torch.empty(size, size)])
    program = write(contract_of(graph, 0), Recipe(space="cuda", choices={"matmul.means": "tensor_cores"}), H200)

    build = asyncio.run(Builder(lab.toolchain, tmp_path).compile_only(program.source, H200.sm, space="cuda"))

    assert isinstance(build, Build), build
    (kernel,) = (kernel for kernel in build.kernels if "tensor_core_product" in kernel.name)
    assert kernel.spill_bytes == 0
