"""Hand-written candidates for the build tests, in the form people and models write them."""

SPACE_CUDA = """#include <torch/extension.h>
#include <cuda_runtime.h>
#include <ATen/cuda/CUDAContext.h>
template <int BLOCK>
__global__ void __launch_bounds__(BLOCK) row_sum(const float* __restrict__ x, float* __restrict__ s, int n) {
  __shared__ float partial[BLOCK / 32];
  float sum = 0.f;
  for (int i = threadIdx.x; i < n; i += BLOCK) sum += x[static_cast<size_t>(blockIdx.x) * n + i];
  for (int o = 16; o; o >>= 1) sum += __shfl_down_sync(0xffffffffu, sum, o);
  if ((threadIdx.x & 31) == 0) partial[threadIdx.x >> 5] = sum;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int w = 1; w < BLOCK / 32; ++w) sum += partial[w];
    s[blockIdx.x] = sum;
  }
}
torch::Tensor row_sum_forward(torch::Tensor x) {
  TORCH_CHECK(x.is_cuda(), "x must be a CUDA tensor, got ", x.device());
  TORCH_CHECK(x.dim() == 2, "bad shape ", x.sizes());
  x = x.contiguous();
  auto s = torch::empty({x.size(0)}, x.options());
  row_sum<128><<<x.size(0), 128, 0, at::cuda::getCurrentCUDAStream()>>>(
      x.data_ptr<float>(), s.data_ptr<float>(), static_cast<int>(x.size(1)));
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return s;
}
"""
DECLARATION_CUDA = "torch::Tensor row_sum_forward(torch::Tensor x);\n"

SPACE_LIBS = """#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <cublas_v2.h>
torch::Tensor product(torch::Tensor a, torch::Tensor b) {
  auto c = torch::empty({a.size(0), b.size(1)}, a.options());
  static cublasHandle_t handle = [] { cublasHandle_t h; cublasCreate(&h); return h; }();
  cublasSetStream(handle, at::cuda::getCurrentCUDAStream());
  const float one = 1.f, zero = 0.f;
  const int m = a.size(0), k = a.size(1), n = b.size(1);
  auto status = cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, n, m, k, &one, b.data_ptr<float>(), n,
                            a.data_ptr<float>(), k, &zero, c.data_ptr<float>(), n);
  TORCH_CHECK(status == CUBLAS_STATUS_SUCCESS, "cublas status ", int(status));
  return c;
}
"""
DECLARATION_LIBS = "torch::Tensor product(torch::Tensor a, torch::Tensor b);\n"

# The host half uses only ATen on CPU tensors, so it runs here.
SPACE_TORCH = """#include <torch/extension.h>
#include <ATen/ATen.h>
#include <c10/cuda/CUDAGuard.h>
template <typename T> __global__ void scale(const T* x, T* y, int64_t n, float a) {
  int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
  if (i < n) y[i] = T(float(x[i]) * a);
}
std::tuple<torch::Tensor, torch::Tensor> block_forward(torch::Tensor x, torch::Tensor w, c10::optional<torch::Tensor> b,
                                                       double slope) {
  auto h = at::linear(x, w, b);
  auto q = at::layer_norm(at::softmax(h, -1), {h.size(-1)}, {}, {}, 1e-5);
  auto r = (q * 2.0 + h.mean(-1, true)).sum(std::vector<int64_t>{0}, true).expand_as(h).contiguous();
  auto c = torch::cat({r, r.neg()}, 1);
  auto v = std::get<0>(c.max(1));
  if (x.is_cuda()) {
    const at::cuda::OptionalCUDAGuard guard(at::device_of(x));
    AT_DISPATCH_FLOATING_TYPES_AND_HALF(r.scalar_type(), "scale", ([&] {
      scale<scalar_t><<<1, 32, 0, at::cuda::getCurrentCUDAStream()>>>(
          r.data_ptr<scalar_t>(), r.data_ptr<scalar_t>(), r.numel(), float(slope)); }));
  }
  return {at::leaky_relu(r, slope), v + torch::full({1}, 0.5, v.options()) - x[0][0]};
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("forward", &block_forward, py::arg("x")); }
"""
BINDING_TORCH = """#include <torch/extension.h>
#include <tuple>
std::tuple<torch::Tensor, torch::Tensor> block_forward(torch::Tensor x, torch::Tensor w,
                                                       c10::optional<torch::Tensor> b, double slope);
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("forward", &block_forward, "block", py::arg("x"), py::arg("w"), py::arg("b") = py::none(), py::arg("slope") = 0.1);
}
"""

# Runs without a GPU: takes metadata, raw pointers and accessors of CPU tensors.
HOST_ONLY = """#include <torch/extension.h>
#include <c10/cuda/CUDAException.h>
#define CHECK_CONTIGUOUS(x) TORCH_CHECK(x.is_contiguous(), #x " must be contiguous")
torch::Tensor twice_forward(torch::Tensor x, int64_t dim) {
  CHECK_CONTIGUOUS(x);
  TORCH_CHECK(x.scalar_type() == torch::kFloat32, "expected float, got ", x.dtype());
  torch::NoGradGuard guard;
  auto y = torch::empty_like(x);
  auto in = x.accessor<float, 2>();
  auto out = y.packed_accessor64<float, 2>();
  (void)out.size(0);
  for (const auto i : c10::irange(x.size(0)))
    for (int64_t j = 0; j < x.size(1); ++j) y.data_ptr<float>()[i * x.size(1) + j] = 2 * in[i][j];
  auto z = torch::from_blob(y.data_ptr(), {x.size(0), x.size(1)}, x.options());
  TORCH_CHECK(z.sizes() == x.sizes() && z.stride(0) == x.size(1) && x.size(dim) >= 0 && y.use_count() == 1);
  TORCH_CHECK(x._version() == 0);
  return z.clone();
}
"""
DECLARATION_HOST = "torch::Tensor twice_forward(torch::Tensor x, int64_t dim);\n"
