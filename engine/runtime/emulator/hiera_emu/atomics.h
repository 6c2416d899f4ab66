// Atomics and cached loads. One OS thread runs every CUDA thread, so plain reads and writes are atomic.
#pragma once
#include "warp.h"

namespace hiera_emu {
// A loop that waits for another block must stay a loop: the compiler may not conclude that nothing changes.
inline void read_again() { asm volatile("" ::: "memory"); }
}  // namespace hiera_emu

#define HIERA_EMU_ATOMIC(name, expression)                \
    template <typename T, typename U>                     \
    T name(T* address, U operand) {                       \
        hiera_emu::read_again();                          \
        T old = *address;                                 \
        T value = static_cast<T>(operand);                \
        *address = static_cast<T>(expression);            \
        return old;                                       \
    }                                                     \
    template <typename T, typename U>                     \
    T name##_block(T* address, U operand) {               \
        return name(address, operand);                    \
    }                                                     \
    template <typename T, typename U>                     \
    T name##_system(T* address, U operand) {              \
        return name(address, operand);                    \
    }
HIERA_EMU_ATOMIC(atomicAdd, old + value)
HIERA_EMU_ATOMIC(atomicSub, old - value)
HIERA_EMU_ATOMIC(atomicMax, old > value ? old : value)
HIERA_EMU_ATOMIC(atomicMin, old < value ? old : value)
HIERA_EMU_ATOMIC(atomicExch, value)
HIERA_EMU_ATOMIC(atomicAnd, old& value)
HIERA_EMU_ATOMIC(atomicOr, old | value)
HIERA_EMU_ATOMIC(atomicXor, old ^ value)
HIERA_EMU_ATOMIC(atomicInc, old >= value ? 0 : old + 1)
HIERA_EMU_ATOMIC(atomicDec, old == 0 || old > value ? value : old - 1)
#undef HIERA_EMU_ATOMIC

template <typename T, typename U, typename V>
T atomicCAS(T* address, U expected, V desired) {
    hiera_emu::read_again();
    T old = *address;
    if (old == static_cast<T>(expected)) *address = static_cast<T>(desired);
    return old;
}

inline float2 atomicAdd(float2* address, float2 value) {
    float2 old = *address;
    *address = {old.x + value.x, old.y + value.y};
    return old;
}
inline float4 atomicAdd(float4* address, float4 value) {
    float4 old = *address;
    *address = {old.x + value.x, old.y + value.y, old.z + value.z, old.w + value.w};
    return old;
}

namespace hiera_emu {
template <typename T>
struct Same {
    using type = T;
};
}  // namespace hiera_emu

#define HIERA_EMU_LOAD(name)            \
    template <typename T>               \
    T name(const T* address) {          \
        return *address;                \
    }
HIERA_EMU_LOAD(__ldg)
HIERA_EMU_LOAD(__ldca)
HIERA_EMU_LOAD(__ldcg)
HIERA_EMU_LOAD(__ldcs)
HIERA_EMU_LOAD(__ldlu)
HIERA_EMU_LOAD(__ldcv)
#undef HIERA_EMU_LOAD
#define HIERA_EMU_STORE(name)                                               \
    template <typename T>                                                   \
    void name(T* address, typename hiera_emu::Same<T>::type value) {        \
        *address = value;                                                   \
    }
HIERA_EMU_STORE(__stwb)
HIERA_EMU_STORE(__stcg)
HIERA_EMU_STORE(__stcs)
HIERA_EMU_STORE(__stwt)
#undef HIERA_EMU_STORE

template <typename T>
void __prefetch_global_l1(T) {}
template <typename T>
void __prefetch_global_l2(T) {}
inline size_t __cvta_generic_to_shared(const void* address) { return reinterpret_cast<size_t>(address); }
