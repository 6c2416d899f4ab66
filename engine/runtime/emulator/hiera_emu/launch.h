// A kernel launch: check the shape as the driver would, then run the blocks one after another.
//
// HIERA_EMU_ORDER=reversed runs blocks, warps and lanes backwards. A result that changes is a race.
#pragma once
#include <functional>
#include <type_traits>

#include "guard.h"

typedef struct CUstream_st* cudaStream_t;

namespace hiera_emu {

constexpr size_t kSharedDefault = 48 << 10;
inline size_t shared_optin_limit = 227 << 10;   // Largest dynamic shared memory of a block (sm_90).
inline size_t shared_optin = kSharedDefault;    // Raised by cudaFuncSetAttribute.
constexpr size_t kSharedCapacity = 256 << 10;
constexpr size_t kSharedWatched = 8 << 10;      // So far behind the end a stray write is found.
// One fixed place, so that `extern __shared__` can be an ordinary pointer constant.
alignas(1024) inline unsigned char dynamic_shared[kSharedCapacity];

struct Statistics {
    unsigned long long launches = 0, blocks = 0, threads = 0;
};
inline Statistics statistics;

// Static shared variables hold garbage at the start of each block on a GPU. Bytes of 0xff are NaN
// in every floating-point type and -1 in the others, so that reading them shows.
template <typename T>
void poison_shared(T& variable) {
    const void* address = &variable;
    for (int i = 0; i < block.poisoned_count; ++i)
        if (block.poisoned[i] == address) return;
    if (block.poisoned_count == int(std::size(block.poisoned))) return;
    block.poisoned[block.poisoned_count++] = address;
    std::memset(const_cast<void*>(static_cast<const volatile void*>(address)), 0xff, sizeof variable);
}

// Empty when the shape is allowed, else what is wrong with it.
inline std::string wrong_shape(dim3 grid, dim3 threads, size_t shared) {
    std::string shape = " (grid " + text_of(grid) + ", block " + text_of(threads) + ", " + std::to_string(shared) +
                        " B of dynamic shared memory)";
    if (!grid.x || !grid.y || !grid.z || !threads.x || !threads.y || !threads.z) return "a dimension is zero" + shape;
    if (size_t(threads.x) * threads.y * threads.z > 1024) return "more than 1024 threads a block" + shape;
    if (threads.z > 64) return "block.z above 64" + shape;
    if (grid.x > 2147483647u || grid.y > 65535 || grid.z > 65535) return "a grid dimension is too large" + shape;
    if (shared > shared_optin_limit) return "too much dynamic shared memory" + shape;
    if (shared > shared_optin)
        return "more than 48 KiB of dynamic shared memory needs cudaFuncSetAttribute(kernel, "
               "cudaFuncAttributeMaxDynamicSharedMemorySize, bytes) first" + shape;
    return "";
}

// Memory behind what the launch asked for must still be as it was filled.
inline void check_shared_end(size_t shared) {
    const size_t end = shared + kSharedWatched < kSharedCapacity ? shared + kSharedWatched : kSharedCapacity;
    for (size_t i = shared; i < end; ++i)
        if (dynamic_shared[i] != 0xff)
            die("wrote at byte " + std::to_string(i) + " of dynamic shared memory; the launch gives it " +
                std::to_string(shared) + " bytes");
}

inline bool order_is_reversed() {
    const char* order = std::getenv("HIERA_EMU_ORDER");
    return order && std::strcmp(order, "reversed") == 0;
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

inline void run_grid(dim3 grid, dim3 threads, size_t shared, void (*entry)(void*), void* argument) {
    gridDim = grid;
    blockDim = threads;
    block.entry = entry;
    block.argument = argument;
    block.reversed = order_is_reversed();
    prepare_threads(int(threads.x * threads.y * threads.z));
    std::memset(dynamic_shared, 0xff, sizeof dynamic_shared);
    Guard guard;
    const unsigned long long blocks = (unsigned long long)grid.x * grid.y * grid.z;
    for (unsigned long long i = 0; i < blocks; ++i) {
        const unsigned long long index = block.reversed ? blocks - 1 - i : i;
        blockIdx = {unsigned(index % grid.x), unsigned(index / grid.x % grid.y), unsigned(index / grid.x / grid.y)};
        if (i) std::memset(dynamic_shared, 0xff, shared);
        run_block();
    }
    check_shared_end(shared);
    ++statistics.launches;
    statistics.blocks += blocks;
    statistics.threads += blocks * block.size;
}

// Where launches go that a CUDA graph records instead of running them.
inline std::vector<std::function<void()>>* recorder = nullptr;

template <typename Kernel>
struct Launch {
    Place place;
    Kernel kernel;
    dim3 grid, threads;
    size_t shared;

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
        std::string wrong = wrong_shape(grid, threads, shared);
        if (!wrong.empty()) die("invalid configuration argument: " + wrong);
        auto call = [&] { kernel(arguments...); };
        run_grid(grid, threads, shared, [](void* self) { (*static_cast<decltype(call)*>(self))(); }, &call);
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
    return hiera_emu::statistics.launches;
}
}
