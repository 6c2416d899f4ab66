"""fp32 matrix products as cuBLAS products of half factors: Tensor Cores' half rate at nearly fp32's accuracy."""

from __future__ import annotations

from collections.abc import Mapping

from engine.codegen import Tunable, cublas
from engine.codegen.cpp import number
from engine.codegen.matmul import Matmul
from engine.codegen.products import ExternCode, vector_width
from engine.codegen.tensor_cores import FIRST_SM, sm_of
from engine.records import Device

# Below, taking factors apart costs more than Tensor Cores save.
FROM_PRODUCTS = 2**31
FROM_K = 512
# Terms that Tensor Cores may sum up before fp32 goes on: they cut off where fp32 rounds.
CHUNKS = (512, 1024, 256, 2048)

MULTIPLY_HALVES = """\
// fp32 products on half Tensor Cores. A factor's row is scaled by a power of two, so that its largest element is in
// [2^13, 2^14), and each element taken apart: hi = half(v), lo = half(v - hi), 22 bits together. Then
//   a * b = lo_a * hi_b + hi_a * lo_b + hi_a * hi_b,
// the last summed in chunks, since Tensor Cores cut off what fp32 rounds and only there it counts.

// A factor as rows of `k` terms; `row_step` or `k_step` is 1.
struct Factor {
  const float* at;
  int64_t rows, k, row_step, k_step;
};
// Its halves on the GPU, in the order of the factor, and each row's power of two.
struct SplitFactor {
  at::Tensor halves, exponents;
  const __half *hi, *lo;
  int64_t leading, k_step;
};
// alpha * product + beta * added.
struct ScaledResult {
  float* at;
  int64_t step;
  float alpha, beta;
  const float* added;
  int64_t added_m, added_n;
};
template <typename Element, int VECTOR>
struct alignas(sizeof(Element) * VECTOR) ElementVector {
  Element at[VECTOR];
};
constexpr int NOT_FINITE = 1 << 16;  // Instead of the exponent of a row with an infinity or NaN.

// Magnitudes as bits order like numbers; infinities and NaN come last.
__device__ __forceinline__ unsigned magnitude_bits(float value) { return __float_as_uint(value) & 0x7fffffffu; }
__device__ __forceinline__ int scaling_exponent(unsigned largest_bits) {
  if (largest_bits >= 0x7f800000u) return NOT_FINITE;
  int exponent = 14;
  if (largest_bits != 0) frexpf(__uint_as_float(largest_bits), &exponent);
  return 14 - exponent;
}
// Two factors, because 2^exponent alone may lie beyond fp32.
__device__ __forceinline__ float times_power(float value, int exponent) {
  return value * ldexpf(1.0f, exponent / 2) * ldexpf(1.0f, exponent - exponent / 2);
}
__device__ __forceinline__ void take_apart(float value, int exponent, __half& hi, __half& lo) {
  const float scaled = times_power(value, exponent);
  hi = __float2half_rn(scaled);
  lo = __float2half_rn(scaled - __half2float(hi));
}

// One block a row whose terms lie together.
template <int VECTOR>
__global__ void __launch_bounds__(256) split_rows(const Factor factor, __half* hi, __half* lo, int* exponents,
                                                  int64_t leading) {
  __shared__ unsigned largest[256 / 32];
  const float* const row = factor.at + blockIdx.x * factor.row_step;
  unsigned bits = 0;
  for (int64_t k = threadIdx.x * VECTOR; k < factor.k; k += 256 * VECTOR) {
    const auto values = *reinterpret_cast<const ElementVector<float, VECTOR>*>(row + k);
#pragma unroll
    for (int v = 0; v < VECTOR; ++v) bits = max(bits, magnitude_bits(values.at[v]));
  }
  for (int step = 16; step > 0; step /= 2) bits = max(bits, __shfl_xor_sync(0xffffffffu, bits, step));
  if (threadIdx.x % 32 == 0) largest[threadIdx.x / 32] = bits;
  __syncthreads();
  for (int warp = 0; warp < 256 / 32; ++warp) bits = max(bits, largest[warp]);
  const int exponent = scaling_exponent(bits);
  if (threadIdx.x == 0) exponents[blockIdx.x] = exponent;
  for (int64_t k = threadIdx.x * VECTOR; k < factor.k; k += 256 * VECTOR) {
    const auto values = *reinterpret_cast<const ElementVector<float, VECTOR>*>(row + k);
    ElementVector<__half, VECTOR> hi_values, lo_values;
#pragma unroll
    for (int v = 0; v < VECTOR; ++v) take_apart(values.at[v], exponent, hi_values.at[v], lo_values.at[v]);
    *reinterpret_cast<ElementVector<__half, VECTOR>*>(hi + blockIdx.x * leading + k) = hi_values;
    *reinterpret_cast<ElementVector<__half, VECTOR>*>(lo + blockIdx.x * leading + k) = lo_values;
  }
}

// One block for 32 rows that lie beside each other; its warps share out the terms.
__global__ void __launch_bounds__(1024) split_columns(const Factor factor, __half* hi, __half* lo, int* exponents,
                                                      int64_t leading) {
  __shared__ unsigned largest[32][32];
  const int64_t row = int64_t(blockIdx.x) * 32 + threadIdx.x;
  const int64_t terms = row < factor.rows ? factor.k : 0;
  unsigned bits = 0;
  for (int64_t k = threadIdx.y; k < terms; k += 32) {
    bits = max(bits, magnitude_bits(factor.at[k * factor.k_step + row]));
  }
  largest[threadIdx.y][threadIdx.x] = bits;
  __syncthreads();
  for (int warp = 0; warp < 32; ++warp) bits = max(bits, largest[warp][threadIdx.x]);
  const int exponent = scaling_exponent(bits);
  if (threadIdx.y == 0 && terms != 0) exponents[row] = exponent;
  for (int64_t k = threadIdx.y; k < terms; k += 32) {
    take_apart(factor.at[k * factor.k_step + row], exponent, hi[k * leading + row], lo[k * leading + row]);
  }
}

// Scales sums back and adds what is to be added. Halves can not say where infinities go: results of rows that have any
// are summed up anew.
template <int VECTOR>
__global__ void __launch_bounds__(256) scale_back(const ScaledResult result, const Factor a, const Factor b,
                                                  const int* a_exponents, const int* b_exponents) {
  const int64_t index = (int64_t(blockIdx.x) * 256 + threadIdx.x) * VECTOR;
  if (index >= a.rows * b.rows) return;
  const int64_t m = index / b.rows, first = index - m * b.rows;
  auto* const target = reinterpret_cast<ElementVector<float, VECTOR>*>(result.at + m * result.step + first);
  ElementVector<float, VECTOR> sums = *target;
  const int a_exponent = a_exponents[m];
#pragma unroll
  for (int v = 0; v < VECTOR; ++v) {
    const int64_t n = first + v;
    const int b_exponent = b_exponents[n];
    float sum;
    if (a_exponent == NOT_FINITE || b_exponent == NOT_FINITE) {
      sum = 0;
      for (int64_t k = 0; k < a.k; ++k) {
        sum += a.at[m * a.row_step + k * a.k_step] * b.at[n * b.row_step + k * b.k_step];
      }
    } else {
      sum = times_power(sums.at[v], -(a_exponent + b_exponent));
    }
    if (result.alpha != 1.0f) sum *= result.alpha;
    if (result.added != nullptr) sum += result.beta * result.added[m * result.added_m + n * result.added_n];
    sums.at[v] = sum;
  }
  *target = sums;
}

static SplitFactor split_factor(const Factor& factor, bool by_fours, const at::TensorOptions& options,
                                cudaStream_t stream) {
  SplitFactor split;
  const bool along_k = factor.k_step == 1;
  // Lines begin on 16 bytes, as the fast kernels of cuBLAS want.
  split.leading = ((along_k ? factor.k : factor.rows) + 7) / 8 * 8;
  split.k_step = along_k ? 1 : split.leading;
  const int64_t lines = along_k ? factor.rows : factor.k;
  split.halves = at::empty({2, lines, split.leading}, options.dtype(at::kHalf));
  split.exponents = at::empty({factor.rows}, options.dtype(at::kInt));
  __half* const hi = static_cast<__half*>(split.halves.data_ptr());
  __half* const lo = hi + lines * split.leading;
  int* const exponents = split.exponents.data_ptr<int>();
  split.hi = hi, split.lo = lo;
  const unsigned rows = static_cast<unsigned>(factor.rows);
  if (!along_k) {
    split_columns<<<(rows + 31) / 32, dim3(32, 32), 0, stream>>>(factor, hi, lo, exponents, split.leading);
  } else if (by_fours) {
    split_rows<4><<<rows, 256, 0, stream>>>(factor, hi, lo, exponents, split.leading);
  } else {
    split_rows<1><<<rows, 256, 0, stream>>>(factor, hi, lo, exponents, split.leading);
  }
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return split;
}

// by_fours: sizes, steps and addresses of A's terms, B's terms and results allow accesses of four elements.
static void multiply_halves(const Factor& a, const Factor& b, const ScaledResult& result, const bool (&by_fours)[3],
                            int chunk, const at::TensorOptions& options, cudaStream_t stream) {
  const SplitFactor a_split = split_factor(a, by_fours[0], options, stream);
  const SplitFactor b_split = split_factor(b, by_fours[1], options, stream);
  const cublasHandle_t handle = cublas_handle(a_split.halves.get_device(), stream);
  // cuBLAS counts columns first: transposed C is transposed B times transposed A.
  const auto add = [&](const __half* a_half, const __half* b_half, int64_t first, int64_t terms, float beta) {
    const float alpha = 1.0f;
    CUBLAS_CHECK(cublasGemmEx(
        handle, b.k_step == 1 ? CUBLAS_OP_T : CUBLAS_OP_N, a.k_step == 1 ? CUBLAS_OP_N : CUBLAS_OP_T,
        static_cast<int>(b.rows), static_cast<int>(a.rows), static_cast<int>(terms), &alpha,
        b_half + first * b_split.k_step, CUDA_R_16F, static_cast<int>(b_split.leading),
        a_half + first * a_split.k_step, CUDA_R_16F, static_cast<int>(a_split.leading), &beta,
        result.at, CUDA_R_32F, static_cast<int>(result.step), CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
  };
  add(a_split.lo, b_split.hi, 0, a.k, 0.0f);
  add(a_split.hi, b_split.lo, 0, a.k, 1.0f);
  for (int64_t k = 0; k < a.k; k += chunk) add(a_split.hi, b_split.hi, k, a.k - k < chunk ? a.k - k : chunk, 1.0f);

  const int64_t threads = a.rows * b.rows / (by_fours[2] ? 4 : 1);
  const unsigned blocks = static_cast<unsigned>((threads + 255) / 256);
  const int *a_exponents = a_split.exponents.data_ptr<int>(), *b_exponents = b_split.exponents.data_ptr<int>();
  if (by_fours[2]) {
    scale_back<4><<<blocks, 256, 0, stream>>>(result, a, b, a_exponents, b_exponents);
  } else {
    scale_back<1><<<blocks, 256, 0, stream>>>(result, a, b, a_exponents, b_exponents);
  }
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}
"""


def serves(matmul: Matmul, dtype: str, device: Device, flags: Mapping[str, bool]) -> bool:
    """True for an fp32 product of two matrices that the reference does not round to TF32, which is as fast."""
    return (
        dtype == "float32" and not matmul.batch and min(matmul.m, matmul.n, matmul.k) > 1
        and cublas.lies_well(matmul) and sm_of(device) >= FIRST_SM and not flags.get("cuda.matmul.allow_tf32")
        and matmul.m * matmul.n < 2**39  # Blocks of one launch.
    )


def pays(matmul: Matmul) -> bool:
    """True where the product is large against its factors."""
    return matmul.k >= FROM_K and matmul.m * matmul.n * matmul.k >= FROM_PRODUCTS


def write(
    matmul: Matmul, *, name: str, choices: Mapping[str, int | str | bool], expressions: Mapping[str, str],
    aligned: tuple[bool, bool], options: str, weight: float,
) -> ExternCode:
    """Write a product that `serves` accepts.

    Args:
        matmul: What to compute.
        name: Prefix of tunable keys.
        choices: Values of tunables that differ from the default.
        expressions: at::Tensor expression of every value.
        aligned: Whether A and B start on 16 bytes.
        options: C++ of type TensorOptions, for temporaries.
        weight: Share of the module's time.
    """
    chunk = Tunable(
        key=f"{name}.chunk", direction="T", values=CHUNKS, weight=weight,
        meaning=f"terms of the sums in {name} that Tensor Cores add up before fp32 does",
    )
    terms = choices.get(chunk.key, CHUNKS[0])
    if terms not in CHUNKS:
        terms = CHUNKS[0]
    a, b, c = (expressions[value] for value in (matmul.a, matmul.b, matmul.out))
    added, steps = "nullptr", (0, 0)
    if matmul.added is not None:
        added, steps = f"{expressions[matmul.added]}.const_data_ptr<float>()", matmul.added_steps
    factors = f"float({number(matmul.alpha)}), float({number(matmul.beta)})"
    by_fours = [
        str(start and vector_width("float32", size, step) == 4).lower()
        for start, size, step in (
            (aligned[0], matmul.k, matmul.a_m), (aligned[1], matmul.k, matmul.b_n), (True, matmul.n, matmul.c_m))
    ]
    lines = [
        "multiply_halves(",
        f"    Factor{{{a}.const_data_ptr<float>(), {matmul.m}, {matmul.k}, {matmul.a_m}, {matmul.a_k}}},",
        f"    Factor{{{b}.const_data_ptr<float>(), {matmul.n}, {matmul.k}, {matmul.b_n}, {matmul.b_k}}},",
        f"    ScaledResult{{{c}.data_ptr<float>(), {matmul.c_m}, {factors}, {added}, {steps[0]}, {steps[1]}}},",
        f"    {{{', '.join(by_fours)}}}, /*chunk=*/{terms}, {options}, stream);",
    ]
    splits = [
        f"split_rows<{4 if four == 'true' else 1}>" if step == 1 else "split_columns"
        for step, four in ((matmul.a_k, by_fours[0]), (matmul.b_k, by_fours[1]))
    ]
    return ExternCode(
        host_code=lines, library_text=[cublas.HANDLE, MULTIPLY_HALVES], library_calls=["cublasGemmEx"],
        kernels=[*splits, f"scale_back<{4 if by_fours[2] == 'true' else 1}>"], tunables=[chunk],
        notes=[f"{name}: an fp32 product as three of half factors; terms 2^-39 of their row's largest are lost"],
    )
