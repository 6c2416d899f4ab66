// float4 and its relatives, with CUDA's sizes and alignments.
#pragma once
#include <cstddef>

#include "qualifiers.h"

#define HIERA_EMU_VECTORS(T, name)                                                            \
    struct name##1 { T x; };                                                                  \
    struct alignas(2 * sizeof(T)) name##2 { T x, y; };                                        \
    struct name##3 { T x, y, z; };                                                            \
    struct alignas(4 * sizeof(T) > 16 ? 16 : 4 * sizeof(T)) name##4 { T x, y, z, w; };        \
    constexpr name##1 make_##name##1(T x) { return {x}; }                                     \
    constexpr name##2 make_##name##2(T x, T y) { return {x, y}; }                             \
    constexpr name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; }                     \
    constexpr name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }

HIERA_EMU_VECTORS(signed char, char)
HIERA_EMU_VECTORS(unsigned char, uchar)
HIERA_EMU_VECTORS(short, short)
HIERA_EMU_VECTORS(unsigned short, ushort)
HIERA_EMU_VECTORS(int, int)
HIERA_EMU_VECTORS(unsigned, uint)
HIERA_EMU_VECTORS(long, long)
HIERA_EMU_VECTORS(unsigned long, ulong)
HIERA_EMU_VECTORS(long long, longlong)
HIERA_EMU_VECTORS(unsigned long long, ulonglong)
HIERA_EMU_VECTORS(float, float)
HIERA_EMU_VECTORS(double, double)
#undef HIERA_EMU_VECTORS

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
    constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
    constexpr operator uint3() const { return {x, y, z}; }
};
