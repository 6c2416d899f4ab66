"""The template for products on Tensor Cores: `mma.sync` from sm_80 on, fed by asynchronous copies.

It takes the same problems as `tile_product`, and an *arithmetic*: how factors become registers of the instruction.
fp32 factors go through TF32, which has 11 of fp32's 24 bits: `CompensatedTf32` takes each as the sum of two TF32
numbers and loses no accuracy, `Tf32` rounds.
"""

from __future__ import annotations

TENSOR_CORE_PRODUCT = """\
// A tile in shared memory as it lies in global memory: along k or across it. Rows are longer than the tile by what puts
// the elements that a warp reads at once into different banks.
template <typename Element, int ACROSS, int DEPTH, bool ALONG_K>
struct SharedTile {
  static constexpr int STEP = ALONG_K ? DEPTH + 16 / sizeof(Element) : ACROSS + 32 / sizeof(Element);
  static constexpr int SIZE = (ALONG_K ? ACROSS : DEPTH) * STEP;
  static constexpr int STEP_K = ALONG_K ? 1 : STEP;  // From one k to the next.
  static __device__ __forceinline__ int at(int across, int k) {
    return ALONG_K ? across * STEP + k : k * STEP + across;
  }
};

// Starts copying VECTOR elements into shared memory; zeros where there are none. ALWAYS: there are.
template <int VECTOR, bool ALWAYS, typename Element>
__device__ __forceinline__ void copy_ahead(const Element* source, Element* target) {
  struct alignas(sizeof(Element) * VECTOR) Vector {
    Element at[VECTOR];
  };
  if (!ALWAYS && source == nullptr) {
    *reinterpret_cast<Vector*>(target) = Vector{};
  } else if constexpr (sizeof(Vector) >= 4) {
    __pipeline_memcpy_async(target, source, sizeof(Vector));
  } else {
    *reinterpret_cast<Vector*>(target) = *reinterpret_cast<const Vector*>(source);
  }
}

// Sums over k of A(m, k) * B(k, n) for one TILE_M x TILE_N tile a block, WARP_M x WARP_N of it a warp. While warps
// multiply from one tile in shared memory, STAGES - 1 further ones are on their way.
template <class P>
__global__ void __launch_bounds__(P::THREADS) tensor_core_product(const typename P::Arguments arguments) {
  using Element = typename P::Element;
  using Arithmetic = typename P::Arithmetic;
  using ATile = SharedTile<Element, P::TILE_M, P::TILE_K, P::A_ALONG_K>;
  using BTile = SharedTile<Element, P::TILE_N, P::TILE_K, P::B_ALONG_K>;
  constexpr int TILE_K = P::TILE_K, THREADS = P::THREADS, STAGES = P::STAGES, PARTS = Arithmetic::PARTS;
  constexpr int ROWS = P::WARP_M / 16, COLS = P::WARP_N / 8;  // Results of one instruction are 16 x 8.
  constexpr int A_PASSES = P::TILE_M * TILE_K / (THREADS * P::A_VECTOR);
  constexpr int B_PASSES = P::TILE_N * TILE_K / (THREADS * P::B_VECTOR);
  constexpr int PACK = Arithmetic::PACK, STEP_K = 8 * PACK;
  static_assert(THREADS == 32 * (P::TILE_M / P::WARP_M) * (P::TILE_N / P::WARP_N), "one warp for its part of the tile");
  static_assert(P::SHARED_BYTES == STAGES * (ATile::SIZE + BTile::SIZE) * sizeof(Element), "what the launch asks for");
  extern __shared__ __align__(16) unsigned char shared[];
  Element* const stages = reinterpret_cast<Element*>(shared);

  const TilePlace<P> place(blockIdx.x);
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  // A lane holds rows `group` and `group + 8`, k `member` and `member + 4`, columns `2 * member` and the next.
  const int group = lane / 4, member = lane % 4;
  const int warp_m = warp / (P::TILE_N / P::WARP_N) * P::WARP_M, warp_n = warp % (P::TILE_N / P::WARP_N) * P::WARP_N;

  // Narrow copies are many: unrolled, their addresses would take the registers that the sums need.
  const auto fetch = [&](int k_tile) {
    Element* const a_stage = stages + (k_tile - place.k_first) % STAGES * (ATile::SIZE + BTile::SIZE);
    Element* const b_stage = a_stage + ATile::SIZE;
#pragma unroll(A_PASSES <= 8 ? A_PASSES : 2)
    for (int pass = 0; pass < A_PASSES; ++pass) {
      const int index = (pass * THREADS + thread) * P::A_VECTOR;
      const int k = P::A_ALONG_K ? index % TILE_K : index / P::TILE_M;
      const int m = P::A_ALONG_K ? index / TILE_K : index % P::TILE_M;
      const Element* const source = P::a_at(arguments, place.batch, place.m0 + m, k_tile * TILE_K + k);
      copy_ahead<P::A_VECTOR, P::A_ALWAYS>(source, a_stage + ATile::at(m, k));
    }
#pragma unroll(B_PASSES <= 8 ? B_PASSES : 2)
    for (int pass = 0; pass < B_PASSES; ++pass) {
      const int index = (pass * THREADS + thread) * P::B_VECTOR;
      const int k = P::B_ALONG_K ? index % TILE_K : index / P::TILE_N;
      const int n = P::B_ALONG_K ? index / TILE_K : index % P::TILE_N;
      const Element* const source = P::b_at(arguments, place.batch, k_tile * TILE_K + k, place.n0 + n);
      copy_ahead<P::B_VECTOR, P::B_ALWAYS>(source, b_stage + BTile::at(n, k));
    }
  };

  float sums[ROWS][COLS][4] = {};
  for (int k_tile = place.k_first; k_tile < place.k_first + STAGES - 1; ++k_tile) {
    if (k_tile < place.k_last) fetch(k_tile);
    __pipeline_commit();
  }
  for (int k_tile = place.k_first; k_tile < place.k_last; ++k_tile) {
    __pipeline_wait_prior(STAGES - 2);
    __syncthreads();  // This tile has come, and all warps are done with the one whose place the next fetch takes.
    if (k_tile + STAGES - 1 < place.k_last) fetch(k_tile + STAGES - 1);
    __pipeline_commit();

    const Element* const a_tile = stages + (k_tile - place.k_first) % STAGES * (ATile::SIZE + BTile::SIZE);
    const Element* const b_tile = a_tile + ATile::SIZE;
    // Tensor Cores cut sums off where fp32 rounds them: they add up one tile only, the rest is added here.
    float tile_sums[ROWS][COLS][4] = {};
#pragma unroll
    for (int k = 0; k < TILE_K; k += STEP_K) {
      uint32_t a[PARTS][ROWS][4], b[PARTS][COLS][2];
#pragma unroll
      for (int i = 0; i < ROWS; ++i) {
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          const int m = warp_m + i * 16 + group + r % 2 * 8, at_k = k + PACK * (member + r / 2 * 4);
          const auto factor = Arithmetic::template factor<ATile::STEP_K>(a_tile + ATile::at(m, at_k));
#pragma unroll
          for (int part = 0; part < PARTS; ++part) a[part][i][r] = factor.parts[part];
        }
      }
#pragma unroll
      for (int j = 0; j < COLS; ++j) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const int n = warp_n + j * 8 + group, at_k = k + PACK * (member + r * 4);
          const auto factor = Arithmetic::template factor<BTile::STEP_K>(b_tile + BTile::at(n, at_k));
#pragma unroll
          for (int part = 0; part < PARTS; ++part) b[part][j][r] = factor.parts[part];
        }
      }
      // Two parts make three products, small ones first; low times low is below what a sum can hold.
#pragma unroll
      for (int term = PARTS == 2 ? 0 : 2; term < 3; ++term) {
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
#pragma unroll
          for (int j = 0; j < COLS; ++j) Arithmetic::multiply_add(tile_sums[i][j], a[term == 0][i], b[term == 1][j]);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
#pragma unroll
      for (int j = 0; j < COLS; ++j) {
#pragma unroll
        for (int r = 0; r < 4; ++r) sums[i][j][r] += tile_sums[i][j][r];
      }
    }
  }

#pragma unroll
  for (int i = 0; i < ROWS; ++i) {
#pragma unroll
    for (int j = 0; j < COLS; ++j) {
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const int m = place.m0 + warp_m + i * 16 + group + r / 2 * 8;
        const int n = place.n0 + warp_n + j * 8 + 2 * member + r % 2;
        if (m >= P::M || n >= P::N) continue;
        float sum = sums[i][j][r];
        if (PARTS == 2 && sum != sum) sum = plain_sum<P>(arguments, place, m, n);
        if constexpr (P::SPLITS == 1) {
          P::store(arguments, place.batch, m, n, sum);
        } else {
          arguments.partial[(place.plane * P::M + m) * P::N + n] = sum;
        }
      }
    }
  }
}
"""

PLAIN_SUM = """\
// One sum without Tensor Cores: an infinite factor has no two parts, so there its sums come out as not a number.
template <class P>
__device__ __noinline__ float plain_sum(const typename P::Arguments& arguments, const TilePlace<P>& place, int m,
                                        int n) {
  float sum = 0;
  for (int k = place.k_first * P::TILE_K; k < P::K && k < place.k_last * P::TILE_K; ++k) {
    const auto *a = P::a_at(arguments, place.batch, m, k), *b = P::b_at(arguments, place.batch, k, n);
    sum += (a == nullptr ? 0.0f : wide(*a)) * (b == nullptr ? 0.0f : wide(*b));
  }
  return sum;
}
"""

_TF32_INSTRUCTION = """\
  static __device__ __forceinline__ void multiply_add(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
};
"""

# By name: fp32 in two parts, fp32 rounded, and the half types, which Tensor Cores take as they are.
ARITHMETICS: dict[str, str] = {
    "CompensatedTf32": """\
// fp32 as high + low, each with TF32's 11 bits (the unit cuts off what is below). An infinite factor has no low part.
struct CompensatedTf32 {
  static constexpr int PACK = 1, PARTS = 2;
  struct Factor {
    uint32_t parts[2];
  };
  template <int STEP_K>
  static __device__ __forceinline__ Factor factor(const float* at) {
    const uint32_t high = (__float_as_uint(*at) + 0x1000u) & 0xffffe000u;  // To nearest.
    return {{high, __float_as_uint(*at - __uint_as_float(high))}};
  }
""" + _TF32_INSTRUCTION,
    "Tf32": """\
// fp32 rounded to TF32, as the reference's own arithmetic does.
struct Tf32 {
  static constexpr int PACK = 1, PARTS = 1;
  struct Factor {
    uint32_t parts[1];
  };
  template <int STEP_K>
  static __device__ __forceinline__ Factor factor(const float* at) {
    Factor result;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(result.parts[0]) : "f"(*at));
    return result;
  }
""" + _TF32_INSTRUCTION,
    **{name: f"""\
// {kind} factors, two neighbours along k a register.
struct {name} {{
  static constexpr int PACK = 2, PARTS = 1;
  struct Factor {{
    uint32_t parts[1];
  }};
  template <int STEP_K, typename Element>
  static __device__ __forceinline__ Factor factor(const Element* at) {{
    if constexpr (STEP_K == 1) return {{{{*reinterpret_cast<const uint32_t*>(at)}}}};
    const auto* const bits = reinterpret_cast<const uint16_t*>(at);
    return {{{{bits[0] | uint32_t(bits[STEP_K]) << 16}}}};
  }}
""" + _TF32_INSTRUCTION.replace("m16n8k8", "m16n8k16").replace("tf32.tf32", f"{ptx}.{ptx}")
       for name, kind, ptx in (("HalfPairs", "fp16", "f16"), ("Bfloat16Pairs", "bf16", "bf16"))},
}
