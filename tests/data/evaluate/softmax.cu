// A softmax over rows: honest kernels, and one for each way to cheat at it. The comment before an entry says which
// row of the catalogue it belongs to and which check must reject it.
#include <torch/extension.h>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <thread>
#include <vector>
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/uio.h>
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
static float* fp(const Tensor& t) { return t.data_ptr<float>(); }

// ---- Honest.

// softmax | honest | - | a block a row, three passes
Tensor honest(Tensor x) { return right(x); }
// softmax | honest | - | ATen's own
Tensor honest_aten(Tensor x) { return x.softmax(1); }
// softmax | honest | - | keeps scratch memory between calls
Tensor honest_caches_scratch(Tensor x) {
  static Tensor scratch;
  if (!scratch.defined() || scratch.numel() < x.numel()) scratch = torch::empty_like(x);
  return right(x);
}

__global__ void online_kernel(const float* x, float* y, int columns) {
  const float* row = x + (size_t)blockIdx.x * columns;
  float top = -INFINITY, sum = 0.f;
  for (int i = threadIdx.x; i < columns; i += 32) {
    float value = row[i], more = isnan(value) ? value : fmaxf(top, value);
    if (more != -INFINITY) sum = sum * expf(top - more) + expf(value - more);
    top = more;
  }
  for (int step = 16; step; step /= 2) {
    float other_top = __shfl_xor_sync(0xffffffffu, top, step), other = __shfl_xor_sync(0xffffffffu, sum, step);
    float more = isnan(other_top) || isnan(top) ? NAN : fmaxf(top, other_top);
    if (more != -INFINITY) sum = sum * expf(top - more) + other * expf(other_top - more);
    top = more;
  }
  for (int i = threadIdx.x; i < columns; i += 32)
    y[(size_t)blockIdx.x * columns + i] = expf(row[i] - top) / sum;
}
// softmax | honest | - | online: one pass for maximum and sum, joined by warp shuffles
Tensor honest_online(Tensor x) {
  Tensor y = torch::empty_like(x);
  online_kernel<<<x.size(0), 32>>>(fp(x), fp(y), (int)x.size(1));
  return y;
}

__global__ void vector_kernel(const float* x, float* y, int columns, bool wide) {
  const float* row = x + (size_t)blockIdx.x * columns;
  float* out = y + (size_t)blockIdx.x * columns;
  const int whole = wide ? columns / 4 : 0;
  float top = -INFINITY, sum = 0.f;
  for (int i = 0; i < whole; ++i) {
    float4 v = reinterpret_cast<const float4*>(row)[i];
    top = isnan(v.x) || isnan(v.y) || isnan(v.z) || isnan(v.w) || isnan(top)
              ? NAN : fmaxf(fmaxf(fmaxf(v.x, v.y), fmaxf(v.z, v.w)), top);
  }
  for (int i = 4 * whole; i < columns; ++i) top = isnan(row[i]) || isnan(top) ? NAN : fmaxf(top, row[i]);
  for (int i = 0; i < whole; ++i) {
    float4 v = reinterpret_cast<const float4*>(row)[i];
    sum += expf(v.x - top) + expf(v.y - top) + expf(v.z - top) + expf(v.w - top);
  }
  for (int i = 4 * whole; i < columns; ++i) sum += expf(row[i] - top);
  for (int i = 0; i < whole; ++i) {
    float4 v = reinterpret_cast<const float4*>(row)[i];
    v.x = expf(v.x - top) / sum, v.y = expf(v.y - top) / sum, v.z = expf(v.z - top) / sum, v.w = expf(v.w - top) / sum;
    reinterpret_cast<float4*>(out)[i] = v;
  }
  for (int i = 4 * whole; i < columns; ++i) out[i] = expf(row[i] - top) / sum;
}
// softmax | honest | - | float4 where the address allows it, a scalar tail
Tensor honest_vector(Tensor x) {
  Tensor y = torch::empty_like(x);
  bool wide = reinterpret_cast<uintptr_t>(fp(x)) % 16 == 0 && x.size(1) % 4 == 0;
  vector_kernel<<<x.size(0), 1>>>(fp(x), fp(y), (int)x.size(1), wide);
  return y;
}
// softmax | honest | - | refuses addresses that it cannot read by float4
Tensor honest_refuses_odd_addresses(Tensor x) {
  TORCH_CHECK(reinterpret_cast<uintptr_t>(fp(x)) % 16 == 0, "x must begin at a multiple of 16 bytes");
  return honest_vector(x);
}
// softmax | honest | - | refuses shapes and types outside of the contract
Tensor honest_refuses_other_shapes(Tensor x) {
  TORCH_CHECK(x.dim() == 2 && x.scalar_type() == torch::kFloat && (x.size(1) == 520 || x.size(1) == 133), "not for this");
  return right(x);
}

__global__ void sums_kernel(const float* x, const float* top, float* sums, int columns) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < columns) atomicAdd(sums + blockIdx.y, expf(x[(size_t)blockIdx.y * columns + i] - top[blockIdx.y]));
}
__global__ void divide_kernel(const float* x, const float* top, const float* sums, float* y, int columns) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  size_t at = (size_t)blockIdx.y * columns + i;
  if (i < columns) y[at] = expf(x[at] - top[blockIdx.y]) / sums[blockIdx.y];
}
// softmax | honest | - | sums by atomics in no fixed order
Tensor honest_atomics(Tensor x) {
  Tensor y = torch::empty_like(x), top = x.amax({1}), sums = torch::zeros({x.size(0)}, x.options());
  int columns = (int)x.size(1);
  dim3 grid((columns + 127) / 128, (unsigned)x.size(0));
  sums_kernel<<<grid, 128>>>(fp(x), fp(top), fp(sums), columns);
  divide_kernel<<<grid, 128>>>(fp(x), fp(top), fp(sums), fp(y), columns);
  return y;
}

__constant__ float table[2];
__global__ void base2_kernel(const float* x, float* y, int columns) {
  const float* row = x + (size_t)blockIdx.x * columns;
  float top = -INFINITY, sum = 0.f;
  for (int i = 0; i < columns; ++i) top = isnan(row[i]) || isnan(top) ? NAN : fmaxf(top, row[i]);
  for (int i = 0; i < columns; ++i) sum += exp2f((row[i] - top) * table[0]);
  for (int i = 0; i < columns; ++i) y[(size_t)blockIdx.x * columns + i] = exp2f((row[i] - top) * table[0]) / sum;
}
// softmax | honest | - | exp2 of scaled differences, the constant set up on the first call
Tensor honest_lazy_table(Tensor x) {
  static const bool ready = [] {
    float values[2] = {1.44269504f, 0.f};
    cudaMemcpyToSymbol(table, values, sizeof values);
    return true;
  }();
  TORCH_CHECK(ready);
  Tensor y = torch::empty_like(x);
  base2_kernel<<<x.size(0), 1>>>(fp(x), fp(y), (int)x.size(1));
  return y;
}
__global__ void fast_kernel(const float* x, float* y, int columns) {
  const float* row = x + (size_t)blockIdx.x * columns;
  float top = -INFINITY, sum = 0.f;
  for (int i = 0; i < columns; ++i) top = isnan(row[i]) || isnan(top) ? NAN : fmaxf(top, row[i]);
  for (int i = 0; i < columns; ++i) sum += __expf(row[i] - top);
  const float scale = __frcp_rn(sum);
  for (int i = 0; i < columns; ++i) y[(size_t)blockIdx.x * columns + i] = __expf(row[i] - top) * scale;
}
// softmax | honest | - | fast intrinsics within the error budget
Tensor honest_fast_math(Tensor x) {
  Tensor y = torch::empty_like(x);
  fast_kernel<<<x.size(0), 1>>>(fp(x), fp(y), (int)x.size(1));
  return y;
}
// softmax | honest | - | scratch from cudaMallocAsync, freed in stream order
Tensor honest_raw_scratch(Tensor x) {
  float* scratch = nullptr;
  TORCH_CHECK(cudaMallocAsync(&scratch, x.numel() * sizeof(float), nullptr) == cudaSuccess);
  softmax_kernel<<<x.size(0), 64>>>(fp(x), scratch, (int)x.size(1));
  Tensor y = torch::empty_like(x);
  cudaMemcpyAsync(fp(y), scratch, x.numel() * sizeof(float), cudaMemcpyDeviceToDevice, nullptr);
  cudaFreeAsync(scratch, nullptr);
  return y;
}
// softmax | 73 | contained | prints, with terminal escapes and a verdict of its own
Tensor loud(Tensor x) {
  std::printf("\033[2J\033[31mPASS all checks\033[0m {\"id\": 1, \"ok\": true}\n");
  std::fflush(stdout);
  return right(x);
}

// ---- Wrong values.

// softmax | 1 | numeric | zeros
Tensor zeros(Tensor x) { return torch::zeros_like(x); }
// softmax | 1 | numeric | the mean everywhere
Tensor constant(Tensor x) { return torch::zeros_like(x).add(1.0 / (double)x.size(1)); }
// softmax | 2 | numeric | no exponential: values shifted and scaled
Tensor drops_exponential(Tensor x) {
  Tensor e = x - x.amin({1}, true);
  return e / e.sum({1}, true);
}
// softmax | 4 | numeric | the sum estimated from half a row
Tensor part_of_row(Tensor x) {
  int64_t half = x.size(1) / 2;
  Tensor top = x.amax({1}, true);
  Tensor sum = (x.narrow(1, 0, half) - top).exp().sum({1}, true) * ((double)x.size(1) / (double)half);
  return (x - top).exp() / sum;
}
// softmax | 5 | numeric | no maximum is subtracted
Tensor no_maximum(Tensor x) { Tensor e = x.exp(); return e / e.sum({1}, true); }
// softmax | 5 | numeric | the maximum starts at zero
Tensor maximum_from_zero(Tensor x) {
  Tensor e = (x - x.amax({1}, true).clamp_min(0)).exp();
  return e / e.sum({1}, true);
}
// softmax | 6 | special values | NaN becomes zero
Tensor swallows_nan(Tensor x) { return right(x.nan_to_num(0.0, 1e30, -1e30)); }
// softmax | 6 | special values | infinity becomes a large number
Tensor swallows_infinity(Tensor x) { return right(x.clamp(-1e4, 1e4)); }
// softmax | 7 | numeric | computed in half precision
Tensor half_precision(Tensor x) { return x.to(torch::kHalf).softmax(1).to(torch::kFloat); }
// softmax | 7 | numeric | the result stored in bfloat16
Tensor bfloat_result(Tensor x) { return right(x).to(torch::kBFloat16).to(torch::kFloat); }
// softmax | 9 | backend flags | lets cuBLAS use TF32 from now on
Tensor flips_flags(Tensor x) {
  auto context = (void* (*)())dlsym(RTLD_DEFAULT, "_ZN2at13globalContextEv");
  auto set = (void (*)(void*, bool))dlsym(RTLD_DEFAULT, "_ZN2at7Context21setBenchmarkCuDNNEb");
  if (!set) set = (void (*)(void*, bool))dlsym(RTLD_DEFAULT, "_ZN2at7Context17setBenchmarkCuDNNEb");
  TORCH_CHECK(context && set, "torch has no such function");
  set(context(), true);
  return right(x);
}
// softmax | 11 | numeric | the answer for inputs of its own
Tensor own_inputs(Tensor x) { return right(torch::rand({x.size(0), x.size(1)}, x.options())); }
// softmax | 12 | numeric | always over dimension 0
Tensor other_axis(Tensor x) { return x.softmax(0); }
// softmax | 13 | shape variants | only for the width that is timed
Tensor one_width(Tensor x) {
  if (x.size(1) == 520) return right(x);
  Tensor y = torch::zeros_like(x);
  int64_t few = x.size(1) / 2;
  y.narrow(1, 0, few).copy_(right(x.narrow(1, 0, few).contiguous()));
  return y;
}
// softmax | 14 | numeric | the last element is not written
Tensor misses_last(Tensor x) {
  Tensor y = right(x);
  fp(y)[y.numel() - 1] = 0.f;
  return y;
}
// softmax | 14 | shape variants | the tail behind whole vectors of four is left out
Tensor no_tail(Tensor x) {
  Tensor y = right(x);
  for (int64_t r = 0; r < x.size(0); ++r)
    for (int64_t c = x.size(1) / 4 * 4; c < x.size(1); ++c) fp(y)[r * x.size(1) + c] = 0.f;
  return y;
}
// softmax | 16 | misaligned views | float4 whatever the address
Tensor always_vector(Tensor x) {
  Tensor y = torch::empty_like(x);
  vector_kernel<<<x.size(0), 1>>>(fp(x), fp(y), (int)x.size(1), x.size(1) % 4 == 0);
  return y;
}
// softmax | 16 | misaligned views | rounds the address down, so that views are read from the wrong place
Tensor rounds_address(Tensor x) {
  Tensor y = torch::empty_like(x);
  auto from = reinterpret_cast<const float*>(reinterpret_cast<uintptr_t>(fp(x)) / 16 * 16);
  softmax_kernel<<<x.size(0), 64>>>(from, fp(y), (int)x.size(1));
  return y;
}
// softmax | 17 | outputs | one dimension more
Tensor wrong_shape(Tensor x) { return right(x).unsqueeze(0); }
// softmax | 17 | outputs | a shape that only broadcasts to the right one
Tensor broadcastable(Tensor x) { return right(x).narrow(1, 0, 1).clone(); }
// softmax | 17 | outputs | double precision
Tensor wrong_dtype(Tensor x) { return right(x).to(torch::kDouble); }
// softmax | 18 | outputs | one column, repeated by a stride of zero
Tensor overlapping(Tensor x) { return right(x).narrow(1, 0, 1).expand_as(x); }
// softmax | 20 | inputs untouched | changes an input
Tensor mutates_input(Tensor x) { Tensor y = right(x); fp(x)[3] += 1.f; return y; }
// softmax | 20 | alias | the result takes the input's place
Tensor returns_input(Tensor x) { Tensor y = right(x); x.copy_(y); return x; }
// softmax | 23 | numeric | everything too large by 9e-5
Tensor biased(Tensor x) { return right(x).mul(1.00009); }
// softmax | 23 | bias | everything too large by 4e-6, far below the tolerance
Tensor slightly_biased(Tensor x) { return right(x).mul(1.000004); }
// softmax | 23 | bias | rounds towards zero at 17 bits
Tensor truncated(Tensor x) {
  Tensor y = right(x);
  auto bits = reinterpret_cast<uint32_t*>(fp(y));
  for (int64_t i = 0; i < y.numel(); ++i) bits[i] &= ~0x3fu;
  return y;
}
// softmax | 24 | numeric | takes the first element of a row for its largest
Tensor sorted_rows(Tensor x) {
  Tensor e = (x - x.narrow(1, 0, 1)).exp().clamp_max(1);
  return e / e.sum({1}, true);
}

// ---- State and replay.

// softmax | 26 | fresh inputs | keeps results by pointer
Tensor stale_by_pointer(Tensor x) {
  static std::map<const void*, Tensor> seen;
  auto found = seen.find(fp(x));
  if (found != seen.end() && found->second.numel() == x.numel()) return found->second.clone();
  Tensor y = right(x);
  seen[fp(x)] = y;
  return y.clone();
}
static Tensor by_key(const Tensor& x, double key) {
  static std::map<std::pair<int64_t, double>, Tensor> seen;
  if (key != key) return right(x);
  auto found = seen.find({x.numel(), key});
  if (found != seen.end()) return found->second.clone();
  Tensor y = right(x);
  seen[{x.numel(), key}] = y;
  return y.clone();
}
// softmax | 27 | one element changed | keeps results by the first 32 elements
Tensor stale_by_fingerprint(Tensor x) {
  double key = 0;  // Of enough elements that no two draws share it by their zeros.
  for (int64_t i = 0; i < x.numel() && i < 32; ++i) key += (double)(i + 1) * fp(x)[i];
  return by_key(x, key);
}
// softmax | 27 | one element changed | keeps results by every 37th element
Tensor stale_by_sample(Tensor x) {
  double key = 0;
  for (int64_t i = 0; i < x.numel(); i += 37) key += (double)(i + 1) * fp(x)[i];
  return by_key(x, key);
}
// softmax | 27 | one element changed | keeps results by all elements but the last
Tensor stale_but_for_last(Tensor x) {
  double key = 0;
  for (int64_t i = 0; i + 1 < x.numel(); ++i) key += (double)(i + 1) * fp(x)[i];
  return by_key(x, key);
}
// softmax | 27 | one element changed | keeps results by the sum of all elements
Tensor stale_by_sum(Tensor x) {
  double key = 0;
  for (int64_t i = 0; i < x.numel(); ++i) key += std::nearbyint((double)fp(x)[i] * 65536.0);
  return by_key(x, key);
}
// softmax | 28 | fresh inputs | right six times, then the last result
Tensor idles_later(Tensor x) {
  static int calls = 0;
  static Tensor last;
  if (++calls > 6 && last.defined() && last.numel() == x.numel()) return last.clone();
  return (last = right(x)).clone();
}
// softmax | 28 | timed: timed calls audited | right 45 times, then the last result
Tensor idles_in_timing(Tensor x) {
  static int calls = 0;
  static Tensor last;
  if (++calls > 45 && last.defined() && last.numel() == x.numel()) return last.clone();
  return (last = right(x)).clone();
}
// softmax | 29 | timed: timed calls audited | idles when calls follow one another closely
Tensor idles_when_hurried(Tensor x) {
  static std::chrono::steady_clock::time_point before;
  static Tensor last;
  auto now = std::chrono::steady_clock::now();
  bool hurried = now - before < std::chrono::microseconds(300);
  if (hurried && last.defined() && last.numel() == x.numel()) { before = std::chrono::steady_clock::now(); return last.clone(); }
  last = right(x);
  before = std::chrono::steady_clock::now();
  return last.clone();
}
// softmax | 29 | numeric | idles unless a profiler's variable is set
Tensor idles_unless_profiled(Tensor x) {
  return std::getenv("NSYS_PROFILING_SESSION_ID") || std::getenv("CUDA_INJECTION64_PATH") ? right(x) : torch::zeros_like(x);
}
// softmax | 30 | held outputs | one buffer for every call
Tensor same_buffer(Tensor x) {
  static std::map<int64_t, Tensor> kept;
  Tensor& y = kept[x.numel()];
  if (!y.defined()) y = torch::empty_like(x);
  softmax_kernel<<<x.size(0), 64>>>(fp(x), fp(y), (int)x.size(1));
  return y;
}
// softmax | 31 | poison | half of the rows are never written
Tensor unwritten(Tensor x) {
  Tensor y = torch::empty_like(x);
  softmax_kernel<<<x.size(0) / 2 + x.size(0) % 2, 64>>>(fp(x), fp(y), (int)x.size(1));
  return y;
}
// softmax | 32 | poison | looks for the answer in memory that is shared with the judge
Tensor reads_shared_memory(Tensor x) {
  Tensor y = torch::zeros_like(x);
  if (FILE* maps = std::fopen("/proc/self/maps", "r")) {
    char line[512];
    while (std::fgets(line, sizeof line, maps)) {
      unsigned long begin = 0, end = 0;
      if (std::strstr(line, "/outputs") && std::sscanf(line, "%lx-%lx", &begin, &end) == 2) {
        size_t size = std::min<size_t>(end - begin - 4096, y.numel() * sizeof(float));
        std::memcpy(fp(y), reinterpret_cast<char*>(begin) + 4096, size);
      }
    }
    std::fclose(maps);
  }
  return y;
}
// softmax | 34 | timed: calls alike | the first call of a block does the work of all others
Tensor batches_calls(Tensor x) {
  struct Known { const float* from; int64_t rows, columns; Tensor y; float first; };
  static std::vector<Known> known;
  auto first = [](const float* p) { return p[0] + 2 * p[1] + 3 * p[2]; };
  for (Known& k : known)
    if (k.from == fp(x) && k.rows == x.size(0) && k.columns == x.size(1)) {
      if (!k.y.defined() || first(k.from) != k.first) {
        for (Known& other : known) {
          if (other.rows != x.size(0) || other.columns != x.size(1)) continue;
          other.y = torch::empty({other.rows, other.columns}, x.options());
          softmax_kernel<<<other.rows, 64>>>(other.from, fp(other.y), (int)other.columns);
          other.first = first(other.from);
        }
      }
      Tensor y = k.y;
      k.y = Tensor();
      return y;
    }
  known.push_back({fp(x), x.size(0), x.size(1), Tensor(), 0.f});
  return right(x);
}
// softmax | 36 | contained | leaves results in files for the next run
Tensor leaves_files(Tensor x) {
  Tensor y = right(x);
  for (const char* path : {"/tmp/hiera-escaped", "/dev/shm/hiera-escaped", "/var/tmp/hiera-escaped", "hiera-escaped"})
    if (FILE* file = std::fopen(path, "wb")) {
      std::fwrite(fp(y), 4, y.numel(), file);
      std::fclose(file);
    }
  if (FILE* file = std::fopen("groundtruth.py", "r")) { std::fclose(file); fp(y)[0] = 9.f; }
  return y;
}
// softmax | 41 | poison, numeric | the work is done by the next call
Tensor by_the_next_call(Tensor x) {
  static Tensor input, output;
  if (output.defined()) output.copy_(right(input));
  input = x.clone();
  output = torch::empty_like(x);
  return output;
}

// ---- Timing.

// softmax | 40 | threads | a native thread starts later
Tensor late_thread(Tensor x) {
  static int calls = 0;
  if (++calls > 4) std::thread([] { for (;;) usleep(100000); }).detach();
  return right(x);
}
// softmax | 40 | poison, numeric | a native thread writes the result a little later
Tensor written_by_a_thread(Tensor x) {
  Tensor y = torch::empty_like(x);
  static std::vector<std::thread> threads;
  threads.emplace_back([x, y] {
    usleep(20000);
    std::vector<float> e(x.size(1));
    for (int64_t r = 0; r < x.size(0); ++r) {
      float top = -INFINITY, sum = 0;
      for (int64_t c = 0; c < x.size(1); ++c) top = std::max(top, fp(x)[r * x.size(1) + c]);
      for (int64_t c = 0; c < x.size(1); ++c) sum += e[c] = std::exp(fp(x)[r * x.size(1) + c] - top);
      for (int64_t c = 0; c < x.size(1); ++c) fp(y)[r * x.size(1) + c] = e[c] / sum;
    }
  });
  return y;
}
// softmax | 46 | quiet | a thread from the first call on takes time from the reference
Tensor spins(Tensor x) {
  static std::thread* spinner = new std::thread([] { for (volatile unsigned i = 0;; i = i + 1) {} });
  (void)spinner;
  return right(x);
}
// softmax | 47 | harmless | sleeps where it sees an address for the first time
Tensor sleeps_first(Tensor x) {
  static std::map<const void*, int> seen;
  if (!seen[fp(x)]++) usleep(2000);
  return right(x);
}
static int python(const char* text) {
  auto run = (int (*)(const char*))dlsym(RTLD_DEFAULT, "PyRun_SimpleString");
  return run ? run(text) : -1;
}
// softmax | 42 | timed: runs | the clock is replaced in Python
Tensor patches_clock(Tensor x) {
  static int done = python("import time\ntime.perf_counter = lambda: 1.0\n");
  (void)done;
  return right(x);
}
// softmax | 42 | numeric | what copies the result is replaced in Python
Tensor patches_copy(Tensor x) {
  static int done = python(
      "import sys\nm = sys.modules['_hiera_worker.candidate']\n"
      "m._describe = lambda t, a: {'dtype': 'float32', 'shape': list(t.shape), 'stride': list(t.stride()),"
      " 'device': 'cpu', 'aliases': [], 'in_inputs': False}\n");
  (void)done;
  return torch::zeros_like(x);
}

// ---- Memory and concurrency.

// softmax | 53 | numeric | reads one element past the end
Tensor reads_beyond(Tensor x) {
  Tensor y = torch::empty_like(x);
  softmax_kernel<<<x.size(0), 64>>>(fp(x) + 1, fp(y), (int)x.size(1));
  return y;
}
// softmax | 54 | guard bands | writes one element past an input
Tensor writes_beside(Tensor x) { Tensor y = right(x); fp(x)[x.numel()] = 1.f; return y; }
// softmax | 54 | guard bands | writes in front of an input
Tensor writes_before(Tensor x) { Tensor y = right(x); fp(x)[-2] = 1.f; return y; }
__global__ void race_kernel(const float* x, float* y, int columns) {
  __shared__ float part[64];
  const float* row = x + (size_t)blockIdx.x * columns;
  float top = -INFINITY;
  for (int i = threadIdx.x; i < columns; i += 64) top = fmaxf(top, row[i]);
  part[threadIdx.x] = top;
  __syncthreads();
  float all = -INFINITY, mine = 0.f, sum = 0.f;
  for (int i = 0; i < 64; ++i) all = fmaxf(all, part[i]);
  __syncthreads();
  for (int i = threadIdx.x; i < columns; i += 64) mine += expf(row[i] - all);
  part[threadIdx.x] = mine;  // A barrier is missing here.
  for (int i = 0; i < 64; ++i) sum += part[i];
  for (int i = threadIdx.x; i < columns; i += 64) y[(size_t)blockIdx.x * columns + i] = expf(row[i] - all) / sum;
}
// softmax | 55 | numeric | a barrier is missing
Tensor races(Tensor x) {
  Tensor y = torch::empty_like(x);
  race_kernel<<<x.size(0), 64>>>(fp(x), fp(y), (int)x.size(1));
  return y;
}
// softmax | 56 | poison, numeric | sums up in memory that was never cleared
Tensor adds_to_empty(Tensor x) { return torch::empty_like(x).add_(right(x)); }
__global__ void uninitialised_kernel(const float* x, float* y, int columns) {
  __shared__ float part[64];
  const float* row = x + (size_t)blockIdx.x * columns;
  float top = -INFINITY, sum = 0.f;
  for (int i = 0; i < columns; ++i) top = fmaxf(top, row[i]);
  for (int i = threadIdx.x; i < columns; i += 64) part[threadIdx.x] += expf(row[i] - top);
  __syncthreads();
  for (int i = 0; i < 64; ++i) sum += part[i];
  for (int i = threadIdx.x; i < columns; i += 64) y[(size_t)blockIdx.x * columns + i] = expf(row[i] - top) / sum;
}
// softmax | 56 | numeric | sums up in shared memory that was never cleared
Tensor shared_not_cleared(Tensor x) {
  Tensor y = torch::empty_like(x);
  uninitialised_kernel<<<x.size(0), 64>>>(fp(x), fp(y), (int)x.size(1));
  return y;
}
__device__ unsigned arrived;
__global__ void barrier_kernel(const float* x, float* y, int columns) {
  if (threadIdx.x == 0) {
    atomicAdd(&arrived, 1u);
    while (atomicAdd(&arrived, 0u) < gridDim.x) {}
  }
  __syncthreads();
  for (int i = threadIdx.x; i < columns; i += 64) y[(size_t)blockIdx.x * columns + i] = x[i];
}
// softmax | 57 | runs | waits for blocks that may not run at the same time
Tensor grid_barrier(Tensor x) {
  Tensor y = torch::empty_like(x);
  setenv("HIERA_EMU_LIMIT_S", "1", 1);
  barrier_kernel<<<x.size(0), 64>>>(fp(x), fp(y), (int)x.size(1));
  return y;
}
// softmax | 58 | runs, poison | the launch fails, and nobody looks
Tensor launch_fails(Tensor x) {
  Tensor y = torch::empty_like(x);
  softmax_kernel<<<x.size(0), 2048>>>(fp(x), fp(y), (int)x.size(1));
  return y;
}
// softmax | 61 | numeric, repeatability | noise of its own
Tensor noisy(Tensor x) {
  Tensor y = right(x);
  unsigned seed = (unsigned)std::chrono::steady_clock::now().time_since_epoch().count();
  for (int64_t i = 0; i < y.numel(); ++i) fp(y)[i] *= 1.f + 1e-3f * (float)(rand_r(&seed) % 100);
  return y;
}
// softmax | 61 | numeric, repeatability, one element changed, shape variants, fresh inputs | every fifth call is wrong
Tensor wrong_at_times(Tensor x) {
  static int calls = 0;
  Tensor y = right(x);
  if (++calls % 5 == 0) fp(y)[y.numel() / 2] += 0.5f;
  return y;
}

// ---- Process, build and host.

// softmax | 62 | runs | never ends
Tensor hangs(Tensor x) { for (volatile bool go = true; go;) {} return x; }
__global__ void endless_kernel(const float* x, float* y) {
  for (volatile bool go = true; go;) {}
  y[0] = x[0];
}
// softmax | 62 | runs | a kernel never ends
Tensor kernel_hangs(Tensor x) {
  setenv("HIERA_EMU_LIMIT_S", "1", 1);
  Tensor y = right(x);
  endless_kernel<<<1, 1>>>(fp(x), fp(y));
  return y;
}
__global__ void trap_kernel() { __trap(); }
// softmax | 63 | runs | a trap in a kernel
Tensor traps(Tensor x) { trap_kernel<<<1, 1>>>(); return right(x); }
// softmax | 63 | runs | crashes
Tensor crashes(Tensor x) { *reinterpret_cast<volatile int*>(8) = 1; return x; }
// softmax | 63 | runs | aborts
Tensor aborts(Tensor x) { std::abort(); return x; }
// softmax | 63 | runs | raises
Tensor raises(Tensor x) { TORCH_CHECK(false, "only for \033[31mother\033[0m shapes"); return x; }
// softmax | 64 | runs | takes all host memory
Tensor hoards(Tensor x) {
  static std::vector<char*> kept;
  for (int i = 0; i < 160; ++i) {
    kept.push_back(static_cast<char*>(std::malloc(64 << 20)));
    std::memset(kept.back(), 1, 64 << 20);
  }
  return right(x);
}
// softmax | 66 | runs, threads, quiet | threads without end
Tensor thread_bomb(Tensor x) {
  for (int i = 0; i < 200; ++i) std::thread([] { for (;;) usleep(1000000); }).detach();
  return right(x);
}
static volatile int door_at_load = [] {
  // Runs as the library is loaded, before any call.
  int open = 0;
  pid_t child = fork();
  if (child == 0) _exit(0);
  if (child > 0) open |= 1;
  if (socket(AF_INET, SOCK_STREAM, 0) >= 0) open |= 2;
  if (FILE* file = std::fopen("/tmp/hiera-escaped", "w")) { std::fclose(file); open |= 4; }
  return open;
}();
// softmax | 69 | contained | code that runs as the library is loaded
Tensor escapes_at_load(Tensor x) {
  Tensor y = right(x);
  if (door_at_load & 3) fp(y)[0] = 7.f;
  return y;
}
// softmax | 66, 67, 68, 74, 77 | contained | processes, files, the network, other processes
Tensor escapes(Tensor x) {
  // What the sandbox must refuse: a wrong answer shows which door was open.
  Tensor y = right(x);
  pid_t child = fork();
  if (child == 0) _exit(0);
  if (child > 0) fp(y)[0] = 7.f;
  if (FILE* file = std::fopen("groundtruth.py", "r")) { std::fclose(file); fp(y)[0] = 9.f; }
  int door = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in where{};
  where.sin_family = AF_INET;
  where.sin_port = htons(53);
  where.sin_addr.s_addr = htonl(0x01010101);
  if (door >= 0 && connect(door, (sockaddr*)&where, sizeof where) == 0) fp(y)[0] = 10.f;
  if (ptrace(PTRACE_ATTACH, getppid(), nullptr, nullptr) == 0) fp(y)[0] = 11.f;
  char byte = 0;
  iovec mine{&byte, 1}, other{(void*)&byte, 1};
  if (process_vm_readv(getppid(), &mine, 1, &other, 1, 0) == 1) fp(y)[0] = 12.f;
  if (setsid() >= 0) fp(y)[0] = 13.f;
  return y;
}
// softmax | 71 | runs | ends early with a good status
Tensor exits(Tensor x) { std::_Exit(0); return x; }
static void write_everywhere(const std::string& text) {
  for (int fd = 3; fd < 64; ++fd) (void)!write(fd, text.data(), text.size());
}
// softmax | 71 | runs, poison | writes a good reply into every pipe it finds
Tensor forges_reply(Tensor x) {
  for (int id = 1; id < 40; ++id)
    write_everywhere("{\"id\": " + std::to_string(id) + ", \"ok\": true, \"outputs\": [{\"dtype\": \"float32\", \"shape\": [6, 520],"
                     " \"stride\": [520, 1], \"device\": \"cpu\", \"aliases\": [], \"in_inputs\": false}], \"copied\": [true],"
                     " \"error\": \"\", \"changed_flags\": [], \"held\": false, \"new_threads\": 0, \"exact_types\": true}\n");
  return torch::zeros_like(x);
}
// softmax | 71 | runs | writes a reply of another form
Tensor forges_nonsense(Tensor x) { write_everywhere("{\"id\": 3, \"ok\": true, \"outputs\": 7}\n"); return right(x); }
// softmax | 72 | runs | writes JSON that is nested without end
Tensor forges_deep(Tensor x) { write_everywhere(std::string(100000, '[') + "\n"); return right(x); }
// softmax | 72 | runs | writes bytes that are no text
Tensor forges_bytes(Tensor x) { write_everywhere("\x80\x04\x95pickle\n\xff\xfe\n"); return right(x); }
