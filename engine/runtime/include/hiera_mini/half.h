// c10::Half and c10::BFloat16 over CUDA's own types; arithmetic in float, as in torch.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <limits>

namespace c10 {
struct alignas(2) Half {
  struct from_bits_t {};
  static constexpr __host__ __device__ from_bits_t from_bits() { return {}; }
  unsigned short x;
  Half() = default;
  constexpr __host__ __device__ Half(unsigned short bits, from_bits_t) : x(bits) {}
  __host__ __device__ Half(float value) { x = __half_as_ushort(__float2half(value)); }
  __host__ __device__ Half(const __half& value) { x = __half_as_ushort(value); }
  __host__ __device__ operator float() const { return __half2float(__ushort_as_half(x)); }
  __host__ __device__ operator __half() const { return __ushort_as_half(x); }
};

struct alignas(2) BFloat16 {
  struct from_bits_t {};
  static constexpr __host__ __device__ from_bits_t from_bits() { return {}; }
  unsigned short x;
  BFloat16() = default;
  constexpr __host__ __device__ BFloat16(unsigned short bits, from_bits_t) : x(bits) {}
  __host__ __device__ BFloat16(float value) { x = __bfloat16_as_ushort(__float2bfloat16(value)); }
  __host__ __device__ BFloat16(const __nv_bfloat16& value) { x = __bfloat16_as_ushort(value); }
  __host__ __device__ operator float() const { return __bfloat162float(__ushort_as_bfloat16(x)); }
  __host__ __device__ operator __nv_bfloat16() const { return __ushort_as_bfloat16(x); }
};

#define HM_BINARY(T, op)                                                                                     \
  __host__ __device__ inline T operator op(T a, T b) { return T(float(a) op float(b)); }                     \
  __host__ __device__ inline float operator op(T a, float b) { return float(a) op b; }                       \
  __host__ __device__ inline float operator op(float a, T b) { return a op float(b); }                       \
  __host__ __device__ inline double operator op(T a, double b) { return double(float(a)) op b; }             \
  __host__ __device__ inline double operator op(double a, T b) { return a op double(float(b)); }             \
  __host__ __device__ inline T operator op(T a, int b) { return T(float(a) op float(b)); }                   \
  __host__ __device__ inline T operator op(int a, T b) { return T(float(a) op float(b)); }                   \
  __host__ __device__ inline T operator op(T a, int64_t b) { return T(float(a) op float(b)); }               \
  __host__ __device__ inline T operator op(int64_t a, T b) { return T(float(a) op float(b)); }               \
  __host__ __device__ inline T& operator op##=(T& a, T b) { return a = T(float(a) op float(b)); }            \
  __host__ __device__ inline float& operator op##=(float& a, T b) { return a = a op float(b); }
#define HM_ARITHMETIC(T) \
  HM_BINARY(T, +) HM_BINARY(T, -) HM_BINARY(T, *) HM_BINARY(T, /) \
  __host__ __device__ inline T operator-(T a) { return T(-float(a)); }
HM_ARITHMETIC(Half)
HM_ARITHMETIC(BFloat16)
#undef HM_ARITHMETIC
#undef HM_BINARY
}  // namespace c10

namespace std {
#define HM_LIMITS(T, LOWEST, MAX, MIN, EPSILON, INF, NAN_BITS, DIGITS)                                                \
  template <> class numeric_limits<T> {                                                                               \
   public:                                                                                                            \
    static constexpr bool is_specialized = true, is_signed = true, is_integer = false, is_exact = false;              \
    static constexpr bool has_infinity = true, has_quiet_NaN = true;                                                  \
    static constexpr int digits = DIGITS, radix = 2;                                                                  \
    static constexpr __host__ __device__ T lowest() { return T(LOWEST, T::from_bits()); }                             \
    static constexpr __host__ __device__ T max() { return T(MAX, T::from_bits()); }                                   \
    static constexpr __host__ __device__ T min() { return T(MIN, T::from_bits()); }                                   \
    static constexpr __host__ __device__ T epsilon() { return T(EPSILON, T::from_bits()); }                           \
    static constexpr __host__ __device__ T infinity() { return T(INF, T::from_bits()); }                              \
    static constexpr __host__ __device__ T quiet_NaN() { return T(NAN_BITS, T::from_bits()); }                        \
  };
HM_LIMITS(c10::Half, 0xFBFF, 0x7BFF, 0x0400, 0x1400, 0x7C00, 0x7E00, 11)
HM_LIMITS(c10::BFloat16, 0xFF7F, 0x7F7F, 0x0080, 0x3C00, 0x7F80, 0x7FC0, 8)
#undef HM_LIMITS
}  // namespace std
