"""The space that a user's own kernel claims."""

import pytest

from engine.planning.own_kernel import space_of

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
