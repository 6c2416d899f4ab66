"""The space that a user's own kernel claims."""

import pytest

from engine.planning.own_kernel import launches_of, space_of

HOST = "at::Tensor f(at::Tensor x) {{ auto y = at::empty_like(x); {} return y; }}"


@pytest.mark.parametrize(("text", "space"), [
    ("k<<<1, 2>>>(x.data_ptr<float>());", "cuda"),
    ("torch::Tensor z = torch::empty({1}, x.options().dtype(torch::kFloat32));", "cuda"),
    ("cublasSgemm(h, a, b);", "cuda_libs"),
    ("#include <cub/cub.cuh>\n cub::DeviceReduce::Sum(a);", "cuda_libs"),
    ("y = at::relu(x);", "cuda_libs_torch"),
    ("y = torch::matmul(x, x);", "cuda_libs_torch"),
    ("// at::relu(x)\n/* cublasSgemm( */", "cuda"),
])
def test_the_narrowest_space_that_holds_the_text(text, space):
    assert space_of(HOST.format(text)) == space


def test_launches_are_counted_in_the_entry_and_its_variant_only():
    text = """
static void copy_helper(at::Tensor& x) {
  if (x.dim() > 1) { copy<<<1, 2>>>(x.data_ptr()); }
}

static torch::Tensor chain_variant(const torch::Tensor& x) {
  // a<<<1, 1>>>(comment);
  at::Tensor y = at::linear(x, x);
  if (true) { chain_kernel<<<1, 2, 0, stream>>>(y.data_ptr()); }
  at::Tensor z = at::empty({1}, x.options());
  return z;
}

torch::Tensor chain_forward(torch::Tensor x) {
  return chain_variant(x);
}
"""
    assert launches_of(text, "chain_forward") == 2
