// Device mathematics and bit intrinsics that the host's <cmath> lacks.
// The fast intrinsics (__expf) give the precise result here: their rounding differs on a GPU.
#pragma once
#include <climits>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "vectors.h"

#define HIERA_EMU_MINMAX(T)                           \
    constexpr T max(T a, T b) { return a > b ? a : b; } \
    constexpr T min(T a, T b) { return a < b ? a : b; }
HIERA_EMU_MINMAX(int)
HIERA_EMU_MINMAX(unsigned)
HIERA_EMU_MINMAX(long)
HIERA_EMU_MINMAX(unsigned long)
HIERA_EMU_MINMAX(long long)
HIERA_EMU_MINMAX(unsigned long long)
#undef HIERA_EMU_MINMAX
constexpr unsigned max(unsigned a, int b) { return max(a, unsigned(b)); }
constexpr unsigned max(int a, unsigned b) { return max(unsigned(a), b); }
constexpr unsigned min(unsigned a, int b) { return min(a, unsigned(b)); }
constexpr unsigned min(int a, unsigned b) { return min(unsigned(a), b); }
// As fmax and fmin: a NaN loses against a number.
inline float max(float a, float b) { return fmaxf(a, b); }
inline float min(float a, float b) { return fminf(a, b); }
inline double max(double a, double b) { return fmax(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
inline double max(double a, float b) { return fmax(a, b); }
inline double max(float a, double b) { return fmax(a, b); }
inline double min(double a, float b) { return fmin(a, b); }
inline double min(float a, double b) { return fmin(a, b); }

using std::abs;
using std::cbrt;
using std::ceil;
using std::copysign;
using std::cos;
using std::cosh;
using std::erf;
using std::erfc;
using std::exp;
using std::exp2;
using std::expm1;
using std::fabs;
using std::floor;
using std::fma;
using std::fmod;
using std::hypot;
using std::isfinite;
using std::isinf;
using std::isnan;
using std::log;
using std::log10;
using std::log1p;
using std::log2;
using std::nearbyint;
using std::pow;
using std::rint;
using std::round;
using std::signbit;
using std::sin;
using std::sinh;
using std::sqrt;
using std::tan;
using std::tanh;
using std::trunc;

// C23 took some of CUDA's names; newer C libraries have them.
#if !defined(__GLIBC__) || !__GLIBC_PREREQ(2, 42)
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }
#endif
inline float rsqrt(float x) { return rsqrtf(x); }
#if !defined(__GLIBC__) || !__GLIBC_PREREQ(2, 41)
inline float sinpif(float x) { return float(std::sin(M_PI * double(x))); }
inline float cospif(float x) { return float(std::cos(M_PI * double(x))); }
inline double sinpi(double x) { return std::sin(M_PI * x); }
inline double cospi(double x) { return std::cos(M_PI * x); }
#endif
inline float rcbrtf(float x) { return 1.0f / cbrtf(x); }
inline float rhypotf(float x, float y) { return 1.0f / hypotf(x, y); }
inline float norm3df(float x, float y, float z) { return std::sqrt(x * x + y * y + z * z); }
inline float normcdff(float x) { return 0.5f * erfcf(-x * float(M_SQRT1_2)); }
inline double normcdf(double x) { return 0.5 * std::erfc(-x * M_SQRT1_2); }
inline float fdividef(float a, float b) { return a / b; }
inline float __saturatef(float x) { return x > 0 ? (x < 1 ? x : 1.0f) : 0.0f; }
// Newton's steps on erf from a logarithmic start; full precision for float after three.
inline double erfinv(double y) {
    if (!(y > -1 && y < 1)) return y == 1 ? INFINITY : y == -1 ? -INFINITY : NAN;
    const double a = 0.147, l = std::log1p(-y * y), t = 2 / (M_PI * a) + l / 2;
    double x = std::copysign(std::sqrt(std::sqrt(t * t - l / a) - t), y);
    for (int i = 0; i < 4; ++i) x -= (std::erf(x) - y) / (2 / std::sqrt(M_PI) * std::exp(-x * x));
    return x;
}
inline float erfinvf(float y) { return float(erfinv(y)); }

inline float __expf(float x) { return expf(x); }
inline float __exp10f(float x) { return float(std::pow(10.0, double(x))); }
inline float __logf(float x) { return logf(x); }
inline float __log2f(float x) { return log2f(x); }
inline float __log10f(float x) { return log10f(x); }
inline float __powf(float x, float y) { return powf(x, y); }
inline float __sinf(float x) { return sinf(x); }
inline float __cosf(float x) { return cosf(x); }
inline float __tanf(float x) { return tanf(x); }
inline float __tanhf(float x) { return tanhf(x); }
inline void __sincosf(float x, float* s, float* c) { *s = sinf(x), *c = cosf(x); }
inline void sincospif(float x, float* s, float* c) { *s = sinpif(x), *c = cospif(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __frcp_rz(float x) { return 1.0f / x; }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float __frsqrt_rn(float x) { return rsqrtf(x); }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline double __fma_rn(double a, double b, double c) { return std::fma(a, b, c); }

// Contraction off: these promise a rounding after each operation.
#define HIERA_EMU_ROUNDED(T, prefix)                                                                              \
    __attribute__((noinline)) inline T prefix##add_rn(T a, T b) { return a + b; }                                 \
    __attribute__((noinline)) inline T prefix##sub_rn(T a, T b) { return a - b; }                                 \
    __attribute__((noinline)) inline T prefix##mul_rn(T a, T b) { return a * b; }                                 \
    __attribute__((noinline)) inline T prefix##div_rn(T a, T b) { return a / b; }
HIERA_EMU_ROUNDED(float, __f)
HIERA_EMU_ROUNDED(double, __d)
#undef HIERA_EMU_ROUNDED

namespace hiera_emu {
template <typename To, typename From>
To bits(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}
}  // namespace hiera_emu

inline int __float_as_int(float x) { return hiera_emu::bits<int>(x); }
inline unsigned __float_as_uint(float x) { return hiera_emu::bits<unsigned>(x); }
inline float __int_as_float(int x) { return hiera_emu::bits<float>(x); }
inline float __uint_as_float(unsigned x) { return hiera_emu::bits<float>(x); }
inline long long __double_as_longlong(double x) { return hiera_emu::bits<long long>(x); }
inline double __longlong_as_double(long long x) { return hiera_emu::bits<double>(x); }
inline int __double2hiint(double x) { return int(__double_as_longlong(x) >> 32); }
inline int __double2loint(double x) { return int(__double_as_longlong(x)); }
inline double __hiloint2double(int high, int low) {
    return __longlong_as_double((long long)high << 32 | (unsigned)low);
}

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x ? __builtin_clz(unsigned(x)) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline unsigned __brev(unsigned x) {
    unsigned result = 0;
    for (int i = 0; i < 32; ++i) result |= (x >> i & 1) << (31 - i);
    return result;
}
inline int __mul24(int a, int b) { return a * b; }
inline unsigned __umul24(unsigned a, unsigned b) { return a * b; }
inline int __mulhi(int a, int b) { return int((long long)a * b >> 32); }
inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned((unsigned long long)a * b >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}
inline long long __mul64hi(long long a, long long b) { return (long long)((__int128)a * b >> 64); }
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
    return unsigned((((unsigned long long)high << 32 | low) << (shift & 31)) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
    return unsigned(((unsigned long long)high << 32 | low) >> (shift & 31));
}
inline int __dp4a(int a, int b, int c) {
    for (int i = 0; i < 4; ++i) c += int((signed char)(a >> 8 * i)) * int((signed char)(b >> 8 * i));
    return c;
}
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
    unsigned long long both = (unsigned long long)y << 32 | x;
    unsigned result = 0;
    for (int i = 0; i < 4; ++i) result |= unsigned(both >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
    return result;
}

inline int __float2int_rn(float x) { return int(nearbyintf(x)); }
inline int __float2int_rd(float x) { return int(floorf(x)); }
inline int __float2int_ru(float x) { return int(ceilf(x)); }
inline int __float2int_rz(float x) { return int(x); }
inline unsigned __float2uint_rn(float x) { return unsigned(nearbyintf(x)); }
inline unsigned __float2uint_rz(float x) { return unsigned(x); }
inline int __double2int_rn(double x) { return int(nearbyint(x)); }
inline int __double2int_rz(double x) { return int(x); }
inline float __double2float_rn(double x) { return float(x); }
inline float __int2float_rn(int x) { return float(x); }
inline float __uint2float_rn(unsigned x) { return float(x); }
inline float __ll2float_rn(long long x) { return float(x); }
inline double __int2double_rn(int x) { return double(x); }
