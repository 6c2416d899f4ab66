// forward: softmax over the last dimension of x + y, fp32, rows spread over the shared memory of clusters of four blocks
#include <torch/extension.h>
#include <cooperative_groups.h>

constexpr int BLOCKS = 4, THREADS = 64;

template <typename Combine>
__device__ float over_block(float value, Combine combine) {
    __shared__ float of_thread[THREADS];
    __syncthreads();
    of_thread[threadIdx.x] = value;
    __syncthreads();
    value = of_thread[0];
    for (int i = 1; i < THREADS; ++i) value = combine(value, of_thread[i]);
    return value;
}

// Blocks push what they have into the shared memory of block 0, which gives the result to all.
template <typename Combine>
__device__ float over_cluster(float value, Combine combine) {
    __shared__ float of_block[BLOCKS], result;
    const auto cluster = cooperative_groups::this_cluster();
    const unsigned rank = cluster.block_rank();
    value = over_block(value, combine);
    if (threadIdx.x == 0) cluster.map_shared_rank(of_block, 0)[rank] = value;
    cluster.sync();
    if (rank == 0 && threadIdx.x < cluster.num_blocks()) {
        float all = of_block[0];
        for (int i = 1; i < BLOCKS; ++i) all = combine(all, of_block[i]);
        *cluster.map_shared_rank(&result, threadIdx.x) = all;
    }
    cluster.sync();
    return result;
}

__global__ void cluster_softmax(const float* x, const float* y, float* out, int columns) {
    extern __shared__ float part[];
    const auto cluster = cooperative_groups::this_cluster();
    cluster.sync();  // All blocks run.
    const int each = (columns + BLOCKS - 1) / BLOCKS, first = int(cluster.block_rank()) * each;
    const size_t row = size_t(blockIdx.x / BLOCKS) * columns;
    float largest = -INFINITY;
    for (int i = threadIdx.x; i < each; i += THREADS) {
        part[i] = first + i < columns ? x[row + first + i] + y[row + first + i] : -INFINITY;
        largest = fmaxf(largest, part[i]);
    }
    largest = over_cluster(largest, [](float a, float b) { return fmaxf(a, b); });
    float sum = 0;
    for (int i = threadIdx.x; i < each; i += THREADS) sum += part[i] = expf(part[i] - largest);
    sum = over_cluster(sum, [](float a, float b) { return a + b; });
    // What the next block of the cluster holds is stored by this one.
    const unsigned other = (cluster.block_rank() + 1) % cluster.num_blocks();
    const float* next = cluster.map_shared_rank(part, other);
    for (int i = threadIdx.x; i < each; i += THREADS)
        if (int(other) * each + i < columns) out[row + other * each + i] = next[i] / sum;
    cluster.sync();  // Nobody leaves before its memory has been read.
}

torch::Tensor forward(torch::Tensor x, torch::Tensor y) {
    auto out = torch::empty_like(x);
    const int columns = int(x.size(-1)), rows = int(x.numel() / columns);
    cudaLaunchAttribute attribute[1];
    attribute[0].id = cudaLaunchAttributeClusterDimension;
    attribute[0].val.clusterDim.x = BLOCKS;
    attribute[0].val.clusterDim.y = attribute[0].val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(rows * BLOCKS);
    config.blockDim = dim3(THREADS);
    config.dynamicSmemBytes = (columns + BLOCKS - 1) / BLOCKS * sizeof(float);
    config.stream = at::cuda::getCurrentCUDAStream();
    config.attrs = attribute;
    config.numAttrs = 1;
    const float *a = x.data_ptr<float>(), *b = y.data_ptr<float>();
    TORCH_CHECK(cudaLaunchKernelEx(&config, cluster_softmax, a, b, out.data_ptr<float>(), columns) == cudaSuccess);
    return out;
}
