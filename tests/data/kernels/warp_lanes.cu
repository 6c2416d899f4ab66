// forward: row w of the result is what warp w computes with one collective over x[0..31]; y is not used
#include <cuda_runtime.h>
#include <torch/extension.h>

__global__ void warp_lanes(const float* x, float* out) {
    const unsigned all = 0xffffffffu;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const float v = x[lane];
    float r = 0.0f;
    switch (warp) {
        case 0: r = __shfl_up_sync(all, v, 3); break;
        case 1: r = __shfl_down_sync(all, v, 5, 16); break;
        case 2: r = __shfl_xor_sync(all, v, 9); break;
        case 3: r = __shfl_sync(all, v, 2, 8); break;
        case 4: r = __popc(__ballot_sync(all, v > 0.0f)); break;
        case 5: r = __any_sync(all, v > 100.0f) + 2 * __all_sync(all, v > -100.0f); break;
        case 6: r = __reduce_add_sync(all, lane); break;
        case 7: r = __popc(__match_any_sync(all, lane / 5)); break;
        case 8: if (lane < 16) r = __shfl_xor_sync(0x0000ffffu, v, 1); else r = __shfl_xor_sync(0xffff0000u, v, 2); break;
        case 9: { double d = v; for (int o = 16; o; o /= 2) d += __shfl_xor_sync(all, d, o); r = d; break; }
        case 10: r = __uni_sync(all, lane >= 0) + 2 * __reduce_max_sync(all, lane ^ 5); break;
    }
    out[threadIdx.x] = r;
    const int in_all = __syncthreads_count(1);
    if (warp == 11) out[threadIdx.x] = in_all;
}

torch::Tensor forward(torch::Tensor x, torch::Tensor) {
    auto out = torch::zeros({12, 32}, x.options());
    warp_lanes<<<1, 12 * 32>>>(x.data_ptr<float>(), out.data_ptr<float>());
    return out;
}
