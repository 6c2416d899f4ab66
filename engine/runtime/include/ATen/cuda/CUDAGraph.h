// at::cuda::CUDAGraph: torch's own class, of which only the functions are named here. Its members differ between versions,
// so there is room for any of them; its functions come from libtorch_cuda.
#pragma once
#include <hiera_mini/all.h>

#include <utility>

namespace at {
namespace cuda {
struct CUDAGraph {
  CUDAGraph(bool keep_graph = false);
  ~CUDAGraph();
  CUDAGraph(const CUDAGraph&) = delete;
  CUDAGraph& operator=(const CUDAGraph&) = delete;
  void capture_begin(std::pair<unsigned long long, unsigned long long> pool = {0, 0},
                     cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal);
  void capture_end();
  void replay();
  void reset();

 private:
  alignas(16) unsigned char members_[4096];
};
}  // namespace cuda
}  // namespace at
