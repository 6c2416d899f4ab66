// The part of the CUDA runtime that host code of a candidate calls. Memory is host memory, streams do
// nothing (every call has ended when it returns), and the device is described by HIERA_EMU_ARCH.
#pragma once
#include "launch.h"

enum cudaError_t {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInvalidConfiguration = 9,
    cudaErrorInvalidResourceHandle = 400,
    cudaErrorNotReady = 600,
    cudaErrorLaunchFailure = 719,
    cudaErrorNotSupported = 801,
    cudaErrorStreamCaptureIsolation = 905,
    cudaErrorCapturedEvent = 907,
};
typedef cudaError_t cudaError;
typedef struct hiera_emu_event { const void* graph; }* cudaEvent_t;  // The graph that records it.
#define cudaStreamDefault 0x00
#define cudaStreamNonBlocking 0x01
#define cudaStreamLegacy ((cudaStream_t)0x1)
#define cudaStreamPerThread ((cudaStream_t)0x2)
#define cudaEventDefault 0x00
#define cudaEventBlockingSync 0x01
#define cudaEventDisableTiming 0x02
#define cudaOccupancyDefault 0x00
enum cudaStreamCaptureStatus {
    cudaStreamCaptureStatusNone,
    cudaStreamCaptureStatusActive,
    cudaStreamCaptureStatusInvalidated,
};
enum cudaStreamCaptureMode {
    cudaStreamCaptureModeGlobal,
    cudaStreamCaptureModeThreadLocal,
    cudaStreamCaptureModeRelaxed,
};
enum cudaMemcpyKind {
    cudaMemcpyHostToHost,
    cudaMemcpyHostToDevice,
    cudaMemcpyDeviceToHost,
    cudaMemcpyDeviceToDevice,
    cudaMemcpyDefault,
};
enum cudaFuncAttribute {
    cudaFuncAttributeMaxDynamicSharedMemorySize = 8,
    cudaFuncAttributePreferredSharedMemoryCarveout = 9,
    cudaFuncAttributeNonPortableClusterSizeAllowed = 13,
};
enum cudaSharedCarveout {
    cudaSharedmemCarveoutDefault = -1,
    cudaSharedmemCarveoutMaxL1 = 0,
    cudaSharedmemCarveoutMaxShared = 100,
};
enum cudaFuncCache { cudaFuncCachePreferNone, cudaFuncCachePreferShared, cudaFuncCachePreferL1, cudaFuncCachePreferEqual };
enum cudaDeviceAttr {
    cudaDevAttrMaxThreadsPerBlock = 1,
    cudaDevAttrMaxSharedMemoryPerBlock = 8,
    cudaDevAttrWarpSize = 10,
    cudaDevAttrMaxRegistersPerBlock = 12,
    cudaDevAttrMultiProcessorCount = 16,
    cudaDevAttrL2CacheSize = 38,
    cudaDevAttrMaxThreadsPerMultiProcessor = 39,
    cudaDevAttrComputeCapabilityMajor = 75,
    cudaDevAttrComputeCapabilityMinor = 76,
    cudaDevAttrMaxSharedMemoryPerMultiprocessor = 81,
    cudaDevAttrCooperativeLaunch = 95,
    cudaDevAttrMaxSharedMemoryPerBlockOptin = 97,
    cudaDevAttrMaxBlocksPerMultiprocessor = 106,
};
struct cudaDeviceProp {
    char name[256];
    size_t totalGlobalMem, sharedMemPerBlock, sharedMemPerBlockOptin, sharedMemPerMultiprocessor, totalConstMem;
    size_t reservedSharedMemPerBlock;
    int regsPerBlock, regsPerMultiprocessor, warpSize, maxThreadsPerBlock, maxThreadsPerMultiProcessor;
    int maxBlocksPerMultiProcessor, maxThreadsDim[3], maxGridSize[3];
    int major, minor, multiProcessorCount, l2CacheSize, persistingL2CacheMaxSize, cooperativeLaunch;
};
struct cudaFuncAttributes {
    size_t sharedSizeBytes, constSizeBytes, localSizeBytes;
    int maxThreadsPerBlock, numRegs, ptxVersion, binaryVersion, maxDynamicSharedSizeBytes;
};

namespace hiera_emu {
inline const cudaDeviceProp& device() {
    static const cudaDeviceProp properties = [] {
        cudaDeviceProp p{};
        std::snprintf(p.name, sizeof p.name, "emulated sm_%d", HIERA_EMU_ARCH / 10);
        p.totalGlobalMem = size_t(80) << 30;
        p.sharedMemPerBlock = kSharedDefault;
        p.sharedMemPerBlockOptin = shared_optin_limit;
        p.sharedMemPerMultiprocessor = shared_optin_limit + 1024;
        p.totalConstMem = 64 << 10;
        p.reservedSharedMemPerBlock = 1024;
        p.regsPerBlock = p.regsPerMultiprocessor = 65536;
        p.warpSize = 32;
        p.maxThreadsPerBlock = 1024;
        p.maxThreadsPerMultiProcessor = 2048;
        p.maxBlocksPerMultiProcessor = 32;
        p.maxThreadsDim[0] = p.maxThreadsDim[1] = 1024, p.maxThreadsDim[2] = 64;
        p.maxGridSize[0] = 2147483647, p.maxGridSize[1] = p.maxGridSize[2] = 65535;
        p.major = HIERA_EMU_ARCH / 100, p.minor = HIERA_EMU_ARCH / 10 % 10;
        // Few, so that grids sized by the device stay quick to run.
        p.multiProcessorCount = int(environment_number("HIERA_EMU_SMS", 8));
        p.l2CacheSize = 50 << 20;
        return p;
    }();
    return properties;
}
}  // namespace hiera_emu

// Launches throw, so there is never an error left to ask for.
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline cudaError_t cudaPeekAtLastError() { return cudaSuccess; }
inline const char* cudaGetErrorString(cudaError_t error) { return error == cudaSuccess ? "no error" : "CUDA error"; }
inline const char* cudaGetErrorName(cudaError_t error) { return error == cudaSuccess ? "cudaSuccess" : "cudaError"; }

template <typename T>
cudaError_t cudaMalloc(T** pointer, size_t bytes) {
    *pointer = static_cast<T*>(std::aligned_alloc(256, (bytes + 255) / 256 * 256));
    return *pointer || !bytes ? cudaSuccess : cudaErrorMemoryAllocation;
}
template <typename T>
cudaError_t cudaMallocAsync(T** pointer, size_t bytes, cudaStream_t) { return cudaMalloc(pointer, bytes); }
template <typename T>
cudaError_t cudaMallocManaged(T** pointer, size_t bytes, unsigned = 1) { return cudaMalloc(pointer, bytes); }
template <typename T>
cudaError_t cudaMallocHost(T** pointer, size_t bytes, unsigned = 0) { return cudaMalloc(pointer, bytes); }
inline cudaError_t cudaFree(void* pointer) { return std::free(pointer), cudaSuccess; }
inline cudaError_t cudaFreeAsync(void* pointer, cudaStream_t) { return cudaFree(pointer); }
inline cudaError_t cudaFreeHost(void* pointer) { return cudaFree(pointer); }
inline cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
    return std::memmove(to, from, bytes), cudaSuccess;
}
inline cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t = nullptr) {
    return cudaMemcpy(to, from, bytes, kind);
}
inline cudaError_t cudaMemcpy2D(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                                size_t height, cudaMemcpyKind) {
    for (size_t row = 0; row < height; ++row)
        std::memmove(static_cast<char*>(to) + row * to_pitch, static_cast<const char*>(from) + row * from_pitch, width);
    return cudaSuccess;
}
inline cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                                     size_t height, cudaMemcpyKind kind, cudaStream_t = nullptr) {
    return cudaMemcpy2D(to, to_pitch, from, from_pitch, width, height, kind);
}
inline cudaError_t cudaMemset(void* to, int value, size_t bytes) { return std::memset(to, value, bytes), cudaSuccess; }
inline cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t = nullptr) {
    return cudaMemset(to, value, bytes);
}
inline cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
    *free = *total = hiera_emu::device().totalGlobalMem;
    return cudaSuccess;
}
template <typename Symbol>
cudaError_t cudaMemcpyToSymbol(Symbol& symbol, const void* from, size_t bytes, size_t offset = 0,
                               cudaMemcpyKind = cudaMemcpyHostToDevice) {
    if (offset + bytes > sizeof symbol) return cudaErrorInvalidValue;
    auto* to = reinterpret_cast<char*>(const_cast<std::remove_const_t<Symbol>*>(&symbol));
    return std::memcpy(to + offset, from, bytes), cudaSuccess;
}
template <typename Symbol>
cudaError_t cudaMemcpyToSymbolAsync(Symbol& symbol, const void* from, size_t bytes, size_t offset = 0,
                                    cudaMemcpyKind kind = cudaMemcpyHostToDevice, cudaStream_t = nullptr) {
    return cudaMemcpyToSymbol(symbol, from, bytes, offset, kind);
}
template <typename Symbol>
cudaError_t cudaMemcpyFromSymbol(void* to, const Symbol& symbol, size_t bytes, size_t offset = 0,
                                 cudaMemcpyKind = cudaMemcpyDeviceToHost) {
    if (offset + bytes > sizeof symbol) return cudaErrorInvalidValue;
    return std::memcpy(to, reinterpret_cast<const char*>(&symbol) + offset, bytes), cudaSuccess;
}
template <typename T, typename Symbol>
cudaError_t cudaGetSymbolAddress(T** pointer, Symbol& symbol) {
    *pointer = reinterpret_cast<T*>(&symbol);
    return cudaSuccess;
}

inline cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
inline cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
inline cudaError_t cudaStreamQuery(cudaStream_t) { return cudaSuccess; }
inline cudaError_t cudaStreamCreate(cudaStream_t* stream) { return *stream = nullptr, cudaSuccess; }
inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) { return cudaStreamCreate(stream); }
inline cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) { return cudaStreamCreate(stream); }
inline cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
inline cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
    *status = hiera_emu::recorder ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return cudaSuccess;
}
// A graph waits for what it records itself, and nothing else does.
inline cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t event, unsigned = 0) {
    if (!event) return cudaErrorInvalidResourceHandle;
    if (event->graph == hiera_emu::recorder) return cudaSuccess;
    return hiera_emu::recorder ? cudaErrorStreamCaptureIsolation : cudaErrorCapturedEvent;
}
inline cudaError_t cudaEventCreate(cudaEvent_t* event, unsigned = 0) {
    return *event = new hiera_emu_event{nullptr}, cudaSuccess;
}
inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) { return cudaEventCreate(event); }
inline cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t = nullptr) {
    if (!event) return cudaErrorInvalidResourceHandle;
    return event->graph = hiera_emu::recorder, cudaSuccess;
}
inline cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
inline cudaError_t cudaEventQuery(cudaEvent_t) { return cudaSuccess; }
inline cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t, cudaEvent_t) { return *ms = 0, cudaSuccess; }
inline cudaError_t cudaEventDestroy(cudaEvent_t event) { return delete event, cudaSuccess; }

inline cudaError_t cudaGetDevice(int* index) { return *index = 0, cudaSuccess; }
inline cudaError_t cudaSetDevice(int) { return cudaSuccess; }
inline cudaError_t cudaGetDeviceCount(int* count) { return *count = 1, cudaSuccess; }
inline cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
    return *properties = hiera_emu::device(), cudaSuccess;
}
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
    const cudaDeviceProp& d = hiera_emu::device();
    switch (attribute) {
        case cudaDevAttrMaxThreadsPerBlock: *value = d.maxThreadsPerBlock; break;
        case cudaDevAttrMaxSharedMemoryPerBlock: *value = int(d.sharedMemPerBlock); break;
        case cudaDevAttrWarpSize: *value = 32; break;
        case cudaDevAttrMaxRegistersPerBlock: *value = d.regsPerBlock; break;
        case cudaDevAttrMultiProcessorCount: *value = d.multiProcessorCount; break;
        case cudaDevAttrL2CacheSize: *value = d.l2CacheSize; break;
        case cudaDevAttrMaxThreadsPerMultiProcessor: *value = d.maxThreadsPerMultiProcessor; break;
        case cudaDevAttrComputeCapabilityMajor: *value = d.major; break;
        case cudaDevAttrComputeCapabilityMinor: *value = d.minor; break;
        case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = int(d.sharedMemPerMultiprocessor); break;
        case cudaDevAttrCooperativeLaunch: *value = 0; break;
        case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = int(d.sharedMemPerBlockOptin); break;
        case cudaDevAttrMaxBlocksPerMultiprocessor: *value = d.maxBlocksPerMultiProcessor; break;
        default: return cudaErrorInvalidValue;
    }
    return cudaSuccess;
}

// Kernels have no identity here (a template's address is not known before it is called), so the
// largest amount any kernel asked for holds for all: a missing call is found, a call for the wrong
// kernel is not.
template <typename Kernel>
cudaError_t cudaFuncSetAttribute(Kernel, cudaFuncAttribute attribute, int value) {
    if (attribute == cudaFuncAttributeNonPortableClusterSizeAllowed) hiera_emu::cluster_limit = value ? 16 : 8;
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
    if (value < 0 || size_t(value) > hiera_emu::shared_optin_limit) return cudaErrorInvalidValue;
    hiera_emu::shared_optin = max(hiera_emu::shared_optin, size_t(value));
    return cudaSuccess;
}
template <typename Kernel>
cudaError_t cudaFuncSetCacheConfig(Kernel, cudaFuncCache) { return cudaSuccess; }
template <typename Kernel>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, Kernel) {
    *attributes = {};
    attributes->maxThreadsPerBlock = 1024;
    attributes->numRegs = 32;
    attributes->ptxVersion = attributes->binaryVersion = HIERA_EMU_ARCH / 10;
    attributes->maxDynamicSharedSizeBytes = int(hiera_emu::shared_optin);
    return cudaSuccess;
}
// Registers are unknown here: only threads and dynamic shared memory limit this answer.
template <typename Kernel>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, Kernel, int threads, size_t shared) {
    if (threads < 1 || threads > 1024) return cudaErrorInvalidValue;
    int by_threads = 2048 / ((threads + 31) / 32 * 32);
    int by_shared = int(hiera_emu::device().sharedMemPerMultiprocessor / (shared + 1024));
    *blocks = min(32, min(by_threads, by_shared));
    return cudaSuccess;
}
template <typename Kernel>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, Kernel kernel, int threads,
                                                                   size_t shared, unsigned) {
    return cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, kernel, threads, shared);
}
template <typename Kernel>
cudaError_t cudaOccupancyMaxPotentialBlockSize(int* grid, int* threads, Kernel, size_t = 0, int limit = 0) {
    *threads = limit ? min(limit, 256) : 256;
    *grid = hiera_emu::device().multiProcessorCount * (2048 / *threads);
    return cudaSuccess;
}

namespace hiera_emu {
template <typename... Parameters, size_t... I>
void call_packed(void (*kernel)(Parameters...), void** arguments, std::index_sequence<I...>) {
    kernel(*static_cast<std::remove_reference_t<Parameters>*>(arguments[I])...);
}
}  // namespace hiera_emu
// Only with a typed kernel: through `(void*)kernel` the parameters are lost, and the compiler says so.
template <typename... Parameters>
cudaError_t cudaLaunchKernel(void (*kernel)(Parameters...), dim3 grid, dim3 threads, void** arguments,
                             size_t shared = 0, cudaStream_t stream = nullptr) {
    auto run = [=] { hiera_emu::call_packed(kernel, arguments, std::index_sequence_for<Parameters...>{}); };
    hiera_emu::launch({"(cudaLaunchKernel)", "", 0}, run, grid, threads, shared, stream)();
    return cudaSuccess;
}

enum cudaLaunchAttributeID {
    cudaLaunchAttributeIgnore = 0,
    cudaLaunchAttributeCooperative = 2,
    cudaLaunchAttributeClusterDimension = 4,
    cudaLaunchAttributeProgrammaticStreamSerialization = 6,
    cudaLaunchAttributePriority = 8,
};
union cudaLaunchAttributeValue {
    int cooperative, programmaticStreamSerializationAllowed, priority;
    struct {
        unsigned x, y, z;
    } clusterDim;
};
struct cudaLaunchAttribute {
    cudaLaunchAttributeID id;
    cudaLaunchAttributeValue val;
};
struct cudaLaunchConfig_t {
    dim3 gridDim, blockDim;
    size_t dynamicSmemBytes;
    cudaStream_t stream;
    cudaLaunchAttribute* attrs;
    unsigned numAttrs;
};
template <typename... Parameters, typename... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...), Arguments&&... arguments) {
    dim3 cluster = {1, 1, 1};
    for (unsigned i = 0; i < config->numAttrs; ++i) {
        const cudaLaunchAttribute& attribute = config->attrs[i];
        const auto& shape = attribute.val.clusterDim;
        if (attribute.id == cudaLaunchAttributeClusterDimension) cluster = {shape.x, shape.y, shape.z};
        if (attribute.id == cudaLaunchAttributeCooperative && attribute.val.cooperative)
            hiera_emu::die("cooperative launches are not emulated");
    }
    hiera_emu::Launch<void (*)(Parameters...)> launch{
        {"(cudaLaunchKernelEx)", "", 0}, kernel, config->gridDim, config->blockDim, config->dynamicSmemBytes, cluster};
    launch(static_cast<Parameters>(arguments)...);
    return cudaSuccess;
}
