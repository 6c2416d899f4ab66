// forward: softmax(x + y) over the last dimension, fp32, fp16 or bf16; one block a row, the row in dynamic shared memory
#include <ATen/cuda/CUDAContext.h>
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <torch/extension.h>

namespace cg = cooperative_groups;

template <typename scalar_t>
__global__ void softmax_rows(const scalar_t* x, const scalar_t* y, scalar_t* out, int columns) {
    extern __shared__ float row[];
    __shared__ float parts[33];
    auto block = cg::this_thread_block();
    cg::thread_block_tile<32> warp = cg::tiled_partition<32>(block);
    const int warps = warp.meta_group_size();
    const size_t start = size_t(blockIdx.x) * columns;

    float largest = -INFINITY;
    for (int i = threadIdx.x; i < columns; i += blockDim.x) {
        row[i] = static_cast<float>(x[start + i]) + static_cast<float>(y[start + i]);
        largest = fmaxf(largest, row[i]);
    }
    largest = cg::reduce(warp, largest, cg::greater<float>());
    if (warp.thread_rank() == 0) parts[warp.meta_group_rank()] = largest;
    block.sync();
    if (threadIdx.x == 0) {
        for (int i = 1; i < warps; ++i) parts[0] = max(parts[0], parts[i]);
        parts[32] = parts[0];
    }
    block.sync();
    largest = parts[32];
    float sum = 0.0f;
    for (int i = threadIdx.x; i < columns; i += blockDim.x) sum += row[i] = __expf(row[i] - largest);
    for (int lanes = 16; lanes; lanes >>= 1) sum += warp.shfl_xor(sum, lanes);
    if (warp.thread_rank() == 0) parts[warp.meta_group_rank()] = sum;
    __syncthreads();
    sum = 0.0f;
    for (int i = 0; i < warps; ++i) sum += parts[i];
    for (int i = threadIdx.x; i < columns; i += blockDim.x) out[start + i] = static_cast<scalar_t>(row[i] / sum);
}

torch::Tensor forward(torch::Tensor x, torch::Tensor y) {
    auto out = torch::empty_like(x);
    const int columns = x.size(-1);
    const size_t shared = columns * sizeof(float);
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "softmax", [&] {
        softmax_rows<scalar_t><<<x.numel() / columns, 128, shared, at::cuda::getCurrentCUDAStream()>>>(
            x.data_ptr<scalar_t>(), y.data_ptr<scalar_t>(), out.data_ptr<scalar_t>(), columns);
    });
    return out;
}
