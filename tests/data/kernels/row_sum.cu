// forward: sum over the last dimension of x * y, fp32 or fp64
#include <torch/extension.h>

template <typename T>
__device__ __forceinline__ T warp_sum(T value) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) value += __shfl_down_sync(0xffffffffu, value, offset);
    return value;
}

template <int BLOCK, typename T>
__global__ void row_sum(const T* x, const T* y, T* out, int columns) {
    __shared__ T parts[BLOCK / 32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const size_t start = size_t(blockIdx.x) * columns;
    T sum = 0;
    for (int i = threadIdx.x; i < columns; i += BLOCK) sum += x[start + i] * y[start + i];
    sum = warp_sum(sum);
    if (lane == 0) parts[warp] = sum;
    __syncthreads();
    if (warp == 0) {
        sum = warp_sum(lane < BLOCK / 32 ? parts[lane] : T(0));
        if (lane == 0) out[blockIdx.x] = sum;
    }
}

torch::Tensor forward(torch::Tensor x, torch::Tensor y) {
    const auto stream = at::cuda::getCurrentCUDAStream();
    auto out = torch::empty({x.size(0)}, x.options());
    AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "row_sum", [&] {
        row_sum<256, scalar_t><<<x.size(0), 256, 0, stream>>>(x.data_ptr<scalar_t>(), y.data_ptr<scalar_t>(),
                                                              out.data_ptr<scalar_t>(), x.size(1));
    });
    return out;
}
