// The bits of 16-bit floating-point numbers, to and from float.
#pragma once
#include "math.h"

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
