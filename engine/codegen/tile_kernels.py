"""Kernel templates for matrix products and convolutions, pasted into sources that use them.

A *problem* is a struct that says how large the product is, how it is tiled, and how elements of A and B are read and
results stored; `tile_product` does the rest. Convolutions are products whose B is gathered from the image.
"""

from __future__ import annotations

from engine.codegen.tensor_core_kernels import ARITHMETICS, PLAIN_SUM, TENSOR_CORE_PRODUCT

TILE_PLACE = """\
// Which tile of which product a block computes, and which part of the sums, counted in tiles along k. Blocks that run
// at the same time share rows of tiles, so that A and B come from L2.
template <class P>
struct TilePlace {
  static constexpr int TILES_M = (P::M + P::TILE_M - 1) / P::TILE_M, TILES_N = (P::N + P::TILE_N - 1) / P::TILE_N;
  static constexpr int TILES_K = (P::K + P::TILE_K - 1) / P::TILE_K, GROUP = 8;
  static constexpr int TILES_K_PER_SPLIT = (TILES_K + P::SPLITS - 1) / P::SPLITS;
  int64_t plane;
  int batch, m0, n0, k_first, k_last;

  __device__ __forceinline__ explicit TilePlace(int64_t block) {
    plane = block / (int64_t(TILES_M) * TILES_N);
    const int tile = static_cast<int>(block - plane * TILES_M * TILES_N);
    const int first = tile / (GROUP * TILES_N) * GROUP;
    const int height = TILES_M - first < GROUP ? TILES_M - first : GROUP;
    m0 = (first + tile % (GROUP * TILES_N) % height) * P::TILE_M;
    n0 = tile % (GROUP * TILES_N) / height * P::TILE_N;
    batch = static_cast<int>(plane / P::SPLITS);
    k_first = static_cast<int>(plane % P::SPLITS) * TILES_K_PER_SPLIT;
    k_last = k_first + TILES_K_PER_SPLIT < TILES_K ? k_first + TILES_K_PER_SPLIT : TILES_K;
  }
};
"""

TILE_PRODUCT = """\
// Sums over k of A(m, k) * B(k, n) for one TILE_M x TILE_N tile a block. Shared memory holds two tiles of A and of B:
// while threads multiply from one, the next is on its way through registers. Each thread owns ROWS x COLS results.
template <class P>
__global__ void __launch_bounds__(P::THREADS) tile_product(const typename P::Arguments arguments) {
  using Sum = typename P::Sum;
  constexpr int TILE_M = P::TILE_M, TILE_N = P::TILE_N, TILE_K = P::TILE_K;
  constexpr int ROWS = P::ROWS, COLS = P::COLS, THREADS = P::THREADS;
  constexpr int A_VECTOR = P::A_VECTOR, B_VECTOR = P::B_VECTOR;
  static_assert(THREADS == (TILE_M / ROWS) * (TILE_N / COLS), "one thread for ROWS x COLS results");
  // Neighbouring threads own neighbouring runs of four, so shared memory is read without bank conflicts.
  constexpr int RUN_M = ROWS < 4 ? ROWS : 4, RUN_N = COLS < 4 ? COLS : 4;
  constexpr int STEP_M = TILE_M / ROWS * RUN_M, STEP_N = TILE_N / COLS * RUN_N;
  constexpr int A_PASSES = (TILE_M * TILE_K) / (THREADS * A_VECTOR);
  constexpr int B_PASSES = (TILE_N * TILE_K) / (THREADS * B_VECTOR);
  static_assert(A_PASSES * THREADS * A_VECTOR == TILE_M * TILE_K, "threads share the tile of A evenly");
  static_assert(B_PASSES * THREADS * B_VECTOR == TILE_N * TILE_K, "threads share the tile of B evenly");
  __shared__ __align__(16) Sum a_tile[2][TILE_K][TILE_M + 4];
  __shared__ __align__(16) Sum b_tile[2][TILE_K][TILE_N + 4];

  const TilePlace<P> place_of_block(blockIdx.x);
  const int m0 = place_of_block.m0, n0 = place_of_block.n0, batch = place_of_block.batch;
  const int k_first = place_of_block.k_first, k_last = place_of_block.k_last;
  const int thread = threadIdx.x;
  const int run_m = thread / (TILE_N / COLS) * RUN_M, run_n = thread % (TILE_N / COLS) * RUN_N;
  Sum sums[ROWS][COLS] = {};
  Sum a_next[A_PASSES][A_VECTOR], b_next[B_PASSES][B_VECTOR];

  // Position of this thread's element in pass `pass` of a tile whose vectors run along k or across it.
  const auto place = [thread](int pass, int across, int vector, bool along_k, int& k, int& mn) {
    const int index = pass * THREADS + thread;
    if (along_k) {
      k = index % (TILE_K / vector) * vector;
      mn = index / (TILE_K / vector);
    } else {
      mn = index % (across / vector) * vector;
      k = index / (across / vector);
    }
  };
  const auto fetch = [&](int k_tile) {
#pragma unroll
    for (int pass = 0; pass < A_PASSES; ++pass) {
      int k, m;
      place(pass, TILE_M, A_VECTOR, P::A_ALONG_K, k, m);
      load_vector(P::a_at(arguments, batch, m0 + m, k_tile * TILE_K + k), a_next[pass]);
    }
#pragma unroll
    for (int pass = 0; pass < B_PASSES; ++pass) {
      int k, n;
      place(pass, TILE_N, B_VECTOR, P::B_ALONG_K, k, n);
      load_vector(P::b_at(arguments, batch, k_tile * TILE_K + k, n0 + n), b_next[pass]);
    }
  };
  const auto put = [&](int buffer) {
#pragma unroll
    for (int pass = 0; pass < A_PASSES; ++pass) {
      int k, m;
      place(pass, TILE_M, A_VECTOR, P::A_ALONG_K, k, m);
#pragma unroll
      for (int v = 0; v < A_VECTOR; ++v) {
        a_tile[buffer][P::A_ALONG_K ? k + v : k][P::A_ALONG_K ? m : m + v] = a_next[pass][v];
      }
    }
#pragma unroll
    for (int pass = 0; pass < B_PASSES; ++pass) {
      int k, n;
      place(pass, TILE_N, B_VECTOR, P::B_ALONG_K, k, n);
#pragma unroll
      for (int v = 0; v < B_VECTOR; ++v) {
        b_tile[buffer][P::B_ALONG_K ? k + v : k][P::B_ALONG_K ? n : n + v] = b_next[pass][v];
      }
    }
  };

  if (k_first < k_last) {
    fetch(k_first);
    put(0);
  }
  __syncthreads();
  for (int k_tile = k_first; k_tile < k_last; ++k_tile) {
    const int buffer = (k_tile - k_first) & 1;
    if (k_tile + 1 < k_last) fetch(k_tile + 1);
#pragma unroll
    for (int k = 0; k < TILE_K; ++k) {
      Sum a[ROWS], b[COLS];
#pragma unroll
      for (int i = 0; i < ROWS; ++i) a[i] = a_tile[buffer][k][i / RUN_M * STEP_M + run_m + i % RUN_M];
#pragma unroll
      for (int j = 0; j < COLS; ++j) b[j] = b_tile[buffer][k][j / RUN_N * STEP_N + run_n + j % RUN_N];
#pragma unroll
      for (int i = 0; i < ROWS; ++i) {
#pragma unroll
        for (int j = 0; j < COLS; ++j) sums[i][j] += a[i] * b[j];
      }
    }
    if (k_tile + 1 < k_last) put(buffer ^ 1);
    __syncthreads();
  }

#pragma unroll
  for (int i = 0; i < ROWS; ++i) {
    const int m = m0 + i / RUN_M * STEP_M + run_m + i % RUN_M;
#pragma unroll
    for (int j = 0; j < COLS; ++j) {
      const int n = n0 + j / RUN_N * STEP_N + run_n + j % RUN_N;
      if (m >= P::M || n >= P::N) continue;
      if constexpr (P::SPLITS == 1) {
        P::store(arguments, batch, m, n, sums[i][j]);
      } else {
        arguments.partial[(place_of_block.plane * P::M + m) * P::N + n] = sums[i][j];
      }
    }
  }
}
"""

SUM_SPLITS = """\
// Adds up the partial sums of a product whose k range was split over blocks, always in the same order.
template <class P>
__global__ void __launch_bounds__(256) sum_splits(const typename P::Arguments arguments) {
  constexpr int64_t PLANE = int64_t(P::M) * P::N;
  const int64_t index = int64_t(blockIdx.x) * 256 + threadIdx.x;
  if (index >= PLANE * P::BATCH) return;
  const int64_t batch = index / PLANE, element = index % PLANE;
  typename P::Sum sum = 0;
  for (int split = 0; split < P::SPLITS; ++split) {
    sum += arguments.partial[(batch * P::SPLITS + split) * PLANE + element];
  }
  P::store(arguments, static_cast<int>(batch), static_cast<int>(element / P::N), static_cast<int>(element % P::N), sum);
}
"""

ROW_PRODUCT = """\
// A product with few columns, or few rows, whose long operand lies along k: one warp a result, lanes side by side.
template <class P>
__global__ void __launch_bounds__(256) row_product(const typename P::Arguments arguments) {
  constexpr int VECTOR = P::A_VECTOR;
  const int lane = threadIdx.x % 32;
  const int64_t result = int64_t(blockIdx.x) * 8 + threadIdx.x / 32;
  if (result >= int64_t(P::BATCH) * P::M * P::N) return;
  const int n = static_cast<int>(result % P::N), m = static_cast<int>(result / P::N % P::M);
  const int batch = static_cast<int>(result / (int64_t(P::M) * P::N));
  typename P::Sum sums[4] = {};
  for (int k = lane * VECTOR; k < P::K; k += 4 * 32 * VECTOR) {
#pragma unroll
    for (int unroll = 0; unroll < 4; ++unroll) {
      typename P::Sum a[VECTOR], b[VECTOR];
      load_vector(P::a_at(arguments, batch, m, k + unroll * 32 * VECTOR), a);
      load_vector(P::b_at(arguments, batch, k + unroll * 32 * VECTOR, n), b);
#pragma unroll
      for (int v = 0; v < VECTOR; ++v) sums[unroll] += a[v] * b[v];
    }
  }
  typename P::Sum sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
#pragma unroll
  for (int step = 16; step > 0; step /= 2) sum += __shfl_down_sync(0xffffffffu, sum, step);
  if (lane == 0) P::store(arguments, batch, m, n, sum);
}
"""

DIRECT_PRODUCT = """\
// One thread a result, for products with so few rows or terms that tiles would be mostly empty.
template <class P>
__global__ void __launch_bounds__(256) direct_product(const typename P::Arguments arguments) {
  const int64_t result = int64_t(blockIdx.x) * 256 + threadIdx.x;
  if (result >= int64_t(P::BATCH) * P::M * P::N) return;
  const int n = static_cast<int>(result % P::N), m = static_cast<int>(result / P::N % P::M);
  const int batch = static_cast<int>(result / (int64_t(P::M) * P::N));
  typename P::Sum sum = 0;
  for (int k = 0; k < P::K; ++k) {
    typename P::Sum a[1], b[1];
    load_vector(P::a_at(arguments, batch, m, k), a);
    load_vector(P::b_at(arguments, batch, k, n), b);
    sum += a[0] * b[0];
  }
  P::store(arguments, batch, m, n, sum);
}
"""

LOAD_VECTOR = """\
// VECTOR neighbouring elements in one access, as the type that sums are kept in; zeros where there are none.
template <int VECTOR, typename Element, typename Sum>
__device__ __forceinline__ void load_vector(const Element* source, Sum (&target)[VECTOR]) {
  struct alignas(sizeof(Element) * VECTOR) Vector {
    Element at[VECTOR];
  };
  if (source == nullptr) {
#pragma unroll
    for (int v = 0; v < VECTOR; ++v) target[v] = 0;
    return;
  }
  const Vector vector = *reinterpret_cast<const Vector*>(source);
#pragma unroll
  for (int v = 0; v < VECTOR; ++v) target[v] = wide(vector.at[v]);
}
"""

# Half types convert by name only: extensions are compiled without their operators.
CONVERSIONS: dict[str, str] = {
    "float64": """\
__device__ __forceinline__ double wide(double value) { return value; }
__device__ __forceinline__ void narrow(double sum, double& target) { target = sum; }
""",
    "float32": """\
__device__ __forceinline__ float wide(float value) { return value; }
__device__ __forceinline__ void narrow(float sum, float& target) { target = sum; }
""",
    "float16": """\
__device__ __forceinline__ float wide(__half value) { return __half2float(value); }
__device__ __forceinline__ void narrow(float sum, __half& target) { target = __float2half_rn(sum); }
""",
    "bfloat16": """\
__device__ __forceinline__ float wide(__nv_bfloat16 value) { return __bfloat162float(value); }
__device__ __forceinline__ void narrow(float sum, __nv_bfloat16& target) { target = __float2bfloat16_rn(sum); }
""",
}

TEMPLATES: dict[str, str] = {
    **{f"wide_{dtype}": text for dtype, text in CONVERSIONS.items()},
    "load_vector": LOAD_VECTOR, "tile_place": TILE_PLACE, "tile_product": TILE_PRODUCT,
    **ARITHMETICS, "plain_sum": PLAIN_SUM, "tensor_core_product": TENSOR_CORE_PRODUCT, "sum_splits": SUM_SPLITS,
    "row_product": ROW_PRODUCT, "direct_product": DIRECT_PRODUCT,
}
