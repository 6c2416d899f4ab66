// at::cuda::CUDAGraph of own kernels: launches between begin and end are kept, and run at each replay. What runs inside a
// library would run once only; cuda_to_host refuses such sources.
#pragma once
#include <hiera_emu/all.h>
#include <hiera_mini/all.h>

namespace at {
namespace cuda {
struct CUDAGraph {
    void capture_begin(std::pair<unsigned long long, unsigned long long> = {0, 0},
                       cudaStreamCaptureMode = cudaStreamCaptureModeGlobal) {
        if (hiera_emu::recorder) hiera_emu::die("a CUDA graph is recorded while another one is");
        launches_.clear();
        hiera_emu::recorder = &launches_;
        hiera_mini::recording = true;
    }
    void capture_end() {
        hiera_emu::recorder = nullptr;
        hiera_mini::recording = false;
    }
    void replay() {
        for (auto& launch : launches_) launch();
    }

private:
    std::vector<std::function<void()>> launches_;
};
}  // namespace cuda
}  // namespace at
