// forward: layer_norm(softmax(linear(x, y))) by ATen, then leaky_relu by an own kernel
#include <torch/extension.h>

__global__ void leaky(float* x, int64_t n) {
    const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < n) x[i] = x[i] > 0.0f ? x[i] : 0.1f * x[i];
}

torch::Tensor forward(torch::Tensor x, torch::Tensor y) {
    auto h = at::linear(x, y);
    auto out = at::layer_norm(at::softmax(h, -1), {h.size(-1)}).contiguous() + h.mean(-1, true);
    leaky<<<(out.numel() + 63) / 64, 64>>>(out.data_ptr<float>(), out.numel());
    return out;
}
