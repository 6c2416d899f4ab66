// Tensor Core instructions by the layout of PTX: lane = 4 * group + member; a lane holds rows `group` and `group + 8`.
//
// Products are exact; their sum with the accumulator is cut towards zero, as Tensor Cores do: who relies on rounding to
// nearest over a long sum sees the error here too.
#pragma once
#include <cmath>

#include "half_bits.h"
#include "warp.h"

namespace hiera_emu {

inline float tf32_of(unsigned word) { return bits<float>(word & 0xffffe000u); }

// To nearest, ties away from zero; NaN and infinity stay.
inline void cvt_rna_tf32(unsigned& result, float value) {
    unsigned word = bits<unsigned>(value);
    result = std::isfinite(value) ? (word + 0x1000u) & 0xffffe000u : word & 0xffffe000u;
}

inline float towards_zero(double sum) {
    float nearest = float(sum);
    return std::isfinite(nearest) && std::fabs(double(nearest)) > std::fabs(sum) ? std::nextafter(nearest, 0.0f) : nearest;
}

// PACK factors a register: 1 of 32 bits, 2 of 16 bits. k of register r of A and B: PACK * member + 4 * PACK * (r / 2 or r).
template <int PACK, typename Unpack>
void mma_m16n8(float* const (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2], const float (&c)[4], Unpack unpack,
               const char* where) {
    constexpr int K = 8 * PACK;
    float left[16][K], right[K][8];
    Slots slots = exchange(0xffffffffu, a, sizeof a, where, 0);
    for (int source = 0; source < 32; ++source) {
        unsigned words[4];
        std::memcpy(words, slots[source], sizeof words);
        for (int r = 0; r < 4; ++r)
            for (int p = 0; p < PACK; ++p)
                left[source / 4 + 8 * (r & 1)][PACK * (source % 4) + 4 * PACK * (r >> 1) + p] = unpack(words[r], p);
    }
    slots = exchange(0xffffffffu, b, sizeof b, where, 0);
    for (int source = 0; source < 32; ++source) {
        unsigned words[2];
        std::memcpy(words, slots[source], sizeof words);
        for (int r = 0; r < 2; ++r)
            for (int p = 0; p < PACK; ++p)
                right[PACK * (source % 4) + 4 * PACK * r + p][source / 4] = unpack(words[r], p);
    }
    for (int r = 0; r < 4; ++r) {
        const int row = lane() / 4 + 8 * (r >> 1), column = 2 * (lane() % 4) + (r & 1);
        double sum = c[r];
        for (int k = 0; k < K; ++k) sum += double(left[row][k]) * double(right[k][column]);
        *d[r] = towards_zero(sum);
    }
}

#define HIERA_EMU_MMA(name, pack, unpack)                                                                              \
    inline void name(float& d0, float& d1, float& d2, float& d3, unsigned a0, unsigned a1, unsigned a2, unsigned a3,   \
                     unsigned b0, unsigned b1, float c0, float c1, float c2, float c3) {                               \
        mma_m16n8<pack>({&d0, &d1, &d2, &d3}, {a0, a1, a2, a3}, {b0, b1}, {c0, c1, c2, c3},                            \
                        [](unsigned word, int part) { (void)part; return unpack; }, #name);                            \
    }
HIERA_EMU_MMA(mma_m16n8k8_tf32, 1, tf32_of(word))
HIERA_EMU_MMA(mma_m16n8k16_half, 2, half_to_float((unsigned short)(word >> 16 * part)))
HIERA_EMU_MMA(mma_m16n8k16_bfloat16, 2, bfloat16_to_float((unsigned short)(word >> 16 * part)))
#undef HIERA_EMU_MMA

}  // namespace hiera_emu
