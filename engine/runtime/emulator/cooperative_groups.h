// cooperative_groups for a cluster, a block and for tiles of up to 32 lanes. Grid groups need all blocks to run
// together, which the emulator has not.
#pragma once
#include <hiera_emu/all.h>

namespace cooperative_groups {

namespace emulated {
inline unsigned rank_in_block() { return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z); }
inline unsigned block_size() { return blockDim.x * blockDim.y * blockDim.z; }
}  // namespace emulated

class thread_group {
public:
    thread_group(unsigned mask, unsigned size, unsigned rank, bool whole_block)
        : mask_(mask), size_(size), rank_(rank), whole_block_(whole_block) {}
    unsigned size() const { return size_; }
    unsigned num_threads() const { return size_; }
    unsigned thread_rank() const { return rank_; }
    void sync(int line = __builtin_LINE()) const {
        if (whole_block_) __syncthreads(line);
        else __syncwarp(mask_, line);
    }

protected:
    unsigned mask_, size_, rank_;
    bool whole_block_;
};

class thread_block : public thread_group {
public:
    thread_block() : thread_group(0, emulated::block_size(), emulated::rank_in_block(), true) {}
    static dim3 thread_index() { return threadIdx; }
    static dim3 group_index() { return blockIdx; }
    static dim3 dim_threads() { return blockDim; }
    static dim3 group_dim() { return blockDim; }
};
inline thread_block this_thread_block() { return {}; }

class cluster_group {
public:
    static void sync(int line = __builtin_LINE()) { hiera_emu::wait_at_cluster("cluster.sync", line); }
    static unsigned block_rank() { return cluster().rank(); }
    static unsigned num_blocks() { return cluster().size(); }
    static dim3 dim_blocks() { return cluster().shape(); }
    static dim3 block_index() {
        const dim3 shape = dim_blocks();
        return {blockIdx.x % shape.x, blockIdx.y % shape.y, blockIdx.z % shape.z};
    }
    static unsigned thread_rank() { return block_rank() * emulated::block_size() + emulated::rank_in_block(); }
    static unsigned num_threads() { return num_blocks() * emulated::block_size(); }
    static unsigned size() { return num_threads(); }
    template <typename T>
    static T* map_shared_rank(T* address, unsigned rank) {
        return static_cast<T*>(cluster().map(address, rank));
    }

private:
    static hiera_emu::Cluster& cluster() { return *hiera_emu::Cluster::current; }
};
inline cluster_group this_cluster() { return {}; }

template <unsigned Size, typename Parent = void>
class thread_block_tile : public thread_group {
    static_assert(Size && Size <= 32 && (Size & (Size - 1)) == 0, "tiles of 1, 2, 4, 8, 16 or 32 lanes are emulated");

public:
    thread_block_tile(unsigned meta_rank, unsigned meta_size)
        : thread_group(lanes(), Size, unsigned(hiera_emu::lane()) % Size, false),
          meta_rank_(meta_rank), meta_size_(meta_size) {}
    template <typename Other>
    thread_block_tile(const thread_block_tile<Size, Other>& other)
        : thread_block_tile(other.meta_group_rank(), other.meta_group_size()) {}

    static constexpr unsigned size() { return Size; }
    static constexpr unsigned num_threads() { return Size; }
    unsigned meta_group_rank() const { return meta_rank_; }
    unsigned meta_group_size() const { return meta_size_; }

    template <typename T>
    T shfl(T value, int rank, int line = __builtin_LINE()) const {
        return __shfl_sync(mask_, value, rank, Size, line);
    }
    template <typename T>
    T shfl_down(T value, unsigned delta, int line = __builtin_LINE()) const {
        return __shfl_down_sync(mask_, value, delta, Size, line);
    }
    template <typename T>
    T shfl_up(T value, unsigned delta, int line = __builtin_LINE()) const {
        return __shfl_up_sync(mask_, value, delta, Size, line);
    }
    template <typename T>
    T shfl_xor(T value, int lanes, int line = __builtin_LINE()) const {
        return __shfl_xor_sync(mask_, value, lanes, Size, line);
    }
    int any(int predicate, int line = __builtin_LINE()) const { return __any_sync(mask_, predicate, line); }
    int all(int predicate, int line = __builtin_LINE()) const { return __all_sync(mask_, predicate, line); }
    unsigned ballot(int predicate, int line = __builtin_LINE()) const {
        return __ballot_sync(mask_, predicate, line) >> first_lane();
    }
    template <typename T>
    unsigned match_any(T value, int line = __builtin_LINE()) const {
        return __match_any_sync(mask_, value, line) >> first_lane();
    }
    unsigned mask() const { return mask_; }

private:
    static unsigned first_lane() { return unsigned(hiera_emu::lane()) & ~(Size - 1); }
    static unsigned lanes() {
        // The last warp of a block may be partial.
        int in_warp = int(emulated::block_size()) - int(emulated::rank_in_block() & ~31u);
        unsigned present = in_warp >= 32 ? 0xffffffffu : (1u << in_warp) - 1;
        return (Size == 32 ? 0xffffffffu : ((1u << (Size & 31)) - 1) << first_lane()) & present;
    }
    unsigned meta_rank_, meta_size_;
};

template <unsigned Size, typename Parent>
thread_block_tile<Size> tiled_partition(const Parent& parent) {
    return {parent.thread_rank() / Size, (parent.num_threads() + Size - 1) / Size};
}
inline thread_group tiled_partition(const thread_group& parent, unsigned size) {
    unsigned lane = unsigned(hiera_emu::lane()), first = lane & ~(size - 1);
    unsigned mask = size == 32 ? 0xffffffffu : ((1u << size) - 1) << first;
    return {mask & hiera_emu::live_lanes(), size, parent.thread_rank() % size, false};
}

template <typename Group>
void sync(const Group& group, int line = __builtin_LINE()) { group.sync(line); }
template <typename Group>
unsigned thread_rank(const Group& group) { return group.thread_rank(); }
template <typename Group>
unsigned group_size(const Group& group) { return group.num_threads(); }

template <typename T = void> struct plus { template <typename U> U operator()(U a, U b) const { return a + b; } };
template <typename T = void> struct less { template <typename U> U operator()(U a, U b) const { return a < b ? a : b; } };
template <typename T = void> struct greater { template <typename U> U operator()(U a, U b) const { return a > b ? a : b; } };
template <typename T = void> struct bit_and { template <typename U> U operator()(U a, U b) const { return a & b; } };
template <typename T = void> struct bit_or { template <typename U> U operator()(U a, U b) const { return a | b; } };
template <typename T = void> struct bit_xor { template <typename U> U operator()(U a, U b) const { return a ^ b; } };

// Butterfly order, as NVIDIA's, so that float sums agree in every lane.
template <unsigned Size, typename Parent, typename T, typename Combine>
T reduce(const thread_block_tile<Size, Parent>& tile, T value, Combine combine, int line = __builtin_LINE()) {
    for (unsigned lanes = Size / 2; lanes; lanes /= 2) value = combine(value, tile.shfl_xor(value, int(lanes), line));
    return value;
}
template <unsigned Size, typename Parent, typename T, typename Combine>
T inclusive_scan(const thread_block_tile<Size, Parent>& tile, T value, Combine combine, int line = __builtin_LINE()) {
    for (unsigned delta = 1; delta < Size; delta *= 2) {
        T below = tile.shfl_up(value, delta, line);
        if (tile.thread_rank() >= delta) value = combine(below, value);
    }
    return value;
}
template <unsigned Size, typename Parent, typename T>
T inclusive_scan(const thread_block_tile<Size, Parent>& tile, T value) { return inclusive_scan(tile, value, plus<T>{}); }
template <unsigned Size, typename Parent, typename T>
T exclusive_scan(const thread_block_tile<Size, Parent>& tile, T value) {
    T below = tile.shfl_up(inclusive_scan(tile, value), 1);
    return tile.thread_rank() ? below : T{};
}

}  // namespace cooperative_groups
