// forward: x[b, i, j] -> out[b, j, i], contiguous; y is not used
#include <torch/extension.h>

template <typename T, int TILE = 32, int ROWS = 8>
__global__ void transpose(const T* __restrict__ in, T* __restrict__ out, int height, int width) {
    __shared__ T tile[TILE][TILE + 1];
    const size_t batch = size_t(blockIdx.z) * height * width;
    int x = blockIdx.x * TILE + threadIdx.x, y = blockIdx.y * TILE + threadIdx.y;
    for (int j = 0; j < TILE; j += ROWS)
        if (x < width && y + j < height) tile[threadIdx.y + j][threadIdx.x] = in[batch + size_t(y + j) * width + x];
    __syncthreads();
    x = blockIdx.y * TILE + threadIdx.x;
    y = blockIdx.x * TILE + threadIdx.y;
    for (int j = 0; j < TILE; j += ROWS)
        if (x < height && y + j < width) out[batch + size_t(y + j) * height + x] = tile[threadIdx.x][threadIdx.y + j];
}

torch::Tensor forward(torch::Tensor x, torch::Tensor) {
    auto out = torch::empty({x.size(0), x.size(2), x.size(1)}, x.options());
    const dim3 grid((x.size(2) + 31) / 32, (x.size(1) + 31) / 32, x.size(0));
    transpose<float><<<grid, dim3(32, 8)>>>(x.data_ptr<float>(), out.data_ptr<float>(), x.size(1), x.size(2));
    return out;
}
