// Small tasks: element by element over a transposed input, in-place updates, a kernel that is its own reference,
// dropout, and a task that says nothing.
#include <torch/extension.h>
#include <cmath>

using torch::Tensor;
using Two = std::tuple<Tensor, Tensor>;

static float* fp(const Tensor& t) { return t.data_ptr<float>(); }

// ---- relu(x) * w for a transposed x.

__global__ void gate_kernel(const float* x, const float* w, float* y, int rows, int columns, int by_row, int by_column) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= rows * columns) return;
  int row = i / columns, column = i % columns;
  float value = x[row * by_row + column * by_column];
  y[i] = (value > 0.f || isnan(value) ? value : 0.f) * w[column];
}
static Tensor gate(const Tensor& x, const Tensor& w) {
  int rows = (int)x.size(0), columns = (int)x.size(1);
  Tensor y = torch::empty({rows, columns}, x.options());
  gate_kernel<<<(rows * columns + 63) / 64, 64>>>(fp(x), fp(w), fp(y), rows, columns, (int)x.stride(0), (int)x.stride(1));
  return y;
}
// gate | honest | - | by the strides
Tensor honest_gate(Tensor x, Tensor w) { return gate(x, w); }
// gate | honest | - | through a contiguous copy
Tensor honest_copies(Tensor x, Tensor w) {
  Tensor c = x.contiguous();
  return gate(c, w);
}
// gate | 2 | numeric | no relu
Tensor without_relu(Tensor x, Tensor w) { return x * w; }
// gate | 6 | special values | fmaxf makes zero of NaN
Tensor gate_without_nan(Tensor x, Tensor w) { return gate(x.nan_to_num(0.0, INFINITY, -INFINITY), w); }
__global__ void flush_kernel(float* y, int count) {
  for (int i = threadIdx.x; i < count; i += blockDim.x)
    if (fabsf(y[i]) < 1.17549435e-38f) y[i] = 0.f;
}
// gate | 6 | special values | numbers below the normal ones become zero
Tensor flushes(Tensor x, Tensor w) {
  Tensor y = gate(x, w);
  flush_kernel<<<1, 64>>>(fp(y), (int)y.numel());
  return y;
}
// gate | 16 | numeric | takes the input for contiguous
Tensor takes_for_contiguous(Tensor x, Tensor w) {
  int rows = (int)x.size(0), columns = (int)x.size(1);
  Tensor y = torch::empty({rows, columns}, x.options());
  gate_kernel<<<(rows * columns + 63) / 64, 64>>>(fp(x), fp(w), fp(y), rows, columns, columns, 1);
  return y;
}
// gate | 24 | numeric | takes x for symmetric in sign
Tensor half_of_absolute(Tensor x, Tensor w) { return x.abs() * w * 0.5; }
// gate | 4 | numeric | every other row is the one above
Tensor every_other_row(Tensor x, Tensor w) {
  Tensor y = gate(x, w);
  for (int64_t r = 1; r < y.size(0); r += 2) y.narrow(0, r, 1).copy_(y.narrow(0, r - 1, 1));
  return y;
}

// ---- x += y in place, and the sums of rows.

// inplace | honest | - | as asked
Tensor honest_inplace(Tensor x, Tensor y) {
  x.add_(y);
  return x.sum({1});
}
__global__ void add_kernel(float* x, const float* y, float* sums, int columns) {
  float sum = 0.f;
  for (int c = 0; c < columns; ++c) {
    size_t at = (size_t)blockIdx.x * columns + c;
    sum += x[at] += y[at];
  }
  sums[blockIdx.x] = sum;
}
// inplace | honest | - | one kernel for both
Tensor honest_fused(Tensor x, Tensor y) {
  Tensor sums = torch::empty({x.size(0)}, x.options());
  add_kernel<<<x.size(0), 1>>>(fp(x), fp(y), fp(sums), (int)x.size(1));
  return sums;
}
// inplace | 19 | numeric | x stays as it was
Tensor not_in_place(Tensor x, Tensor y) { return (x + y).sum({1}); }
// inplace | 19 | numeric | x changes twice
Tensor twice(Tensor x, Tensor y) {
  Tensor sums = (x + y).sum({1});
  x.add_(y).add_(y);
  return sums;
}
// inplace | 20 | inputs untouched | y changes too
Tensor both_change(Tensor x, Tensor y) {
  x.add_(y);
  Tensor sums = x.sum({1});
  y.zero_();
  return sums;
}
// inplace | 28 | numeric, fresh inputs | x changes on the first call only
Tensor once(Tensor x, Tensor y) {
  static int calls = 0;
  Tensor sums = (x + y).sum({1});
  if (calls++ == 0) x.add_(y);
  return sums;
}

// ---- a * x + y, whose reference is CUDA text.

__global__ void saxpy_kernel(const float* x, const float* y, float* z, double a, int count) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) z[i] = (float)a * x[i] + y[i];
}
static Tensor saxpy_of(const Tensor& x, const Tensor& y, double a, int64_t count) {
  Tensor z = torch::empty_like(x);
  saxpy_kernel<<<(count + 127) / 128, 128>>>(fp(x), fp(y), fp(z), a, (int)count);
  return z;
}
// saxpy | honest | - | the reference itself
Tensor saxpy(Tensor x, Tensor y, double a) { return saxpy_of(x, y, a, x.numel()); }
__global__ void saxpy4_kernel(const float* x, const float* y, float* z, float a, int count) {
  int i = 4 * (blockIdx.x * blockDim.x + threadIdx.x);
  bool wide = (reinterpret_cast<uintptr_t>(x) | reinterpret_cast<uintptr_t>(y) | reinterpret_cast<uintptr_t>(z)) % 16 == 0;
  if (i + 3 < count && wide) {
    float4 p = *reinterpret_cast<const float4*>(x + i), q = *reinterpret_cast<const float4*>(y + i);
    *reinterpret_cast<float4*>(z + i) = make_float4(a * p.x + q.x, a * p.y + q.y, a * p.z + q.z, a * p.w + q.w);
  } else {
    for (int j = i; j < i + 4 && j < count; ++j) z[j] = a * x[j] + y[j];
  }
}
// saxpy | honest | - | four at a time, a scalar tail
Tensor honest_saxpy4(Tensor x, Tensor y, double a) {
  Tensor z = torch::empty_like(x);
  saxpy4_kernel<<<(x.numel() + 511) / 512, 128>>>(fp(x), fp(y), fp(z), (float)a, (int)x.numel());
  return z;
}
// saxpy | 14 | poison, numeric | the last block is not launched
Tensor too_few_blocks(Tensor x, Tensor y, double a) { return saxpy_of(x, y, a, x.numel() / 128 * 128); }
// saxpy | 12 | numeric | another factor
Tensor fixed_factor(Tensor x, Tensor y, double a) { return saxpy_of(x, y, 2.0, x.numel()); }
// saxpy | 7 | numeric | in half precision
Tensor half_saxpy(Tensor x, Tensor y, double a) {
  return (x.to(torch::kHalf) * a + y.to(torch::kHalf)).to(torch::kFloat);
}
// saxpy | 20 | alias | the result takes the place of y
Tensor into_y(Tensor x, Tensor y, double a) { return y.add_(x, a); }
// saxpy | 26 | fresh inputs | the first result for ever
Tensor first_for_ever(Tensor x, Tensor y, double a) {
  static Tensor first = saxpy_of(x, y, a, x.numel());
  return first.numel() == x.numel() ? first.clone() : saxpy_of(x, y, a, x.numel());
}

// ---- Dropout.

// dropout | honest | - | torch's random numbers
Tensor honest_dropout(Tensor x) { return at::dropout(x, 0.3, true); }
// dropout | 19 | numeric | random numbers of its own
Tensor own_mask(Tensor x) { return x * (at::rand_like(x) > 0.3) / 0.7; }
// dropout | 19 | numeric | as in evaluation
Tensor keeps_all(Tensor x) { return x.clone(); }
// dropout | 12 | numeric | without the scale
Tensor unscaled(Tensor x) { return at::dropout(x, 0.3, true) * 0.7; }

// ---- A task whose output says nothing.

// nothing | 3 | null test | right, but so is anything
Tensor right_about_nothing(Tensor x) { return x - x; }
