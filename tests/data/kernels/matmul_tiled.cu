// forward: x @ y for matrices of any size
#include <torch/extension.h>

constexpr int kTile = 16;

__global__ void matmul_tiled(const float* __restrict__ x, const float* __restrict__ y, float* __restrict__ out, int rows,
                             int columns, int depth) {
    __shared__ float left[kTile][kTile], right[kTile][kTile + 1];
    const int row = blockIdx.y * kTile + threadIdx.y, column = blockIdx.x * kTile + threadIdx.x;
    float sum = 0.0f;
    for (int start = 0; start < depth; start += kTile) {
        const int k = start + threadIdx.x, p = start + threadIdx.y;
        left[threadIdx.y][threadIdx.x] = row < rows && k < depth ? x[size_t(row) * depth + k] : 0.0f;
        right[threadIdx.y][threadIdx.x] = p < depth && column < columns ? y[size_t(p) * columns + column] : 0.0f;
        __syncthreads();
#pragma unroll
        for (int i = 0; i < kTile; ++i) sum = fmaf(left[threadIdx.y][i], right[i][threadIdx.x], sum);
        __syncthreads();
    }
    if (row < rows && column < columns) out[size_t(row) * columns + column] = sum;
}

torch::Tensor forward(torch::Tensor x, torch::Tensor y) {
    const int rows = x.size(0), depth = x.size(1), columns = y.size(1);
    auto out = torch::empty({rows, columns}, x.options());
    const dim3 grid((columns + kTile - 1) / kTile, (rows + kTile - 1) / kTile), block(kTile, kTile);
    matmul_tiled<<<grid, block>>>(x.data_ptr<float>(), y.data_ptr<float>(), out.data_ptr<float>(), rows, columns, depth);
    return out;
}
