// Rows again, with other results: the largest elements and their places, a loss over classes, running sums, rows of a
// table.
#include <torch/extension.h>
#include <cmath>
#include <map>

using torch::Tensor;
using Two = std::tuple<Tensor, Tensor>;

static float* fp(const Tensor& t) { return t.data_ptr<float>(); }

// ---- The four largest of a row, and where the largest is.

static Tensor largest(const Tensor& x) { return std::get<0>(x.topk(4, 1)); }
// pick | honest | - | ATen's own
Two honest_pick(Tensor x) { return {largest(x), x.argmax(1)}; }
// pick | honest | - | sorts whole rows
Two honest_sorts(Tensor x) {
  auto sorted = at::sort(x, 1, true);
  return {std::get<0>(sorted).narrow(1, 0, 4).contiguous(), x.argmax(1)};
}
__global__ void place_kernel(const float* x, int64_t* place, int columns) {
  __shared__ float values[32];
  __shared__ int places[32];
  const float* row = x + (size_t)blockIdx.x * columns;
  float best = -INFINITY;
  int where = threadIdx.x < columns ? threadIdx.x : 0;
  bool first = true;
  for (int c = threadIdx.x; c < columns; c += 32)
    if (first || (!isnan(best) && (isnan(row[c]) || row[c] > best))) best = row[c], where = c, first = false;
  values[threadIdx.x] = best, places[threadIdx.x] = first ? -1 : where;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int i = 1; i < 32; ++i) {
      if (places[i] < 0) continue;
      bool better = isnan(values[i]) ? !isnan(best) || places[i] < where
                                     : !isnan(best) && (values[i] > best || (values[i] == best && places[i] < where));
      if (better) best = values[i], where = places[i];
    }
    place[blockIdx.x] = where;
  }
}
// pick | honest | - | joins the places of 32 threads, ties and NaN as torch has them
Two honest_joined_places(Tensor x) {
  Tensor place = torch::empty({x.size(0)}, x.options().dtype(torch::kLong));
  place_kernel<<<x.size(0), 32>>>(fp(x), place.data_ptr<int64_t>(), (int)x.size(1));
  return {largest(x), place};
}
// pick | 6 | special values | passes over NaN
Two without_nan(Tensor x) { return {largest(x), x.nan_to_num(-INFINITY).argmax(1)}; }
// pick | 61 | numeric, special values | among equals the last
Two last_of_equals(Tensor x) { return {largest(x), (x.size(1) - 1) - x.flip({1}).argmax(1)}; }
// pick | 17 | outputs | places as 32-bit integers
Two narrow_places(Tensor x) { return {largest(x), x.argmax(1).to(torch::kInt)}; }
// pick | 22 | numeric | places through half precision
Two places_in_half(Tensor x) { return {largest(x), x.argmax(1).to(torch::kBFloat16).to(torch::kLong)}; }
// pick | 21 | numeric | the places of another row
Two other_rows(Tensor x) { return {largest(x), x.argmax(1).roll(1)}; }
// pick | 4 | numeric | looks at half of a row
Two half_of_row(Tensor x) {
  Tensor part = x.narrow(1, 0, (x.size(1) + 1) / 2);
  return {largest(part), part.argmax(1)};
}
// pick | 5 | numeric | the largest starts at zero
Two from_zero(Tensor x) { return {largest(x).clamp_min(0), x.argmax(1)}; }
// pick | 7 | numeric | compares in half precision
Two compares_in_half(Tensor x) { return {largest(x), x.to(torch::kHalf).argmax(1)}; }

// ---- Cross-entropy.

// loss | honest | - | ATen's own
Tensor honest_loss(Tensor x, Tensor target) { return at::cross_entropy_loss(x, target); }
__global__ void loss_kernel(const float* x, const int64_t* target, float* loss, int rows, int classes) {
  const float* row = x + (size_t)blockIdx.x * classes;
  float top = -INFINITY, sum = 0.f;
  for (int c = 0; c < classes; ++c) top = isnan(row[c]) || isnan(top) ? NAN : fmaxf(top, row[c]);
  for (int c = 0; c < classes; ++c) sum += expf(row[c] - top);
  atomicAdd(loss, (logf(sum) + top - row[target[blockIdx.x]]) / (float)rows);
}
// loss | honest | - | a block a row, added up by atomics
Tensor honest_atomic_loss(Tensor x, Tensor target) {
  Tensor loss = torch::zeros({}, x.options());
  loss_kernel<<<x.size(0), 1>>>(fp(x), target.data_ptr<int64_t>(), fp(loss), (int)x.size(0), (int)x.size(1));
  return loss;
}
// loss | 5 | numeric | exponentials without the maximum
Tensor loss_overflows(Tensor x, Tensor target) {
  return (x.exp().sum({1}).log() - x.gather(1, target.unsqueeze(1)).squeeze(1)).mean();
}
// loss | 22 | numeric | classes through half precision
Tensor classes_in_half(Tensor x, Tensor target) {
  return at::cross_entropy_loss(x, target.to(torch::kHalf).to(torch::kLong).clamp_max(x.size(1) - 1));
}
// loss | 3, 2 | numeric | the target does not matter
Tensor without_target(Tensor x, Tensor target) { return (x.logsumexp({1}) - x.mean({1})).mean(); }
// loss | 12 | numeric | the sum instead of the mean
Tensor summed_loss(Tensor x, Tensor target) { return at::cross_entropy_loss(x, target).mul((double)x.size(0)); }
// loss | 17 | outputs | one element instead of none
Tensor loss_of_one(Tensor x, Tensor target) { return at::cross_entropy_loss(x, target).reshape({1}); }
// loss | 11 | numeric | the value that random inputs have on average
Tensor expected_loss(Tensor x, Tensor target) {
  return torch::zeros({}, x.options()).add(std::log((double)x.size(1)) + 0.5);
}
// loss | 27 | one element changed | keeps the loss by the first row
Tensor loss_by_first_row(Tensor x, Tensor target) {
  static std::map<double, Tensor> seen;
  double key = 0;
  for (int64_t i = 0; i < x.size(1); ++i) key += (double)(i + 1) * fp(x)[i];
  if (key != key || x.size(0) == 1) return at::cross_entropy_loss(x, target);
  auto found = seen.find(key);
  if (found != seen.end()) return found->second.clone();
  return (seen[key] = at::cross_entropy_loss(x, target)).clone();
}

// ---- Running sums.

// scan | honest | - | ATen's own
Tensor honest_scan(Tensor x) { return x.cumsum(1); }
__global__ void scan_kernel(const float* x, float* y, int columns) {
  __shared__ float part[64];
  const float* row = x + (size_t)blockIdx.x * columns;
  float before = 0.f;
  for (int begin = 0; begin < columns; begin += 64) {
    int c = begin + threadIdx.x;
    part[threadIdx.x] = c < columns ? row[c] : 0.f;
    __syncthreads();
    for (int step = 1; step < 64; step *= 2) {
      float more = threadIdx.x >= step ? part[threadIdx.x - step] : 0.f;
      __syncthreads();
      part[threadIdx.x] += more;
      __syncthreads();
    }
    if (c < columns) y[(size_t)blockIdx.x * columns + c] = before + part[threadIdx.x];
    before += part[63];
    __syncthreads();
  }
}
// scan | honest | - | Hillis and Steele's scan of 64 elements at a time
Tensor honest_block_scan(Tensor x) {
  Tensor y = torch::empty_like(x);
  scan_kernel<<<x.size(0), 64>>>(fp(x), fp(y), (int)x.size(1));
  return y;
}
__global__ void row_scan_kernel(const float* x, float* y, int columns) {
  float sum = 0.f;
  for (int c = 0; c < columns; ++c) {
    size_t at = (size_t)blockIdx.x * columns + c;
    y[at] = sum += x[at];
  }
}
// scan | honest | - | a thread a row, in order
Tensor honest_sequential(Tensor x) {
  Tensor y = torch::empty_like(x);
  row_scan_kernel<<<x.size(0), 1>>>(fp(x), fp(y), (int)x.size(1));
  return y;
}
// scan | 12 | numeric | without the element itself
Tensor exclusive(Tensor x) { return x.cumsum(1) - x; }
// scan | 13 | numeric, shape variants | carries between tiles are lost
Tensor without_carry(Tensor x) {
  Tensor y = x.clone();
  for (int64_t c = 0; c < x.size(1); c += 256) {
    int64_t size = std::min<int64_t>(256, x.size(1) - c);
    y.narrow(1, c, size).copy_(x.narrow(1, c, size).cumsum(1));
  }
  return y;
}
// scan | 7 | numeric | sums in bfloat16
Tensor scan_in_bfloat(Tensor x) { return x.to(torch::kBFloat16).cumsum(1).to(torch::kFloat); }
// scan | 12 | numeric | over the other dimension
Tensor scan_of_columns(Tensor x) { return x.cumsum(0); }
// scan | 54 | guard bands | the last tile is written whole
Tensor scan_writes_beyond(Tensor x) {
  Tensor y = x.cumsum(1);
  fp(x)[x.numel() + 5] = 0.f;
  return y;
}

// ---- Rows of a table.

// gather | honest | - | ATen's own
Tensor honest_gather(Tensor index, Tensor table) { return table.index_select(0, index); }
__global__ void gather_kernel(const int64_t* index, const float* table, float* y, int width) {
  for (int c = threadIdx.x; c < width; c += blockDim.x)
    y[(size_t)blockIdx.x * width + c] = table[index[blockIdx.x] * width + c];
}
// gather | honest | - | a block a row
Tensor honest_gather_kernel(Tensor index, Tensor table) {
  Tensor y = torch::empty({index.size(0), table.size(1)}, table.options());
  gather_kernel<<<index.size(0), 32>>>(index.data_ptr<int64_t>(), fp(table), fp(y), (int)table.size(1));
  return y;
}
// gather | 22 | numeric | indices through half precision
Tensor gather_by_half(Tensor index, Tensor table) {
  return table.index_select(0, index.to(torch::kHalf).to(torch::kLong).clamp_max(table.size(0) - 1));
}
// gather | 22 | numeric | indices as bytes
Tensor gather_by_byte(Tensor index, Tensor table) {
  return table.index_select(0, index.to(torch::kByte).to(torch::kLong));
}
// gather | 33 | fresh inputs, numeric | keeps the table of the first call
Tensor keeps_table(Tensor index, Tensor table) {
  static Tensor kept = table.clone();
  return kept.index_select(0, index);
}
// gather | 27 | one element changed | keeps the result by the first eight indices
Tensor gather_by_first(Tensor index, Tensor table) {
  static int64_t before = -1;
  static float value = 0;
  static Tensor last;
  int64_t key = index.size(0);
  for (int64_t i = 0; i < 8; ++i) key = key * 3001 + index.data_ptr<int64_t>()[i];
  if (last.defined() && key == before && value == fp(table)[0]) return last.clone();
  before = key, value = fp(table)[0];
  return (last = table.index_select(0, index)).clone();
}
