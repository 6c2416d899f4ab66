// forward: x + y, after every check and query that host code makes of a CUDA device
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/extension.h>

#define CHECK_INPUT(t) TORCH_CHECK(t.is_cuda() && t.is_contiguous(), #t " must be a contiguous CUDA tensor")

struct Limits {
    static const int dims = 8;  // Declared, not defined: a message must not need its address.
};

template <int UNROLL>
__global__ void add(const float* x, const float* y, float* out, int n) {
    extern __shared__ __align__(16) unsigned char raw[];
    float* staged = reinterpret_cast<float*>(raw);
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        staged[threadIdx.x] = x[i];
        out[i] = staged[threadIdx.x] + y[i];
    }
}

torch::Tensor forward(torch::Tensor x, torch::Tensor y) {
    CHECK_INPUT(x);
    CHECK_INPUT(y);
    TORCH_CHECK(x.device().is_cuda());
    TORCH_CHECK(x.dim() <= Limits::dims, "at most ", Limits::dims, " dimensions, not ", x.dim());
    TORCH_CHECK(y.device().type() == torch::kCUDA && x.device() == y.device());
    const c10::cuda::CUDAGuard guard(x.device());
    const at::cuda::OptionalCUDAGuard other(at::device_of(y));
    int device = -1, blocks = 0;
    C10_CUDA_CHECK(cudaGetDevice(&device));
    cudaDeviceProp properties;
    C10_CUDA_CHECK(cudaGetDeviceProperties(&properties, device));
    TORCH_CHECK(properties.major >= 7 && properties.multiProcessorCount > 0 && properties.warpSize == 32);
    TORCH_CHECK(at::cuda::getCurrentDeviceProperties()->multiProcessorCount == properties.multiProcessorCount);
    const int shared = 64 << 10;
    C10_CUDA_CHECK(cudaFuncSetAttribute(add<4>, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
    C10_CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, add<4>, 256, shared));
    TORCH_CHECK(blocks > 0);
    auto out = torch::empty(x.sizes(), torch::TensorOptions().dtype(torch::kFloat32).device(torch::kCUDA, device));
    TORCH_CHECK(out.is_cuda());
    cudaStream_t stream = c10::cuda::getCurrentCUDAStream().stream();
    add<4><<<properties.multiProcessorCount * blocks, 256, shared, stream>>>(x.data_ptr<float>(), y.data_ptr<float>(),
                                                                            out.data_ptr<float>(), x.numel());
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    AT_CUDA_CHECK(cudaGetLastError());
    C10_CUDA_CHECK(cudaStreamSynchronize(stream));
    return out;
}
