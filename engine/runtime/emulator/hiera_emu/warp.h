// Barriers and warp collectives. A collective makes its lanes wait until all lanes named by the mask
// (and still alive) have published their value; the last one to come does not wait.
#pragma once
#include "launch.h"

namespace hiera_emu {

using Slots = unsigned char (*)[16];

inline int lane() { return block.current->lane; }
inline unsigned live_lanes() { return block.warps[block.current->warp].alive; }

inline Group& group_of(Warp& warp, unsigned mask) {
    for (size_t i = 0; i < warp.groups_used; ++i)
        if (warp.groups[i].mask == mask) return warp.groups[i];
    if (warp.groups_used == warp.groups.size()) warp.groups.emplace_back();
    Group& group = warp.groups[warp.groups_used++];
    group.mask = mask;
    group.arrived = 0;
    return group;
}

// Publish `bytes` (at most 16) of `value`; the 32 lanes' values of this exchange come back.
inline Slots exchange(unsigned mask, const void* value, size_t bytes, const char* where, int line) {
    Thread& self = *block.current;
    Warp& warp = block.warps[self.warp];
    if (!(mask >> self.lane & 1))
        die(std::string(where) + " at line " + std::to_string(line) + ": lane " + std::to_string(self.lane) +
            " calls with a mask that leaves it out");
    Group& group = group_of(warp, mask);
    const unsigned generation = group.generation;
    Slots slots = group.slots[generation & 1];
    if (bytes) std::memcpy(slots[self.lane], value, bytes);
    group.arrived |= 1u << self.lane;
    if (complete(warp, group)) {
        release(group);
    } else {
        self.wait = Wait::warp;
        self.group = &group;
        self.generation = generation;
        self.where = where;
        self.line = line;
        yield();
    }
    return slots;
}

template <typename T>
T from_lane(unsigned mask, const T& value, int source, const char* where, int line) {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 16, "shuffles move up to 16 bytes");
    Slots slots = exchange(mask, &value, sizeof value, where, line);
    T result;
    std::memcpy(static_cast<void*>(&result), slots[source & 31], sizeof result);
    return result;
}

template <typename T, typename Combine>
T reduce_lanes(unsigned mask, const T& value, Combine combine, const char* where, int line) {
    unsigned lanes = mask & live_lanes();
    Slots slots = exchange(mask, &value, sizeof value, where, line);
    bool first = true;
    T result{};
    for (int i = 0; i < 32; ++i) {
        if (!(lanes >> i & 1)) continue;
        T other;
        std::memcpy(static_cast<void*>(&other), slots[i], sizeof other);
        result = first ? other : combine(result, other);
        first = false;
    }
    return result;
}

}  // namespace hiera_emu

inline void __syncthreads(int line = __builtin_LINE()) { hiera_emu::wait_at_barrier("__syncthreads", line); }
inline int __syncthreads_or(int predicate, int line = __builtin_LINE()) {
    hiera_emu::block.any |= predicate != 0;
    hiera_emu::wait_at_barrier("__syncthreads_or", line);
    return hiera_emu::block.any_result;
}
inline int __syncthreads_and(int predicate, int line = __builtin_LINE()) {
    hiera_emu::block.all &= predicate != 0;
    hiera_emu::wait_at_barrier("__syncthreads_and", line);
    return hiera_emu::block.all_result;
}
inline int __syncthreads_count(int predicate, int line = __builtin_LINE()) {
    hiera_emu::block.count += predicate != 0;
    hiera_emu::wait_at_barrier("__syncthreads_count", line);
    return hiera_emu::block.count_result;
}
inline void __syncwarp(unsigned mask = 0xffffffffu, int line = __builtin_LINE()) {
    hiera_emu::exchange(mask, nullptr, 0, "__syncwarp", line);
}
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() {}
inline void __nanosleep(unsigned) {}
inline void __trap() { hiera_emu::die("block " + hiera_emu::text_of(blockIdx) + " reached __trap()"); }
inline long long clock64() {
    static long long ticks;
    return ticks += 16;
}

template <typename T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32, int line = __builtin_LINE()) {
    int base = hiera_emu::lane() & ~(width - 1);
    return hiera_emu::from_lane(mask, value, base + (source & (width - 1)), "__shfl_sync", line);
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, int line = __builtin_LINE()) {
    int lane = hiera_emu::lane();
    bool inside = (lane & (width - 1)) + int(delta) < width;
    return hiera_emu::from_lane(mask, value, inside ? lane + int(delta) : lane, "__shfl_down_sync", line);
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, int line = __builtin_LINE()) {
    int lane = hiera_emu::lane();
    bool inside = (lane & (width - 1)) >= int(delta);
    return hiera_emu::from_lane(mask, value, inside ? lane - int(delta) : lane, "__shfl_up_sync", line);
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32, int line = __builtin_LINE()) {
    int lane = hiera_emu::lane();
    int other = lane ^ lanes;
    // A lane may read from its own part or a lower one, as the hardware does.
    bool inside = (other & ~(width - 1)) <= (lane & ~(width - 1));
    return hiera_emu::from_lane(mask, value, inside ? other : lane, "__shfl_xor_sync", line);
}

inline unsigned __ballot_sync(unsigned mask, int predicate, int line = __builtin_LINE()) {
    unsigned bit = predicate ? 1u << hiera_emu::lane() : 0;
    return hiera_emu::reduce_lanes(mask, bit, [](unsigned a, unsigned b) { return a | b; }, "__ballot_sync", line);
}
inline int __any_sync(unsigned mask, int predicate, int line = __builtin_LINE()) {
    return __ballot_sync(mask, predicate, line) != 0;
}
inline int __all_sync(unsigned mask, int predicate, int line = __builtin_LINE()) {
    return __ballot_sync(mask, !predicate, line) == 0;
}
inline int __uni_sync(unsigned mask, int predicate, int line = __builtin_LINE()) {
    unsigned yes = __ballot_sync(mask, predicate, line);
    return yes == 0 || yes == (mask & hiera_emu::live_lanes());
}
template <typename T>
unsigned __match_any_sync(unsigned mask, T value, int line = __builtin_LINE()) {
    unsigned lanes = mask & hiera_emu::live_lanes(), same = 0;
    hiera_emu::Slots slots = hiera_emu::exchange(mask, &value, sizeof value, "__match_any_sync", line);
    for (int i = 0; i < 32; ++i)
        if ((lanes >> i & 1) && std::memcmp(slots[i], &value, sizeof value) == 0) same |= 1u << i;
    return same;
}
template <typename T>
unsigned __match_all_sync(unsigned mask, T value, int* predicate, int line = __builtin_LINE()) {
    unsigned lanes = mask & hiera_emu::live_lanes();
    *predicate = __match_any_sync(mask, value, line) == lanes;
    return *predicate ? lanes : 0;
}

#define HIERA_EMU_REDUCE(name, expression)                                                              \
    template <typename T>                                                                               \
    T name(unsigned mask, T value, int line = __builtin_LINE()) {                                       \
        return hiera_emu::reduce_lanes(mask, value, [](T a, T b) -> T { return expression; }, #name, line); \
    }
HIERA_EMU_REDUCE(__reduce_add_sync, a + b)
HIERA_EMU_REDUCE(__reduce_min_sync, a < b ? a : b)
HIERA_EMU_REDUCE(__reduce_max_sync, a > b ? a : b)
HIERA_EMU_REDUCE(__reduce_and_sync, a & b)
HIERA_EMU_REDUCE(__reduce_or_sync, a | b)
HIERA_EMU_REDUCE(__reduce_xor_sync, a ^ b)
#undef HIERA_EMU_REDUCE

// Divergence is not modelled: all live lanes of the warp.
inline unsigned __activemask() { return hiera_emu::live_lanes(); }
