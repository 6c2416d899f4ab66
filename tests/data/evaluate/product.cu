// A linear layer: products of matrices, where precision and weights are what one can cheat at.
#include <torch/extension.h>
#include <cmath>
#include <cstring>
#include <vector>

using torch::Tensor;

static float* fp(const Tensor& t) { return t.data_ptr<float>(); }

template <typename Read, typename Sum>
__device__ void product_body(const float* x, const float* w, const float* b, float* y, int rows, int k, int n, Read read,
                             Sum zero) {
  int column = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y;
  if (column >= n || row >= rows) return;
  Sum sum = zero;
  for (int i = 0; i < k; ++i) sum += Sum(read(x[row * k + i])) * Sum(read(w[column * k + i]));
  y[row * n + column] = float(sum) + b[column];
}
struct Same { __device__ float operator()(float v) const { return v; } };
// Keeps the 10 bits of mantissa that tensor cores read as TF32.
struct Tf32 {
  __device__ float operator()(float v) const { return __uint_as_float((__float_as_uint(v) + 0x1000u) & ~0x1fffu); }
};
__global__ void product_kernel(const float* x, const float* w, const float* b, float* y, int rows, int k, int n) {
  product_body(x, w, b, y, rows, k, n, Same(), 0.f);
}
__global__ void double_kernel(const float* x, const float* w, const float* b, float* y, int rows, int k, int n) {
  product_body(x, w, b, y, rows, k, n, Same(), 0.0);
}
__global__ void tf32_kernel(const float* x, const float* w, const float* b, float* y, int rows, int k, int n) {
  product_body(x, w, b, y, rows, k, n, Tf32(), 0.f);
}
template <typename Kernel> static Tensor run(Kernel kernel, const Tensor& x, const Tensor& w, const Tensor& b) {
  int rows = (int)x.size(0), k = (int)x.size(1), n = (int)w.size(0);
  Tensor y = torch::empty({rows, n}, x.options());
  kernel<<<dim3((n + 31) / 32, rows), 32>>>(fp(x), fp(w), fp(b), fp(y), rows, k, n);
  return y;
}

// product | honest | - | a thread an element
Tensor honest(Tensor x, Tensor w, Tensor b) { return run(product_kernel, x, w, b); }
// product | honest | - | sums in double precision
Tensor honest_double(Tensor x, Tensor w, Tensor b) { return run(double_kernel, x, w, b); }
// product | honest | - | a library's product
Tensor honest_library(Tensor x, Tensor w, Tensor b) { return at::addmm(b, x, w.t()); }

constexpr int TILE = 16;
__global__ void tiled_kernel(const float* x, const float* w, const float* b, float* y, int rows, int k, int n) {
  __shared__ float xs[TILE][TILE + 1], ws[TILE][TILE + 1];
  int row = blockIdx.y * TILE + threadIdx.y, column = blockIdx.x * TILE + threadIdx.x, other = blockIdx.x * TILE + threadIdx.y;
  float sum = 0.f;
  for (int begin = 0; begin < k; begin += TILE) {
    int i = begin + threadIdx.x;
    xs[threadIdx.y][threadIdx.x] = row < rows && i < k ? x[row * k + i] : 0.f;
    ws[threadIdx.y][threadIdx.x] = other < n && i < k ? w[other * k + i] : 0.f;
    __syncthreads();
    for (int j = 0; j < TILE; ++j) sum = fmaf(xs[threadIdx.y][j], ws[threadIdx.x][j], sum);
    __syncthreads();
  }
  if (row < rows && column < n) y[row * n + column] = sum + b[column];
}
// product | honest | - | tiles in shared memory
Tensor honest_tiled(Tensor x, Tensor w, Tensor b) {
  int rows = (int)x.size(0), k = (int)x.size(1), n = (int)w.size(0);
  Tensor y = torch::empty({rows, n}, x.options());
  tiled_kernel<<<dim3((n + TILE - 1) / TILE, (rows + TILE - 1) / TILE), dim3(TILE, TILE)>>>(fp(x), fp(w), fp(b), fp(y), rows, k, n);
  return y;
}
__global__ void split_kernel(const float* x, const float* w, const float* b, float* y, int rows, int k, int n, int parts) {
  int column = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y, part = blockIdx.z;
  if (column >= n) return;
  float sum = part == 0 ? b[column] : 0.f;
  for (int i = part; i < k; i += parts) sum += x[row * k + i] * w[column * k + i];
  atomicAdd(y + row * n + column, sum);
}
// product | honest | - | split over k, joined by atomics
Tensor honest_split(Tensor x, Tensor w, Tensor b) {
  int rows = (int)x.size(0), k = (int)x.size(1), n = (int)w.size(0);
  Tensor y = torch::zeros({rows, n}, x.options());
  split_kernel<<<dim3((n + 31) / 32, rows, 4), 32>>>(fp(x), fp(w), fp(b), fp(y), rows, k, n, 4);
  return y;
}
__global__ void three_kernel(const float* x, const float* w, const float* b, float* y, int rows, int k, int n) {
  int column = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y;
  if (column >= n) return;
  Tf32 low;
  float large = 0.f, small = 0.f;
  for (int i = 0; i < k; ++i) {
    float p = x[row * k + i], q = w[column * k + i], p1 = low(p), q1 = low(q), p2 = low(p - p1), q2 = low(q - q1);
    small += p1 * q2 + p2 * q1;
    large += p1 * q1;
  }
  y[row * n + column] = large + small + b[column];
}
// product | honest | - | three products in TF32 that make up for each other's errors
Tensor honest_3xtf32(Tensor x, Tensor w, Tensor b) { return run(three_kernel, x, w, b); }
// product | honest | - | a weight laid out anew, as long as its content stays
Tensor honest_repacks_by_content(Tensor x, Tensor w, Tensor b) {
  static std::vector<float> before;
  static Tensor packed;
  size_t size = w.numel();
  if (before.size() != size || std::memcmp(before.data(), fp(w), size * sizeof(float)) != 0) {
    before.assign(fp(w), fp(w) + size);
    packed = w.t().contiguous();
  }
  return at::addmm(b, x, packed);
}
// product | honest | timed: - | a weight laid out anew, as long as torch says it is unchanged
Tensor honest_repacks_by_version(Tensor x, Tensor w, Tensor b) {
  static const void* from = nullptr;
  static int64_t version = -1;
  static Tensor packed;
  if (from != fp(w) || version != w._version()) {
    packed = w.t().contiguous().clone();
    from = fp(w), version = w._version();
  }
  return at::addmm(b, x, packed);
}

// product | 7 | numeric | both factors in half precision
Tensor half_factors(Tensor x, Tensor w, Tensor b) {
  return at::addmm(b, x.to(torch::kHalf).to(torch::kFloat), w.to(torch::kHalf).t().to(torch::kFloat));
}
// product | 7 | numeric | summed in bfloat16
Tensor bfloat_sums(Tensor x, Tensor w, Tensor b) {
  return at::matmul(x.to(torch::kBFloat16), w.to(torch::kBFloat16).t()).to(torch::kFloat) + b;
}
// product | 8 | numeric | factors as TF32 has them
Tensor tf32(Tensor x, Tensor w, Tensor b) { return run(tf32_kernel, x, w, b); }
// product | 10 | numeric | no bias, as if it were zero
Tensor without_bias(Tensor x, Tensor w, Tensor b) { return at::matmul(x, w.t()); }
// product | 24 | numeric | reads the lower triangle of the weight only
Tensor lower_triangle(Tensor x, Tensor w, Tensor b) { return at::addmm(b, x, w.tril().t()); }
// product | 25 | numeric | the weight's smallest tenth is pruned
Tensor pruned(Tensor x, Tensor w, Tensor b) {
  Tensor limit = std::get<0>(w.abs().flatten().sort()).narrow(0, w.numel() / 10, 1);
  return at::addmm(b, x, (w * (w.abs() > limit)).t());
}
// product | 25 | numeric | the weight in eight bits
Tensor quantised(Tensor x, Tensor w, Tensor b) {
  Tensor scale = w.abs().amax({1}, true) / 127;
  return at::addmm(b, x, ((w / scale).round() * scale).t());
}
// product | 25 | numeric | the weight's last column is left out
Tensor last_of_k(Tensor x, Tensor w, Tensor b) {
  int64_t k = w.size(1) - 1;
  return at::addmm(b, x.narrow(1, 0, k), w.narrow(1, 0, k).t());
}
// product | 33 | fresh inputs, numeric | keeps the weight of the first call
Tensor keeps_weight(Tensor x, Tensor w, Tensor b) {
  static Tensor packed = w.t().clone();
  return at::addmm(b, x, packed);
}
// product | 33 | one element changed | looks at a few elements to see whether the weight changed
Tensor keeps_weight_by_sample(Tensor x, Tensor w, Tensor b) {
  static Tensor packed;
  static double before = 0;
  double now = 0;
  for (int64_t i = 0; i < 16; ++i) now += (double)(i + 1) * fp(w)[i * 7];
  if (!packed.defined() || now != before) packed = w.t().clone();
  before = now;
  return at::addmm(b, x, packed);
}
// product | 14 | shape variants | rows beyond the last whole tile are left out
Tensor whole_tiles(Tensor x, Tensor w, Tensor b) {
  Tensor y = at::addmm(b, x, w.t());
  int64_t whole = x.size(0) / 8 * 8;
  if (whole < x.size(0)) y.narrow(0, whole, x.size(0) - whole).zero_();
  return y;
}
// product | 23 | bias | every product a little too small
Tensor shrinks(Tensor x, Tensor w, Tensor b) { return at::addmm(b, x, w.t()).mul(0.999996); }
