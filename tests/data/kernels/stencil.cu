// forward: 5x5 correlation of image x with weights y, zero padding, fp64
#include <torch/extension.h>

constexpr int R = 2, BX = 32, BY = 8;
__constant__ double weights[(2 * R + 1) * (2 * R + 1)];

__global__ void stencil(const double* in, double* out, int height, int width) {
    __shared__ double tile[BY + 2 * R][BX + 2 * R];
    constexpr int TX = BX + 2 * R, TY = BY + 2 * R;
    for (int i = threadIdx.y * BX + threadIdx.x; i < TX * TY; i += BX * BY) {
        const int y = int(blockIdx.y * BY) + i / TX - R, x = int(blockIdx.x * BX) + i % TX - R;
        tile[i / TX][i % TX] = y >= 0 && y < height && x >= 0 && x < width ? in[size_t(y) * width + x] : 0.0;
    }
    __syncthreads();
    const int x = blockIdx.x * BX + threadIdx.x, y = blockIdx.y * BY + threadIdx.y;
    if (x >= width || y >= height) return;
    double sum = 0.0;
#pragma unroll
    for (int j = 0; j <= 2 * R; ++j)
        for (int i = 0; i <= 2 * R; ++i) sum += weights[j * (2 * R + 1) + i] * tile[threadIdx.y + j][threadIdx.x + i];
    out[size_t(y) * width + x] = sum;
}

torch::Tensor forward(torch::Tensor x, torch::Tensor y) {
    auto out = torch::empty_like(x);
    const int height = x.size(0), width = x.size(1);
    cudaMemcpyToSymbolAsync(weights, y.data_ptr<double>(), sizeof(weights), 0, cudaMemcpyDeviceToDevice,
                            at::cuda::getCurrentCUDAStream());
    stencil<<<dim3((width + BX - 1) / BX, (height + BY - 1) / BY), dim3(BX, BY)>>>(x.data_ptr<double>(),
                                                                                   out.data_ptr<double>(), height, width);
    return out;
}
