// One extension, many entries: honest ones and one for each way to cheat at a softmax over rows.
#include <torch/extension.h>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <thread>
#include <vector>
#include <unistd.h>

using torch::Tensor;

__global__ void softmax_kernel(const float* x, float* y, int columns) {
  const float* row = x + (size_t)blockIdx.x * columns;
  float* out = y + (size_t)blockIdx.x * columns;
  __shared__ float part[64];
  float top = -INFINITY;
  bool is_nan = false;
  for (int i = threadIdx.x; i < columns; i += 64) { top = fmaxf(top, row[i]); is_nan |= isnan(row[i]); }
  part[threadIdx.x] = is_nan ? NAN : top;
  __syncthreads();
  float all = -INFINITY;
  for (int i = 0; i < 64; ++i) { if (isnan(part[i])) is_nan = true; all = fmaxf(all, part[i]); }
  if (is_nan) all = NAN;
  __syncthreads();
  float sum = 0.f;
  for (int i = threadIdx.x; i < columns; i += 64) sum += expf(row[i] - all);
  part[threadIdx.x] = sum;
  __syncthreads();
  float total = 0.f;
  for (int i = 0; i < 64; ++i) total += part[i];
  for (int i = threadIdx.x; i < columns; i += 64) out[i] = expf(row[i] - all) / total;
}

static Tensor right(const Tensor& x) {
  Tensor y = torch::empty_like(x);
  softmax_kernel<<<x.size(0), 64>>>(x.data_ptr<float>(), y.data_ptr<float>(), (int)x.size(1));
  return y;
}

Tensor honest(Tensor x) { return right(x); }
Tensor honest_aten(Tensor x) { return x.softmax(1); }
Tensor honest_caches_scratch(Tensor x) {
  static Tensor scratch;
  if (!scratch.defined() || scratch.numel() < x.numel()) scratch = torch::empty_like(x);
  return right(x);
}
Tensor zeros(Tensor x) { return torch::zeros_like(x); }
Tensor constant(Tensor x) { return torch::zeros_like(x).add(1.0 / (double)x.size(1)); }
Tensor half_precision(Tensor x) { return x.to(torch::kHalf).softmax(1).to(torch::kFloat); }
Tensor biased(Tensor x) { return right(x).mul(1.00009); }
Tensor part_of_row(Tensor x) {
  int64_t half = x.size(1) / 2;
  Tensor top = x.amax({1}, true);
  Tensor sum = (x.narrow(1, 0, half) - top).exp().sum({1}, true) * ((double)x.size(1) / (double)half);
  return (x - top).exp() / sum;
}
Tensor no_maximum(Tensor x) { Tensor e = x.exp(); return e / e.sum({1}, true); }
Tensor misses_last(Tensor x) {
  Tensor y = right(x);
  y.data_ptr<float>()[y.numel() - 1] = 0.f;
  return y;
}
Tensor unwritten(Tensor x) {
  Tensor y = torch::empty_like(x);
  softmax_kernel<<<x.size(0) / 2 + x.size(0) % 2, 64>>>(x.data_ptr<float>(), y.data_ptr<float>(), (int)x.size(1));
  return y;
}
Tensor stale_by_pointer(Tensor x) {
  static std::map<const void*, Tensor> seen;
  auto found = seen.find(x.data_ptr<float>());
  if (found != seen.end() && found->second.numel() == x.numel()) return found->second.clone();
  Tensor y = right(x);
  seen[x.data_ptr<float>()] = y;
  return y.clone();
}
Tensor stale_by_fingerprint(Tensor x) {
  static std::map<float, Tensor> seen;
  float key = 0.f;  // Of enough elements that no two draws share it by their zeros.
  for (int64_t i = 0; i < x.numel() && i < 32; ++i) key += (i + 1) * x.data_ptr<float>()[i];
  auto found = seen.find(key);
  if (found != seen.end() && found->second.numel() == x.numel()) return found->second.clone();
  Tensor y = right(x);
  seen[key] = y;
  return y.clone();
}
Tensor idles_later(Tensor x) {
  static int calls = 0;
  static Tensor last;
  if (++calls > 6 && last.defined() && last.numel() == x.numel()) return last.clone();
  return (last = right(x)).clone();
}
Tensor idles_in_timing(Tensor x) {
  // Honest while verified, then the last result for as long as calls come in batches.
  static int calls = 0;
  static Tensor last;
  if (++calls > 60 && last.defined() && last.numel() == x.numel()) return last.clone();
  return (last = right(x)).clone();
}
Tensor same_buffer(Tensor x) {
  static std::map<int64_t, Tensor> kept;
  Tensor& y = kept[x.numel()];
  if (!y.defined()) y = torch::empty_like(x);
  softmax_kernel<<<x.size(0), 64>>>(x.data_ptr<float>(), y.data_ptr<float>(), (int)x.size(1));
  return y;
}
Tensor mutates_input(Tensor x) { Tensor y = right(x); x.data_ptr<float>()[3] += 1.f; return y; }
Tensor returns_input(Tensor x) { Tensor y = right(x); x.copy_(y); return x; }
Tensor writes_beside(Tensor x) { Tensor y = right(x); x.data_ptr<float>()[x.numel()] = 1.f; return y; }
Tensor wrong_shape(Tensor x) { return right(x).unsqueeze(0); }
Tensor wrong_dtype(Tensor x) { return right(x).to(torch::kDouble); }
Tensor overlapping(Tensor x) { return right(x).narrow(1, 0, 1).expand_as(x); }
Tensor swallows_nan(Tensor x) { return right(x.nan_to_num(0.0)); }
Tensor raises(Tensor x) { TORCH_CHECK(false, "only for other shapes"); return x; }
Tensor crashes(Tensor x) { *reinterpret_cast<volatile int*>(8) = 1; return x; }
Tensor aborts(Tensor x) { std::abort(); return x; }
Tensor exits(Tensor x) { std::_Exit(0); return x; }
Tensor hangs(Tensor x) { for (volatile bool go = true; go;) {} return x; }
Tensor hoards(Tensor x) {
  static std::vector<char*> kept;
  for (int i = 0; i < 160; ++i) { kept.push_back(static_cast<char*>(std::malloc(64 << 20))); std::memset(kept.back(), 1, 64 << 20); }
  return right(x);
}
Tensor late_thread(Tensor x) {
  static int calls = 0;
  if (++calls > 4) std::thread([] { for (;;) usleep(100000); }).detach();
  return right(x);
}
Tensor escapes(Tensor x) {
  // What the sandbox must refuse: a wrong answer shows which door was open.
  Tensor y = right(x);
  if (fork() >= 0) y.data_ptr<float>()[0] = 7.f;
  if (FILE* file = std::fopen("/tmp/hiera-escaped", "w")) { std::fclose(file); y.data_ptr<float>()[0] = 8.f; }
  if (FILE* file = std::fopen("groundtruth.py", "r")) { std::fclose(file); y.data_ptr<float>()[0] = 9.f; }
  return y;
}
