// A kernel launch: check the shape as the driver would, then run the blocks, or clusters, one after another.
//
// HIERA_EMU_ORDER=reversed runs blocks, warps and lanes backwards. A result that changes is a race.
#pragma once
#include <functional>
#include <type_traits>

#include "cluster.h"

typedef struct CUstream_st* cudaStream_t;

namespace hiera_emu {

inline unsigned long long launches = 0;

// Empty when the shape is allowed, else what is wrong with it.
inline std::string wrong_shape(dim3 grid, dim3 threads, size_t shared, dim3 cluster) {
    std::string shape = " (grid " + text_of(grid) + ", block " + text_of(threads) + ", " + std::to_string(shared) +
                        " B of dynamic shared memory)";
    if (!grid.x || !grid.y || !grid.z || !threads.x || !threads.y || !threads.z) return "a dimension is zero" + shape;
    if (size_t(threads.x) * threads.y * threads.z > 1024) return "more than 1024 threads a block" + shape;
    if (threads.z > 64) return "block.z above 64" + shape;
    if (grid.x > 2147483647u || grid.y > 65535 || grid.z > 65535) return "a grid dimension is too large" + shape;
    const unsigned together = cluster.x * cluster.y * cluster.z;
    if (!together || grid.x % cluster.x || grid.y % cluster.y || grid.z % cluster.z)
        return "the grid is no multiple of the cluster " + text_of(cluster) + shape;
    if (together > cluster_limit)
        return "clusters of more than " + std::to_string(cluster_limit) + " blocks" +
               (together <= 16 ? " need cudaFuncAttributeNonPortableClusterSizeAllowed" : "") + shape;
    if (shared > shared_optin_limit) return "too much dynamic shared memory" + shape;
    if (shared > shared_optin)
        return "more than 48 KiB of dynamic shared memory needs cudaFuncSetAttribute(kernel, "
               "cudaFuncAttributeMaxDynamicSharedMemorySize, bytes) first" + shape;
    return "";
}

inline bool order_is_reversed() {
    const char* order = std::getenv("HIERA_EMU_ORDER");
    return order && std::strcmp(order, "reversed") == 0;
}

inline void run_grid(dim3 grid, dim3 threads, size_t shared, dim3 cluster, void (*entry)(void*), void* argument) {
    gridDim = grid;
    blockDim = threads;
    const bool reversed = order_is_reversed();
    Guard guard;
    const dim3 clusters = {grid.x / cluster.x, grid.y / cluster.y, grid.z / cluster.z};
    const unsigned long long count = (unsigned long long)clusters.x * clusters.y * clusters.z;
    Cluster running(cluster, shared, entry, argument, int(threads.x * threads.y * threads.z), reversed);
    for (unsigned long long i = 0; i < count; ++i) {
        const unsigned long long index = reversed ? count - 1 - i : i;
        running.run({unsigned(index % clusters.x) * cluster.x, unsigned(index / clusters.x % clusters.y) * cluster.y,
                     unsigned(index / clusters.x / clusters.y) * cluster.z});
    }
    check_shared_end(shared);
    ++launches;
}

// Where launches go that a CUDA graph records instead of running them.
inline std::vector<std::function<void()>>* recorder = nullptr;

template <typename Kernel>
struct Launch {
    Place place;
    Kernel kernel;
    dim3 grid, threads;
    size_t shared;
    dim3 cluster = {1, 1, 1};

    template <typename... Arguments>
    void operator()(Arguments... arguments) {
        if (recorder) {
            recorder->push_back([self = *this, arguments...]() mutable { self(arguments...); });
            return;
        }
        if (block.current) die("a kernel launches another kernel (dynamic parallelism is not emulated)");
        Place before = std::exchange(launch_place, place);
        struct Restore {
            Place before;
            ~Restore() { launch_place = before; }
        } restore{before};
        std::string wrong = wrong_shape(grid, threads, shared, cluster);
        if (!wrong.empty()) die("invalid configuration argument: " + wrong);
        auto call = [&] { kernel(arguments...); };
        run_grid(grid, threads, shared, cluster, [](void* self) { (*static_cast<decltype(call)*>(self))(); }, &call);
    }
};

// What `kernel<<<grid, threads, shared, stream>>>` is rewritten to.
template <typename Kernel>
Launch<Kernel> launch(Place place, Kernel kernel, dim3 grid, dim3 threads, size_t shared = 0,
                      cudaStream_t = nullptr) {
    return {place, kernel, grid, threads, shared};
}

}  // namespace hiera_emu

extern "C" {
// For tests and tools that load the extension's library.
__attribute__((visibility("default"), weak, used)) inline const char* hiera_emu_warnings() {
    return hiera_emu::warnings.c_str();
}
__attribute__((visibility("default"), weak, used)) inline unsigned long long hiera_emu_launches() {
    return hiera_emu::launches;
}
}
