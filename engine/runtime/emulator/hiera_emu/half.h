// __half and __nv_bfloat16: 16 bits of storage, arithmetic through float, rounded after each
// operation as the hardware's scalar instructions do.
#pragma once
#include "all.h"
#include "half_bits.h"

struct __half_raw {
    unsigned short x;
};
struct __nv_bfloat16_raw {
    unsigned short x;
};

// torch compiles extensions without the implicit conversions and without __half's operators, and so do we: with them
// an expression of c10::Half would be ambiguous.
#ifndef __CUDA_NO_HALF_CONVERSIONS__
#define HIERA_EMU_HALF_CONVERSIONS(T, to_float, from_float)   \
    T(float f) : x(from_float(f)) {}                          \
    T(double f) : x(from_float(float(f))) {}                  \
    T(int i) : x(from_float(float(i))) {}                     \
    T(unsigned i) : x(from_float(float(i))) {}                \
    operator float() const { return to_float(x); }
#else
#define HIERA_EMU_HALF_CONVERSIONS(T, to_float, from_float)
#endif
#ifndef __CUDA_NO_BFLOAT16_CONVERSIONS__
#define HIERA_EMU_BFLOAT16_CONVERSIONS(T, to_float, from_float)   \
    T(float f) : x(from_float(f)) {}                              \
    T(double f) : x(from_float(float(f))) {}                      \
    T(int i) : x(from_float(float(i))) {}                         \
    T(unsigned i) : x(from_float(float(i))) {}                    \
    operator float() const { return to_float(x); }
#else
#define HIERA_EMU_BFLOAT16_CONVERSIONS(T, to_float, from_float)
#endif

struct alignas(2) __half {
    unsigned short x;
    __half() = default;
    __half(__half_raw raw) : x(raw.x) {}
    operator __half_raw() const { return {x}; }
    HIERA_EMU_HALF_CONVERSIONS(__half, hiera_emu::half_to_float, hiera_emu::float_to_half)
};
struct alignas(2) __nv_bfloat16 {
    unsigned short x;
    __nv_bfloat16() = default;
    __nv_bfloat16(__nv_bfloat16_raw raw) : x(raw.x) {}
    operator __nv_bfloat16_raw() const { return {x}; }
    HIERA_EMU_BFLOAT16_CONVERSIONS(__nv_bfloat16, hiera_emu::bfloat16_to_float, hiera_emu::float_to_bfloat16)
};
struct alignas(4) __half2 {
    __half x, y;
    __half2() = default;
    __half2(__half a, __half b) : x(a), y(b) {}
};
struct alignas(4) __nv_bfloat162 {
    __nv_bfloat16 x, y;
    __nv_bfloat162() = default;
    __nv_bfloat162(__nv_bfloat16 a, __nv_bfloat16 b) : x(a), y(b) {}
};
typedef __half half;
typedef __half2 half2;
typedef __nv_bfloat16 nv_bfloat16;
typedef __nv_bfloat162 nv_bfloat162;

namespace hiera_emu {
inline float to_float(__half h) { return half_to_float(h.x); }
inline float to_float(__nv_bfloat16 b) { return bfloat16_to_float(b.x); }
template <typename T>
constexpr bool is_float16 = std::is_same_v<T, __half> || std::is_same_v<T, __nv_bfloat16>;

// Any arithmetic type to any other, the 16-bit ones by way of float.
template <typename To, typename From>
To convert(From from) {
    if constexpr (std::is_same_v<To, From>) return from;
    else if constexpr (is_float16<From>) return convert<To>(to_float(from));
    else if constexpr (std::is_same_v<To, __half>) return __half_raw{float_to_half(float(from))};
    else if constexpr (std::is_same_v<To, __nv_bfloat16>) return __nv_bfloat16_raw{float_to_bfloat16(float(from))};
    else return To(from);
}
}  // namespace hiera_emu

// The named operations, for T and for pairs of T: always there.
#define HIERA_EMU_FLOAT16(T)                                                                              \
    inline T __hadd(T a, T b) { return hiera_emu::convert<T>(hiera_emu::to_float(a) + hiera_emu::to_float(b)); } \
    inline T __hsub(T a, T b) { return hiera_emu::convert<T>(hiera_emu::to_float(a) - hiera_emu::to_float(b)); } \
    inline T __hmul(T a, T b) { return hiera_emu::convert<T>(hiera_emu::to_float(a) * hiera_emu::to_float(b)); } \
    inline T __hdiv(T a, T b) { return hiera_emu::convert<T>(hiera_emu::to_float(a) / hiera_emu::to_float(b)); } \
    inline T __hadd_rn(T a, T b) { return __hadd(a, b); }                                                 \
    inline T __hmul_rn(T a, T b) { return __hmul(a, b); }                                                 \
    inline T __hfma(T a, T b, T c) {                                                                      \
        return hiera_emu::convert<T>(fmaf(hiera_emu::to_float(a), hiera_emu::to_float(b), hiera_emu::to_float(c))); \
    }                                                                                                     \
    inline T __hneg(T a) { return hiera_emu::convert<T>(-hiera_emu::to_float(a)); }                       \
    inline T __habs(T a) { return hiera_emu::convert<T>(fabsf(hiera_emu::to_float(a))); }                 \
    inline T __hmax(T a, T b) { return hiera_emu::convert<T>(fmaxf(hiera_emu::to_float(a), hiera_emu::to_float(b))); } \
    inline T __hmin(T a, T b) { return hiera_emu::convert<T>(fminf(hiera_emu::to_float(a), hiera_emu::to_float(b))); } \
    inline bool __hgt(T a, T b) { return hiera_emu::to_float(a) > hiera_emu::to_float(b); }               \
    inline bool __hlt(T a, T b) { return hiera_emu::to_float(a) < hiera_emu::to_float(b); }               \
    inline bool __hge(T a, T b) { return hiera_emu::to_float(a) >= hiera_emu::to_float(b); }              \
    inline bool __hle(T a, T b) { return hiera_emu::to_float(a) <= hiera_emu::to_float(b); }              \
    inline bool __heq(T a, T b) { return hiera_emu::to_float(a) == hiera_emu::to_float(b); }              \
    inline bool __hne(T a, T b) { return hiera_emu::to_float(a) != hiera_emu::to_float(b); }              \
    inline bool __hisnan(T a) { return std::isnan(hiera_emu::to_float(a)); }                              \
    inline bool __hisinf(T a) { return std::isinf(hiera_emu::to_float(a)); }                              \
    inline T hexp(T a) { return hiera_emu::convert<T>(expf(hiera_emu::to_float(a))); }                    \
    inline T hexp2(T a) { return hiera_emu::convert<T>(exp2f(hiera_emu::to_float(a))); }                  \
    inline T hlog(T a) { return hiera_emu::convert<T>(logf(hiera_emu::to_float(a))); }                    \
    inline T hlog2(T a) { return hiera_emu::convert<T>(log2f(hiera_emu::to_float(a))); }                  \
    inline T hsqrt(T a) { return hiera_emu::convert<T>(sqrtf(hiera_emu::to_float(a))); }                  \
    inline T hrsqrt(T a) { return hiera_emu::convert<T>(rsqrtf(hiera_emu::to_float(a))); }                \
    inline T hrcp(T a) { return hiera_emu::convert<T>(1.0f / hiera_emu::to_float(a)); }                   \
    inline T htanh(T a) { return hiera_emu::convert<T>(tanhf(hiera_emu::to_float(a))); }                  \
    inline T hsin(T a) { return hiera_emu::convert<T>(sinf(hiera_emu::to_float(a))); }                    \
    inline T hcos(T a) { return hiera_emu::convert<T>(cosf(hiera_emu::to_float(a))); }                    \
    inline T hfloor(T a) { return hiera_emu::convert<T>(floorf(hiera_emu::to_float(a))); }                \
    inline T hceil(T a) { return hiera_emu::convert<T>(ceilf(hiera_emu::to_float(a))); }                  \
    inline T atomicAdd(T* address, T value) {                                                             \
        T old = *address;                                                                                 \
        *address = __hadd(old, value);                                                                    \
        return old;                                                                                       \
    }
#define HIERA_EMU_FLOAT16_PAIR(T2)                                                                        \
    inline T2 __hadd2(T2 a, T2 b) { return {__hadd(a.x, b.x), __hadd(a.y, b.y)}; }                        \
    inline T2 __hsub2(T2 a, T2 b) { return {__hsub(a.x, b.x), __hsub(a.y, b.y)}; }                        \
    inline T2 __hmul2(T2 a, T2 b) { return {__hmul(a.x, b.x), __hmul(a.y, b.y)}; }                        \
    inline T2 __h2div(T2 a, T2 b) { return {__hdiv(a.x, b.x), __hdiv(a.y, b.y)}; }                        \
    inline T2 __hfma2(T2 a, T2 b, T2 c) { return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)}; }        \
    inline T2 __hmax2(T2 a, T2 b) { return {__hmax(a.x, b.x), __hmax(a.y, b.y)}; }                        \
    inline T2 __hmin2(T2 a, T2 b) { return {__hmin(a.x, b.x), __hmin(a.y, b.y)}; }                        \
    inline T2 __hneg2(T2 a) { return {__hneg(a.x), __hneg(a.y)}; }                                        \
    inline T2 __habs2(T2 a) { return {__habs(a.x), __habs(a.y)}; }                                        \
    inline T2 h2exp(T2 a) { return {hexp(a.x), hexp(a.y)}; }                                              \
    inline T2 h2log(T2 a) { return {hlog(a.x), hlog(a.y)}; }                                              \
    inline T2 h2sqrt(T2 a) { return {hsqrt(a.x), hsqrt(a.y)}; }                                           \
    inline T2 h2rsqrt(T2 a) { return {hrsqrt(a.x), hrsqrt(a.y)}; }                                        \
    inline T2 h2rcp(T2 a) { return {hrcp(a.x), hrcp(a.y)}; }                                              \
    inline T2 h2tanh(T2 a) { return {htanh(a.x), htanh(a.y)}; }                                           \
    inline float __low2float(T2 a) { return hiera_emu::to_float(a.x); }                                   \
    inline float __high2float(T2 a) { return hiera_emu::to_float(a.y); }                                  \
    inline T2 atomicAdd(T2* address, T2 value) {                                                          \
        T2 old = *address;                                                                                \
        *address = __hadd2(old, value);                                                                   \
        return old;                                                                                       \
    }
HIERA_EMU_FLOAT16(__half)
HIERA_EMU_FLOAT16(__nv_bfloat16)
HIERA_EMU_FLOAT16_PAIR(__half2)
HIERA_EMU_FLOAT16_PAIR(__nv_bfloat162)
#undef HIERA_EMU_FLOAT16
#undef HIERA_EMU_FLOAT16_PAIR

#define HIERA_EMU_FLOAT16_OPERATORS(T)                          \
    inline T operator+(T a, T b) { return __hadd(a, b); }       \
    inline T operator-(T a, T b) { return __hsub(a, b); }       \
    inline T operator*(T a, T b) { return __hmul(a, b); }       \
    inline T operator/(T a, T b) { return __hdiv(a, b); }       \
    inline T operator-(T a) { return __hneg(a); }               \
    inline T& operator+=(T& a, T b) { return a = __hadd(a, b); } \
    inline T& operator-=(T& a, T b) { return a = __hsub(a, b); } \
    inline T& operator*=(T& a, T b) { return a = __hmul(a, b); } \
    inline T& operator/=(T& a, T b) { return a = __hdiv(a, b); } \
    inline bool operator<(T a, T b) { return __hlt(a, b); }     \
    inline bool operator>(T a, T b) { return __hgt(a, b); }     \
    inline bool operator<=(T a, T b) { return __hle(a, b); }    \
    inline bool operator>=(T a, T b) { return __hge(a, b); }    \
    inline bool operator==(T a, T b) { return __heq(a, b); }    \
    inline bool operator!=(T a, T b) { return __hne(a, b); }
#define HIERA_EMU_FLOAT16_PAIR_OPERATORS(T2)                        \
    inline T2 operator+(T2 a, T2 b) { return __hadd2(a, b); }       \
    inline T2 operator-(T2 a, T2 b) { return __hsub2(a, b); }       \
    inline T2 operator*(T2 a, T2 b) { return __hmul2(a, b); }       \
    inline T2 operator/(T2 a, T2 b) { return __h2div(a, b); }       \
    inline T2& operator+=(T2& a, T2 b) { return a = __hadd2(a, b); } \
    inline T2& operator*=(T2& a, T2 b) { return a = __hmul2(a, b); }
#ifndef __CUDA_NO_HALF_OPERATORS__
HIERA_EMU_FLOAT16_OPERATORS(__half)
#endif
#ifndef __CUDA_NO_HALF2_OPERATORS__
HIERA_EMU_FLOAT16_PAIR_OPERATORS(__half2)
#endif
#ifndef __CUDA_NO_BFLOAT16_OPERATORS__
HIERA_EMU_FLOAT16_OPERATORS(__nv_bfloat16)
#endif
#ifndef __CUDA_NO_BFLOAT162_OPERATORS__
HIERA_EMU_FLOAT16_PAIR_OPERATORS(__nv_bfloat162)
#endif
#undef HIERA_EMU_FLOAT16_OPERATORS
#undef HIERA_EMU_FLOAT16_PAIR_OPERATORS

// Conversions by name.
#define HIERA_EMU_CONVERT(name, To, From) \
    inline To name(From from) { return hiera_emu::convert<To>(from); }
HIERA_EMU_CONVERT(__float2half, __half, float)
HIERA_EMU_CONVERT(__float2half_rn, __half, float)
HIERA_EMU_CONVERT(__double2half, __half, double)
HIERA_EMU_CONVERT(__half2float, float, __half)
HIERA_EMU_CONVERT(__int2half_rn, __half, int)
HIERA_EMU_CONVERT(__uint2half_rn, __half, unsigned)
HIERA_EMU_CONVERT(__half2int_rz, int, __half)
HIERA_EMU_CONVERT(__float2bfloat16, __nv_bfloat16, float)
HIERA_EMU_CONVERT(__float2bfloat16_rn, __nv_bfloat16, float)
HIERA_EMU_CONVERT(__double2bfloat16, __nv_bfloat16, double)
HIERA_EMU_CONVERT(__bfloat162float, float, __nv_bfloat16)
HIERA_EMU_CONVERT(__int2bfloat16_rn, __nv_bfloat16, int)
HIERA_EMU_CONVERT(__bfloat162int_rz, int, __nv_bfloat16)
#undef HIERA_EMU_CONVERT
inline int __half2int_rn(__half h) { return int(nearbyintf(hiera_emu::to_float(h))); }
inline unsigned short __half_as_ushort(__half h) { return h.x; }
inline short __half_as_short(__half h) { return short(h.x); }
inline __half __ushort_as_half(unsigned short bits) { return __half_raw{bits}; }
inline __half __short_as_half(short bits) { return __half_raw{(unsigned short)bits}; }
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 b) { return b.x; }
inline short __bfloat16_as_short(__nv_bfloat16 b) { return short(b.x); }
inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits) { return __nv_bfloat16_raw{bits}; }
inline __nv_bfloat16 __short_as_bfloat16(short bits) { return __nv_bfloat16_raw{(unsigned short)bits}; }

inline __half2 __half2half2(__half a) { return {a, a}; }
inline __half2 __halves2half2(__half a, __half b) { return {a, b}; }
inline __half2 make_half2(__half a, __half b) { return {a, b}; }
inline __half2 __float2half2_rn(float f) { return __half2half2(__float2half(f)); }
inline __half2 __floats2half2_rn(float a, float b) { return {__float2half(a), __float2half(b)}; }
inline __half2 __float22half2_rn(float2 f) { return __floats2half2_rn(f.x, f.y); }
inline float2 __half22float2(__half2 h) { return {__half2float(h.x), __half2float(h.y)}; }
inline __half __low2half(__half2 h) { return h.x; }
inline __half __high2half(__half2 h) { return h.y; }
inline __half2 __low2half2(__half2 h) { return {h.x, h.x}; }
inline __half2 __high2half2(__half2 h) { return {h.y, h.y}; }
inline __half2 __lowhigh2highlow(__half2 h) { return {h.y, h.x}; }

inline __nv_bfloat162 __bfloat162bfloat162(__nv_bfloat16 a) { return {a, a}; }
inline __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 a, __nv_bfloat16 b) { return {a, b}; }
inline __nv_bfloat162 make_bfloat162(__nv_bfloat16 a, __nv_bfloat16 b) { return {a, b}; }
inline __nv_bfloat162 __float2bfloat162_rn(float f) { return __bfloat162bfloat162(__float2bfloat16(f)); }
inline __nv_bfloat162 __floats2bfloat162_rn(float a, float b) { return {__float2bfloat16(a), __float2bfloat16(b)}; }
inline __nv_bfloat162 __float22bfloat162_rn(float2 f) { return __floats2bfloat162_rn(f.x, f.y); }
inline float2 __bfloat1622float2(__nv_bfloat162 b) { return {__bfloat162float(b.x), __bfloat162float(b.y)}; }
inline __nv_bfloat16 __low2bfloat16(__nv_bfloat162 b) { return b.x; }
inline __nv_bfloat16 __high2bfloat16(__nv_bfloat162 b) { return b.y; }
inline __nv_bfloat162 __low2bfloat162(__nv_bfloat162 b) { return {b.x, b.x}; }
inline __nv_bfloat162 __high2bfloat162(__nv_bfloat162 b) { return {b.y, b.y}; }
