// Asynchronous copies into shared memory. A copy takes place when its thread waits for it, so that a read before the
// wait sees what was there before.
#pragma once
#include <hiera_emu/all.h>

namespace hiera_emu {

struct PendingCopy {
    void* to;
    const void* from;
    size_t bytes, zeros;
};
// Of one thread of the running block: copies since the last commit, and committed batches, oldest first.
struct Pipeline {
    std::vector<PendingCopy> open;
    std::deque<std::vector<PendingCopy>> batches;
    unsigned long long launch = 0;
    uint3 in_block{};
};
inline std::vector<Pipeline> pipelines;

inline Pipeline& pipeline() {
    if (pipelines.size() < block.threads.size()) pipelines.resize(block.threads.size());
    Pipeline& own = pipelines[size_t(block.current - block.threads.data())];
    const unsigned long long launch = launches + 1;
    if (own.launch != launch || std::memcmp(&own.in_block, &blockIdx, sizeof blockIdx) != 0) {
        own = Pipeline{};  // What an earlier block never waited for is gone with its shared memory.
        own.launch = launch;
        own.in_block = blockIdx;
    }
    return own;
}

}  // namespace hiera_emu

inline void __pipeline_memcpy_async(void* to, const void* from, size_t bytes, size_t zeros = 0) {
    if (bytes != 4 && bytes != 8 && bytes != 16)
        hiera_emu::die("__pipeline_memcpy_async copies 4, 8 or 16 bytes, not " + std::to_string(bytes));
    if (reinterpret_cast<uintptr_t>(to) % bytes || (zeros < bytes && reinterpret_cast<uintptr_t>(from) % bytes))
        hiera_emu::die("__pipeline_memcpy_async of " + std::to_string(bytes) + " bytes from or to an unaligned address");
    hiera_emu::pipeline().open.push_back({to, from, bytes, zeros});
}
inline void __pipeline_commit() {
    hiera_emu::Pipeline& own = hiera_emu::pipeline();
    own.batches.push_back(std::move(own.open));
    own.open.clear();
}
inline void __pipeline_wait_prior(size_t newest) {
    hiera_emu::Pipeline& own = hiera_emu::pipeline();
    while (own.batches.size() > newest) {
        for (const hiera_emu::PendingCopy& copy : own.batches.front()) {
            std::memcpy(copy.to, copy.from, copy.bytes - copy.zeros);
            std::memset(static_cast<char*>(copy.to) + copy.bytes - copy.zeros, 0, copy.zeros);
        }
        own.batches.pop_front();
    }
}
