// __half and __nv_bfloat16: 16 bits of storage, arithmetic through float, rounded after each
// operation as the hardware's scalar instructions do.
#pragma once
#include "all.h"

namespace hiera_emu {
#if defined(__FLT16_MANT_DIG__)
inline float half_to_float(unsigned short h) { return float(bits<_Float16>(h)); }
inline unsigned short float_to_half(float f) { return bits<unsigned short>(_Float16(f)); }
#else
// Compilers without _Float16 (g++ before 12): by hand, rounding to nearest even.
inline float half_to_float(unsigned short h) {
    unsigned sign = unsigned(h & 0x8000) << 16, exponent = h >> 10 & 31, mantissa = h & 1023;
    if (exponent == 0) return bits<float>(sign | bits<unsigned>(float(mantissa) * 5.9604644775390625e-8f));
    return bits<float>(sign | (exponent == 31 ? 0x7f800000u : (exponent + 112) << 23) | mantissa << 13);
}
inline unsigned short float_to_half(float f) {
    unsigned u = bits<unsigned>(f), sign = u >> 16 & 0x8000, magnitude = u & 0x7fffffff;
    if (magnitude > 0x7f800000) return (unsigned short)(sign | 0x7e00);
    if (magnitude >= 0x477ff000) return (unsigned short)(sign | 0x7c00);
    if (magnitude < 0x38800000)
        return (unsigned short)(sign | unsigned(std::nearbyint(double(bits<float>(magnitude)) * 16777216.0)));
    return (unsigned short)(sign | (magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13);
}
#endif
inline float bfloat16_to_float(unsigned short b) { return bits<float>(unsigned(b) << 16); }
inline unsigned short float_to_bfloat16(float f) {
    unsigned u = bits<unsigned>(f);
    if ((u & 0x7fffffff) > 0x7f800000) return 0x7fff;
    return (unsigned short)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}
}  // namespace hiera_emu

#define HIERA_EMU_FLOAT16(T, to_float, from_float)                                     \
    struct T##_raw { unsigned short x; };                                              \
    struct alignas(2) T {                                                              \
        unsigned short x;                                                              \
        T() = default;                                                                 \
        T(float f) : x(from_float(f)) {}                                               \
        T(double f) : x(from_float(float(f))) {}                                       \
        T(int i) : x(from_float(float(i))) {}                                          \
        T(unsigned i) : x(from_float(float(i))) {}                                     \
        T(long i) : x(from_float(float(i))) {}                                         \
        T(long long i) : x(from_float(float(i))) {}                                    \
        T(T##_raw raw) : x(raw.x) {}                                                   \
        operator float() const { return to_float(x); }                                 \
        static T of_bits(unsigned short b) { return T##_raw{b}; }                      \
        T& operator+=(T o) { return *this = T(float(*this) + float(o)); }              \
        T& operator-=(T o) { return *this = T(float(*this) - float(o)); }              \
        T& operator*=(T o) { return *this = T(float(*this) * float(o)); }              \
        T& operator/=(T o) { return *this = T(float(*this) / float(o)); }              \
    };                                                                                 \
    inline T operator+(T a, T b) { return T(float(a) + float(b)); }                    \
    inline T operator-(T a, T b) { return T(float(a) - float(b)); }                    \
    inline T operator*(T a, T b) { return T(float(a) * float(b)); }                    \
    inline T operator/(T a, T b) { return T(float(a) / float(b)); }                    \
    inline T operator-(T a) { return T(-float(a)); }                                   \
    inline bool operator<(T a, T b) { return float(a) < float(b); }                    \
    inline bool operator>(T a, T b) { return float(a) > float(b); }                    \
    inline bool operator<=(T a, T b) { return float(a) <= float(b); }                  \
    inline bool operator>=(T a, T b) { return float(a) >= float(b); }                  \
    inline bool operator==(T a, T b) { return float(a) == float(b); }                  \
    inline bool operator!=(T a, T b) { return float(a) != float(b); }                  \
    inline T __hadd(T a, T b) { return a + b; }                                        \
    inline T __hsub(T a, T b) { return a - b; }                                        \
    inline T __hmul(T a, T b) { return a * b; }                                        \
    inline T __hdiv(T a, T b) { return a / b; }                                        \
    inline T __hfma(T a, T b, T c) { return T(fmaf(float(a), float(b), float(c))); }   \
    inline T __hneg(T a) { return -a; }                                                \
    inline T __habs(T a) { return T(fabsf(float(a))); }                                \
    inline T __hmax(T a, T b) { return T(fmaxf(float(a), float(b))); }                 \
    inline T __hmin(T a, T b) { return T(fminf(float(a), float(b))); }                 \
    inline bool __hgt(T a, T b) { return a > b; }                                      \
    inline bool __hlt(T a, T b) { return a < b; }                                      \
    inline bool __hge(T a, T b) { return a >= b; }                                     \
    inline bool __hle(T a, T b) { return a <= b; }                                     \
    inline bool __heq(T a, T b) { return a == b; }                                     \
    inline bool __hne(T a, T b) { return a != b; }                                     \
    inline bool __hisnan(T a) { return std::isnan(float(a)); }                         \
    inline T hexp(T a) { return T(expf(float(a))); }                                   \
    inline T hexp2(T a) { return T(exp2f(float(a))); }                                 \
    inline T hlog(T a) { return T(logf(float(a))); }                                   \
    inline T hsqrt(T a) { return T(sqrtf(float(a))); }                                 \
    inline T hrsqrt(T a) { return T(rsqrtf(float(a))); }                               \
    inline T hrcp(T a) { return T(1.0f / float(a)); }                                  \
    inline T htanh(T a) { return T(tanhf(float(a))); }                                 \
    inline T hsin(T a) { return T(sinf(float(a))); }                                   \
    inline T hcos(T a) { return T(cosf(float(a))); }

HIERA_EMU_FLOAT16(__half, hiera_emu::half_to_float, hiera_emu::float_to_half)
HIERA_EMU_FLOAT16(__nv_bfloat16, hiera_emu::bfloat16_to_float, hiera_emu::float_to_bfloat16)
#undef HIERA_EMU_FLOAT16

#define HIERA_EMU_FLOAT16_PAIR(T2, T)                                                                     \
    struct alignas(4) T2 {                                                                                \
        T x, y;                                                                                           \
        T2() = default;                                                                                   \
        T2(T a, T b) : x(a), y(b) {}                                                                      \
    };                                                                                                    \
    inline T2 operator+(T2 a, T2 b) { return {a.x + b.x, a.y + b.y}; }                                    \
    inline T2 operator-(T2 a, T2 b) { return {a.x - b.x, a.y - b.y}; }                                    \
    inline T2 operator*(T2 a, T2 b) { return {a.x * b.x, a.y * b.y}; }                                    \
    inline T2& operator+=(T2& a, T2 b) { return a = a + b; }                                              \
    inline T2 __hadd2(T2 a, T2 b) { return a + b; }                                                       \
    inline T2 __hsub2(T2 a, T2 b) { return a - b; }                                                       \
    inline T2 __hmul2(T2 a, T2 b) { return a * b; }                                                       \
    inline T2 __h2div(T2 a, T2 b) { return {a.x / b.x, a.y / b.y}; }                                      \
    inline T2 __hfma2(T2 a, T2 b, T2 c) { return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)}; }        \
    inline T2 __hmax2(T2 a, T2 b) { return {__hmax(a.x, b.x), __hmax(a.y, b.y)}; }                        \
    inline T2 __hmin2(T2 a, T2 b) { return {__hmin(a.x, b.x), __hmin(a.y, b.y)}; }                        \
    inline T2 __hneg2(T2 a) { return {-a.x, -a.y}; }                                                      \
    inline T2 __habs2(T2 a) { return {__habs(a.x), __habs(a.y)}; }                                        \
    inline T2 h2exp(T2 a) { return {hexp(a.x), hexp(a.y)}; }                                              \
    inline T2 h2rsqrt(T2 a) { return {hrsqrt(a.x), hrsqrt(a.y)}; }                                        \
    inline T2 h2tanh(T2 a) { return {htanh(a.x), htanh(a.y)}; }                                           \
    inline float __low2float(T2 a) { return a.x; }                                                        \
    inline float __high2float(T2 a) { return a.y; }

HIERA_EMU_FLOAT16_PAIR(__half2, __half)
HIERA_EMU_FLOAT16_PAIR(__nv_bfloat162, __nv_bfloat16)
#undef HIERA_EMU_FLOAT16_PAIR

typedef __half half;
typedef __half2 half2;
typedef __nv_bfloat16 nv_bfloat16;
typedef __nv_bfloat162 nv_bfloat162;

inline __half __float2half(float f) { return f; }
inline __half __float2half_rn(float f) { return f; }
inline __half __double2half(double f) { return f; }
inline float __half2float(__half h) { return h; }
inline __half __int2half_rn(int i) { return i; }
inline int __half2int_rn(__half h) { return int(nearbyintf(float(h))); }
inline int __half2int_rz(__half h) { return int(float(h)); }
inline unsigned short __half_as_ushort(__half h) { return h.x; }
inline short __half_as_short(__half h) { return short(h.x); }
inline __half __ushort_as_half(unsigned short b) { return __half::of_bits(b); }
inline __half __short_as_half(short b) { return __half::of_bits((unsigned short)b); }
inline __half2 __float2half2_rn(float f) { return {f, f}; }
inline __half2 __floats2half2_rn(float a, float b) { return {a, b}; }
inline __half2 __float22half2_rn(float2 f) { return {f.x, f.y}; }
inline __half2 __half2half2(__half a) { return {a, a}; }
inline __half2 __halves2half2(__half a, __half b) { return {a, b}; }
inline __half2 make_half2(__half a, __half b) { return {a, b}; }
inline float2 __half22float2(__half2 h) { return {h.x, h.y}; }
inline __half __low2half(__half2 h) { return h.x; }
inline __half __high2half(__half2 h) { return h.y; }
inline __half2 __low2half2(__half2 h) { return {h.x, h.x}; }
inline __half2 __high2half2(__half2 h) { return {h.y, h.y}; }

inline __nv_bfloat16 __float2bfloat16(float f) { return f; }
inline __nv_bfloat16 __float2bfloat16_rn(float f) { return f; }
inline __nv_bfloat16 __double2bfloat16(double f) { return f; }
inline float __bfloat162float(__nv_bfloat16 b) { return b; }
inline __nv_bfloat16 __int2bfloat16_rn(int i) { return i; }
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 b) { return b.x; }
inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short b) { return __nv_bfloat16::of_bits(b); }
inline __nv_bfloat162 __float2bfloat162_rn(float f) { return {f, f}; }
inline __nv_bfloat162 __floats2bfloat162_rn(float a, float b) { return {a, b}; }
inline __nv_bfloat162 __float22bfloat162_rn(float2 f) { return {f.x, f.y}; }
inline __nv_bfloat162 __bfloat162bfloat162(__nv_bfloat16 a) { return {a, a}; }
inline __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 a, __nv_bfloat16 b) { return {a, b}; }
inline __nv_bfloat162 make_bfloat162(__nv_bfloat16 a, __nv_bfloat16 b) { return {a, b}; }
inline float2 __bfloat1622float2(__nv_bfloat162 b) { return {b.x, b.y}; }
inline __nv_bfloat16 __low2bfloat16(__nv_bfloat162 b) { return b.x; }
inline __nv_bfloat16 __high2bfloat16(__nv_bfloat162 b) { return b.y; }
