// Batch norm in training, with the row-wise arg-max as second output: several outputs and mutated buffers. And a
// mean and variances: statistics.
#include <torch/extension.h>
#include <cmath>

using torch::Tensor;
using Two = std::tuple<Tensor, Tensor>;

static float* fp(const Tensor& t) { return t.data_ptr<float>(); }
static Tensor normalised(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps = 1e-5) {
  Tensor mean = x.mean({0}), centred = x - mean;
  Tensor variance = (centred * centred).mean({0});
  return centred * (variance + eps).rsqrt() * weight + bias;
}
static void update(const Tensor& x, Tensor mean, Tensor variance, Tensor count) {
  double n = (double)x.size(0);
  Tensor now = x.mean({0}), centred = x - now;
  mean.mul_(0.9).add_(now * 0.1);
  variance.mul_(0.9).add_((centred * centred).sum({0}) * (0.1 / (n - 1)));
  count.add_(1);
}

// norm | honest | - | two passes
Two honest(Tensor x, Tensor w, Tensor b, Tensor mean, Tensor variance, Tensor count) {
  update(x, mean, variance, count);
  Tensor y = normalised(x, w, b);
  return {y, y.argmax(1)};
}
__global__ void welford_kernel(const float* x, const float* w, const float* b, float* run_mean, float* run_variance,
                               int64_t* count, float* y, int rows, int columns) {
  int c = blockIdx.x * blockDim.x + threadIdx.x;
  if (c == 0) *count += 1;
  if (c >= columns) return;
  float mean = 0.f, square = 0.f;
  for (int r = 0; r < rows; ++r) {
    float value = x[r * columns + c], off = value - mean;
    mean += off / (float)(r + 1);
    square += off * (value - mean);
  }
  run_mean[c] = 0.9f * run_mean[c] + 0.1f * mean;
  run_variance[c] = 0.9f * run_variance[c] + 0.1f * square / (float)(rows - 1);
  float scale = rsqrtf(square / (float)rows + 1e-5f);
  for (int r = 0; r < rows; ++r) y[r * columns + c] = (x[r * columns + c] - mean) * scale * w[c] + b[c];
}
__global__ void argmax_kernel(const float* y, int64_t* top, int columns) {
  const float* row = y + (size_t)blockIdx.x * columns;
  int best = 0;
  for (int c = 1; c < columns; ++c)
    if (!isnan(row[best]) && (isnan(row[c]) || row[c] > row[best])) best = c;
  top[blockIdx.x] = best;
}
// norm | honest | - | Welford's running variance, an arg-max that knows NaN
Two honest_welford(Tensor x, Tensor w, Tensor b, Tensor mean, Tensor variance, Tensor count) {
  Tensor y = torch::empty_like(x), top = torch::empty({x.size(0)}, count.options());
  int rows = (int)x.size(0), columns = (int)x.size(1);
  welford_kernel<<<(columns + 31) / 32, 32>>>(fp(x), fp(w), fp(b), fp(mean), fp(variance), count.data_ptr<int64_t>(),
                                             fp(y), rows, columns);
  argmax_kernel<<<rows, 1>>>(fp(y), top.data_ptr<int64_t>(), columns);
  return {y, top};
}
// norm | 19 | numeric | the running statistics are not updated
Two no_update(Tensor x, Tensor w, Tensor b, Tensor mean, Tensor variance, Tensor count) {
  Tensor y = normalised(x, w, b);
  return {y, y.argmax(1)};
}
// norm | 19 | numeric | normalises by the running statistics, as in evaluation
Two as_in_evaluation(Tensor x, Tensor w, Tensor b, Tensor mean, Tensor variance, Tensor count) {
  Tensor y = (x - mean) * (variance + 1e-5).rsqrt() * w + b;
  update(x, mean, variance, count);
  return {y, y.argmax(1)};
}
// norm | 19 | numeric | the running variance is the biased one
Two biased_update(Tensor x, Tensor w, Tensor b, Tensor mean, Tensor variance, Tensor count) {
  Tensor before = variance.clone(), now = x.var({0}, false);
  update(x, mean, variance, count);
  variance.copy_(before * 0.9 + now * 0.1);
  Tensor y = normalised(x, w, b);
  return {y, y.argmax(1)};
}
// norm | 21 | numeric | the second output is garbage
Two garbage_second(Tensor x, Tensor w, Tensor b, Tensor mean, Tensor variance, Tensor count) {
  update(x, mean, variance, count);
  Tensor y = normalised(x, w, b);
  return {y, torch::zeros_like(y.argmax(1))};
}
// norm | 21 | poison, numeric | the second output is never written
Two unwritten_second(Tensor x, Tensor w, Tensor b, Tensor mean, Tensor variance, Tensor count) {
  update(x, mean, variance, count);
  return {normalised(x, w, b), torch::empty({x.size(0)}, count.options())};
}
// norm | 10 | numeric | scale and shift are skipped, as if they were one and zero
Two skips_weight(Tensor x, Tensor w, Tensor b, Tensor mean, Tensor variance, Tensor count) {
  update(x, mean, variance, count);
  Tensor y = normalised(x, torch::ones_like(w), torch::zeros_like(b));
  return {y, y.argmax(1)};
}
// norm | 12 | numeric | another epsilon
Two other_epsilon(Tensor x, Tensor w, Tensor b, Tensor mean, Tensor variance, Tensor count) {
  update(x, mean, variance, count);
  Tensor y = normalised(x, w, b, 1e-3);
  return {y, y.argmax(1)};
}
// norm | 5 | numeric | the variance as a difference of large numbers
Two unstable_variance(Tensor x, Tensor w, Tensor b, Tensor mean, Tensor variance, Tensor count) {
  update(x, mean, variance, count);
  Tensor m = x.mean({0});
  Tensor y = (x - m) * ((x * x).mean({0}) - m * m + 1e-5).rsqrt() * w + b;
  return {y, y.argmax(1)};
}
// norm | 20 | inputs untouched | changes a parameter
Two mutates_parameter(Tensor x, Tensor w, Tensor b, Tensor mean, Tensor variance, Tensor count) {
  update(x, mean, variance, count);
  Tensor y = normalised(x, w, b);
  w.mul_(1.0001);
  return {y, y.argmax(1)};
}
// norm | 33 | numeric, fresh inputs | keeps the scale of the first call
Two caches_weight(Tensor x, Tensor w, Tensor b, Tensor mean, Tensor variance, Tensor count) {
  static Tensor kept = w.clone();
  update(x, mean, variance, count);
  Tensor y = normalised(x, kept, b);
  return {y, y.argmax(1)};
}
// norm | 6 | special values | an arg-max that passes over NaN
Two argmax_without_nan(Tensor x, Tensor w, Tensor b, Tensor mean, Tensor variance, Tensor count) {
  update(x, mean, variance, count);
  Tensor y = normalised(x, w, b);
  return {y, y.nan_to_num(-INFINITY).argmax(1)};
}

// stats | honest | - | mean of all, variances of rows
Two honest_stats(Tensor x) { return {x.mean(), x.var({1}, true)}; }
__global__ void mean_kernel(const float* x, float* sum, int count, float scale) {
  float mine = 0.f;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) mine += x[i];
  atomicAdd(sum, mine * scale);
}
// stats | honest | - | the mean by atomics from many blocks
Two honest_atomic_mean(Tensor x) {
  Tensor mean = torch::zeros({}, x.options());
  mean_kernel<<<12, 64>>>(fp(x), fp(mean), (int)x.numel(), 1.f / (float)x.numel());
  return {mean, x.var({1}, true)};
}
// stats | honest | - | sums in double precision
Two honest_double(Tensor x) {
  return {x.to(torch::kDouble).mean().to(torch::kFloat), x.to(torch::kDouble).var({1}, true).to(torch::kFloat)};
}
// stats | 4 | numeric | the mean of every tenth row
Two mean_of_some(Tensor x) { return {x.slice(0, 0, x.size(0), 10).mean(), x.var({1}, true)}; }
// stats | 4 | numeric | variances of half of each row
Two variance_of_half(Tensor x) { return {x.mean(), x.narrow(1, 0, x.size(1) / 2).var({1}, true)}; }
// stats | 5 | numeric | variances as differences of large numbers
Two naive_variance(Tensor x) {
  double n = (double)x.size(1);
  return {x.mean(), ((x * x).mean({1}) - x.mean({1}) * x.mean({1})) * (n / (n - 1))};
}
// stats | 12 | numeric | divides by n instead of n - 1
Two population_variance(Tensor x) { return {x.mean(), x.var({1}, false)}; }
// stats | 21 | numeric | the outputs change places where the shapes allow it
Two first_from_second(Tensor x) { return {x.var({1}, true).mean(), x.var({1}, true)}; }
// stats | 7 | numeric | sums in half precision
Two half_sums(Tensor x) { return {x.mean(), x.to(torch::kHalf).var({1}, true).to(torch::kFloat)}; }
