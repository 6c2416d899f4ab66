// Streams, guards and device facts of at::cuda and c10::cuda. hiera_mini holds the types whose layout is ours.
#pragma once
#include <hiera_mini/tensor.h>

namespace hiera_mini {
class CUDAStream {
 public:
  CUDAStream(void* stream, DeviceIndex index) : stream_(static_cast<cudaStream_t>(stream)), index_(index) {}
  cudaStream_t stream() const { return stream_; }
  operator cudaStream_t() const { return stream_; }
  DeviceIndex device_index() const { return index_; }
  void synchronize() const { C10_CUDA_CHECK(cudaStreamSynchronize(stream_)); }

 private:
  cudaStream_t stream_;
  DeviceIndex index_;
};

inline DeviceIndex current_device() {
  int index = 0;
  if (cudaGetDevice(&index) != cudaSuccess) (void)cudaGetLastError();
  return static_cast<DeviceIndex>(index);
}
inline CUDAStream getCurrentCUDAStream(DeviceIndex index = -1) {
  return {hm_cuda_stream(index), index < 0 ? current_device() : index};
}
inline CUDAStream getDefaultCUDAStream(DeviceIndex index = -1) {
  return {nullptr, index < 0 ? current_device() : index};
}

// torch has 32 streams in a pool; whoever records a graph needs one that is not the default, which is ours.
inline CUDAStream getStreamFromPool(bool = false, DeviceIndex index = -1) {
  static cudaStream_t streams[64];
  const DeviceIndex device = index < 0 ? current_device() : index;
  cudaStream_t& stream = streams[device & 63];
  if (stream == nullptr) C10_CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return {stream, device};
}
class CUDAStreamGuard {
 public:
  explicit CUDAStreamGuard(CUDAStream stream) : guard_(hm_open_stream_guard(stream.stream(), stream.device_index())) {}
  CUDAStreamGuard(const CUDAStreamGuard&) = delete;
  CUDAStreamGuard& operator=(const CUDAStreamGuard&) = delete;
  ~CUDAStreamGuard() { hm_close_stream_guard(guard_); }

 private:
  void* guard_;
};

class CUDAGuard {
 public:
  explicit CUDAGuard(Device device) { set_index(device.index()); }
  explicit CUDAGuard(DeviceIndex index) { set_index(index); }
  CUDAGuard(const CUDAGuard&) = delete;
  CUDAGuard& operator=(const CUDAGuard&) = delete;
  ~CUDAGuard() {
    if (previous_ >= 0) cudaSetDevice(previous_);
  }
  void set_device(Device device) { set_index(device.index()); }
  void set_index(int index) {
    if (index < 0) return;
    const int current = current_device();
    if (current == index) return;
    if (previous_ < 0) previous_ = current;
    C10_CUDA_CHECK(cudaSetDevice(index));
  }

 protected:
  CUDAGuard() = default;

 private:
  int previous_ = -1;
};
class OptionalCUDAGuard : public CUDAGuard {
 public:
  OptionalCUDAGuard() = default;
  explicit OptionalCUDAGuard(std::optional<Device> device) {
    if (device) set_index(device->index());
  }
  explicit OptionalCUDAGuard(DeviceIndex index) : CUDAGuard(index) {}
};

inline cudaDeviceProp* getDeviceProperties(DeviceIndex index) {
  static cudaDeviceProp properties[64];
  static bool known[64];
  const int slot = (index < 0 ? current_device() : index) & 63;
  if (!known[slot]) {
    C10_CUDA_CHECK(cudaGetDeviceProperties(&properties[slot], slot));
    known[slot] = true;
  }
  return &properties[slot];
}
inline cudaDeviceProp* getCurrentDeviceProperties() { return getDeviceProperties(-1); }
inline int warp_size() { return 32; }
inline DeviceIndex device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) (void)cudaGetLastError();
  return static_cast<DeviceIndex>(count);
}
inline void set_device(DeviceIndex index) { C10_CUDA_CHECK(cudaSetDevice(index)); }
inline void device_synchronize() { C10_CUDA_CHECK(cudaDeviceSynchronize()); }
}  // namespace hiera_mini

namespace at {
using DeviceGuard = hiera_mini::CUDAGuard;
using OptionalDeviceGuard = hiera_mini::OptionalCUDAGuard;
namespace cuda {
using hiera_mini::CUDAGuard;
using hiera_mini::CUDAStream;
using hiera_mini::CUDAStreamGuard;
using hiera_mini::current_device;
using hiera_mini::device_count;
using hiera_mini::getCurrentCUDAStream;
using hiera_mini::getCurrentDeviceProperties;
using hiera_mini::getDefaultCUDAStream;
using hiera_mini::getStreamFromPool;
using hiera_mini::getDeviceProperties;
using hiera_mini::OptionalCUDAGuard;
using hiera_mini::set_device;
using hiera_mini::warp_size;
}  // namespace cuda
}  // namespace at

namespace c10 {
namespace cuda {
using hiera_mini::CUDAGuard;
using hiera_mini::CUDAStream;
using hiera_mini::CUDAStreamGuard;
using hiera_mini::current_device;
using hiera_mini::device_count;
using hiera_mini::device_synchronize;
using hiera_mini::getCurrentCUDAStream;
using hiera_mini::getDefaultCUDAStream;
using hiera_mini::getStreamFromPool;
using hiera_mini::OptionalCUDAGuard;
using hiera_mini::set_device;
using hiera_mini::warp_size;
}  // namespace cuda
}  // namespace c10
