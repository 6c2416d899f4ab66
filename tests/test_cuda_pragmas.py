"""Pragma lines: read, refused with their line, and made from a signature."""

import pytest

from contracts.cuda_pragmas import PragmaLaunch, pragma_template, read_pragmas
from contracts.cuda_sites import parse_cuda
from contracts.errors import InputError
from contracts.tensors import TensorSpec


def test_all_forms_are_read() -> None:
    found = read_pragmas(
        "// hiera: entry heat\n"
        "// an ordinary comment\n"
        "// hiera: arg u in float64[8, 16]\n"
        "  // hiera: arg out out float64[8, 16]\n"
        "// hiera: arg n 16\n"
        "// hiera: arg dt = 0.5\n"
        "// hiera: launch grid=((n + 31) / 32, 8) block=(32) shared=n*4\n"
        "// hiera: returns float32[2], int64[3]\n"
        "// hiera: reference torch.argmax(x, dim=1)\n",
        "k.cu",
    )

    assert found.entry == "heat"
    assert [(a.name, a.flow, a.value) for a in found.arguments] == [
        ("u", "in", None), ("out", "out", None), ("n", None, 16), ("dt", None, 0.5),
    ]
    assert found.arguments[0].tensor == TensorSpec.contiguous("float64", (8, 16))
    assert found.launch == PragmaLaunch(grid=("(n + 31) / 32", "8"), block=("32",), shared_bytes="n*4")
    assert found.returns == (TensorSpec.contiguous("float32", (2,)), TensorSpec.contiguous("int64", (3,)))
    assert found.reference == "torch.argmax(x, dim=1)"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("// hiera: arg x in float33[2]", "'float33[2]' is not a tensor layout"),
        ("// hiera: arg x in float32[n]", "the sizes in 'float32[n]' are not whole numbers"),
        ("// hiera: arg x fast", "argument 'x' has the value 'fast'"),
        ("// hiera: launch block=(1)", "names no grid or no block"),
        ("// hiera: colour red", "unknown pragma 'colour'"),
    ],
)
def test_a_bad_line_is_named(line: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        read_pragmas("\n" + line, "k.cu")

    assert "k.cu:2: " in str(caught.value)
    assert message in str(caught.value)


def test_a_template_is_made_from_a_signature_and_reads_back() -> None:
    text = "__global__ void k(const double* a, float* y, int n, float s) {}"
    (kernel,) = parse_cuda(text).functions

    template = pragma_template(kernel)

    assert template == (
        "// hiera: entry k\n"
        "// hiera: arg a in float64[1024]\n"
        "// hiera: arg y out float32[1024]\n"
        "// hiera: arg n 1024\n"
        "// hiera: arg s 1.0\n"
        "// hiera: launch grid=(4) block=(256) shared=0\n"
    )
    assert len(read_pragmas(template, "k.cu").arguments) == 4
