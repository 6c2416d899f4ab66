// Blocks that run together and reach each other's shared memory. A plain launch is one of clusters of one block.
//
// All blocks of a kernel share one place for static and one for dynamic shared memory, so one block runs at a time,
// until its threads have ended or wait at the cluster's barrier; then its shared memory is put aside, where others
// find it, and the next block's is put back.
#pragma once
#include "guard.h"

namespace hiera_emu {

constexpr size_t kSharedDefault = 48 << 10;
inline size_t shared_optin_limit = 227 << 10;   // Largest dynamic shared memory of a block (sm_90).
inline size_t shared_optin = kSharedDefault;    // Raised by cudaFuncSetAttribute.
constexpr size_t kSharedCapacity = 256 << 10;
constexpr size_t kSharedWatched = 8 << 10;      // So far behind the end a stray write is found.
// One fixed place, so that `extern __shared__` can be an ordinary pointer constant.
alignas(1024) inline unsigned char dynamic_shared[kSharedCapacity];
constexpr unsigned kClusterDefault = 8;
inline unsigned cluster_limit = kClusterDefault;  // Raised to 16 by cudaFuncSetAttribute.

// Static shared variables hold garbage at the start of each block on a GPU. Bytes of 0xff are NaN
// in every floating-point type and -1 in the others, so that reading them shows.
template <typename T>
void poison_shared(T& variable) {
    void* address = const_cast<void*>(static_cast<const volatile void*>(&variable));
    for (int i = 0; i < block.poisoned_count; ++i)
        if (block.poisoned[i].address == address) return;
    if (block.poisoned_count == kPoisoned) return;
    block.poisoned[block.poisoned_count++] = {address, sizeof variable};
    std::memset(address, 0xff, sizeof variable);
}

// Memory behind what the launch asked for must still be as it was filled.
inline void check_shared_end(size_t shared) {
    const size_t end = shared + kSharedWatched < kSharedCapacity ? shared + kSharedWatched : kSharedCapacity;
    for (size_t i = shared; i < end; ++i)
        if (dynamic_shared[i] != 0xff)
            die("wrote at byte " + std::to_string(i) + " of dynamic shared memory; the launch gives it " +
                std::to_string(shared) + " bytes");
}

inline void prepare_threads(int size) {
    block.size = size;
    block.threads.resize(size);
    while (block.warps.size() < size_t(size + 31) / 32) block.warps.emplace_back();
    block.warps.resize((size + 31) / 32);
    for (int i = 0; i < size; ++i) {
        Thread& thread = block.threads[i];
        thread.id = {i % blockDim.x, i / blockDim.x % blockDim.y, i / (blockDim.x * blockDim.y)};
        thread.lane = uint8_t(i % 32);
        thread.warp = uint16_t(i / 32);
        thread.wait = Wait::done;
    }
}

// What a block that does not run at the moment is made of.
struct Parked {
    Block block;
    uint3 index;
    bool ended = false;
    std::vector<unsigned char> dynamic;
    std::vector<unsigned char> statics[kPoisoned];  // As `block.poisoned`.
};

class Cluster {
public:
    Cluster(dim3 shape, size_t shared, void (*entry)(void*), void* argument, int threads, bool reversed)
        : shape_(shape), shared_(shared), blocks_(size_t(shape.x) * shape.y * shape.z), reversed_(reversed) {
        std::memset(dynamic_shared, 0xff, sizeof dynamic_shared);
        for (Parked& parked : blocks_) {
            parked.dynamic.resize(size() > 1 ? shared : 0);
            swap(parked);
            block.entry = entry;
            block.argument = argument;
            block.reversed = reversed;
            prepare_threads(threads);
            swap(parked);
        }
        current = this;
    }
    Cluster(const Cluster&) = delete;
    ~Cluster() { current = nullptr; }

    void run(uint3 first) {
        for (unsigned r = 0; r < size(); ++r) {
            Parked& parked = blocks_[r];
            parked.index = {first.x + r % shape_.x, first.y + r / shape_.x % shape_.y,
                            first.z + r / (shape_.x * shape_.y)};
            parked.ended = false;
        }
        bool alive = true;
        for (phase_ = 0; alive; ++phase_) {
            alive = false;
            for (unsigned i = 0; i < size(); ++i) {
                rank_ = reversed_ ? size() - 1 - i : i;
                if (!blocks_[rank_].ended) alive |= advance(blocks_[rank_]);
            }
        }
    }

    unsigned size() const { return unsigned(blocks_.size()); }
    unsigned rank() const { return rank_; }
    dim3 shape() const { return shape_; }

    // Where the block of that rank has what lies at `address` in this one.
    void* map(const void* address, unsigned rank) {
        if (rank >= size()) fail("asks for the shared memory of block " + std::to_string(rank), "there is none");
        if (rank == rank_) return const_cast<void*>(address);
        if (phase_ == 0) fail("reaches into another block's shared memory", "that block may not run yet");
        Parked& other = blocks_[rank];
        if (other.ended) fail("reaches into another block's shared memory", "that block may have ended");
        const uintptr_t at = uintptr_t(address), low = uintptr_t(dynamic_shared);
        if (at >= low && at < low + shared_) return &other.dynamic[at - low];
        for (int i = 0; i < block.poisoned_count; ++i) {
            const Poisoned& variable = block.poisoned[i];
            const uintptr_t start = uintptr_t(variable.address);
            if (at >= start && at < start + variable.bytes) return place_of(variable, other) + (at - start);
        }
        fail("maps an address", "it is no shared memory of that block");
    }

    static inline Cluster* current = nullptr;

private:
    [[noreturn]] void fail(const std::string& what, const std::string& why) const {
        die("block " + text_of(blockIdx) + " " + what + " of its cluster of " + std::to_string(size()) +
            ", but " + why + ": cluster.sync() before the first and after the last such access");
    }
    // A block that is alone stays where it is.
    void swap(Parked& parked) const {
        if (size() > 1) std::swap(block, parked.block);
    }

    // Put aside or not yet: the other block may not have come to its declaration.
    static unsigned char* place_of(const Poisoned& variable, Parked& other) {
        int i = 0;
        while (i < other.block.poisoned_count && other.block.poisoned[i].address != variable.address) ++i;
        if (i == kPoisoned) die("too many shared variables to emulate a cluster");
        if (i == other.block.poisoned_count) {
            other.block.poisoned[other.block.poisoned_count++] = variable;
            other.statics[i].assign(variable.bytes, 0xff);
        }
        return other.statics[i].data();
    }

    // True when the block has more to do.
    bool advance(Parked& parked) {
        swap(parked);
        blockIdx = parked.index;
        if (phase_ == 0) {
            std::memset(dynamic_shared, 0xff, shared_);
            start_block();
        } else {
            put_back(parked);
            release_cluster();
        }
        advance_block();
        parked.ended = !block.alive;
        put_aside(parked);
        swap(parked);
        return !parked.ended;
    }
    void put_aside(Parked& parked) {
        if (size() == 1) return;
        std::memcpy(parked.dynamic.data(), dynamic_shared, shared_);
        for (int i = 0; i < block.poisoned_count; ++i) {
            const auto* bytes = static_cast<const unsigned char*>(block.poisoned[i].address);
            parked.statics[i].resize(block.poisoned[i].bytes);  // The same each time, so that pointers into it hold.
            std::memcpy(parked.statics[i].data(), bytes, block.poisoned[i].bytes);
        }
    }
    void put_back(const Parked& parked) {
        if (size() == 1) return;
        std::memcpy(dynamic_shared, parked.dynamic.data(), shared_);
        for (int i = 0; i < block.poisoned_count; ++i)
            std::memcpy(block.poisoned[i].address, parked.statics[i].data(), block.poisoned[i].bytes);
    }

    dim3 shape_;
    size_t shared_;
    std::vector<Parked> blocks_;
    unsigned rank_ = 0;
    unsigned long long phase_ = 0;
    bool reversed_;
};

}  // namespace hiera_emu
