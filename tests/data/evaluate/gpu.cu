// y = 2 x + 1 on a GPU: streams, graphs, L2, launches that fail. What the CPU cannot show. `honest` is accepted.
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <cooperative_groups.h>
#include <map>
#include <vector>

using torch::Tensor;

static float* fp(const Tensor& t) { return t.data_ptr<float>(); }
static cudaStream_t current() { return at::cuda::getCurrentCUDAStream(); }
static cudaStream_t side() {
  static cudaStream_t stream = [] { cudaStream_t s; cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking); return s; }();
  return stream;
}

__global__ void scale_kernel(const float* x, float* y, int64_t n) {
  for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x)
    y[i] = 2.f * x[i] + 1.f;
}
static void scale(const float* x, float* y, int64_t n, cudaStream_t stream) {
  scale_kernel<<<(unsigned)std::min<int64_t>((n + 255) / 256, 4096), 256, 0, stream>>>(x, y, n);
}

// scale | honest | - | the current stream
Tensor honest_scale(Tensor x) {
  Tensor y = torch::empty_like(x);
  scale(fp(x), fp(y), x.numel(), current());
  return y;
}
// scale | honest | - | half of the work on a side stream that waits and is waited for
Tensor honest_joined_stream(Tensor x) {
  Tensor y = torch::empty_like(x);
  cudaEvent_t begin, end;
  cudaEventCreateWithFlags(&begin, cudaEventDisableTiming);
  cudaEventCreateWithFlags(&end, cudaEventDisableTiming);
  cudaEventRecord(begin, current());
  cudaStreamWaitEvent(side(), begin, 0);
  int64_t half = x.numel() / 2;
  scale(fp(x), fp(y), half, side());
  scale(fp(x) + half, fp(y) + half, x.numel() - half, current());
  cudaEventRecord(end, side());
  cudaStreamWaitEvent(current(), end, 0);
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  return y;
}
struct Captured {
  cudaGraphExec_t run = nullptr;
  Tensor from, to;
};
static Captured capture(const Tensor& from, const Tensor& to) {
  Captured made{nullptr, from, to};
  cudaGraph_t graph;
  cudaStreamBeginCapture(side(), cudaStreamCaptureModeThreadLocal);
  scale(fp(from), fp(to), from.numel(), side());
  cudaStreamEndCapture(side(), &graph);
  cudaGraphInstantiate(&made.run, graph, 0);
  cudaGraphDestroy(graph);
  return made;
}
// scale | honest | - | a graph over buffers of its own, values copied in and out
Tensor honest_graph(Tensor x) {
  static std::map<int64_t, Captured> known;
  Captured& one = known[x.numel()];
  if (!one.run) one = capture(torch::empty_like(x), torch::empty_like(x));
  Tensor y = torch::empty_like(x);
  size_t size = x.numel() * sizeof(float);
  cudaMemcpyAsync(fp(one.from), fp(x), size, cudaMemcpyDeviceToDevice, current());
  cudaGraphLaunch(one.run, current());
  cudaMemcpyAsync(fp(y), fp(one.to), size, cudaMemcpyDeviceToDevice, current());
  return y;
}
// scale | honest | - | scratch of the stream-ordered allocator
Tensor honest_async_scratch(Tensor x) {
  float* scratch = nullptr;
  TORCH_CHECK(cudaMallocAsync(&scratch, x.numel() * sizeof(float), current()) == cudaSuccess);
  scale(fp(x), scratch, x.numel(), current());
  Tensor y = torch::empty_like(x);
  cudaMemcpyAsync(fp(y), scratch, x.numel() * sizeof(float), cudaMemcpyDeviceToDevice, current());
  cudaFreeAsync(scratch, current());
  return y;
}
__global__ void grid_kernel(const float* x, float* y, int64_t n) {
  for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x) y[i] = 2.f * x[i];
  cooperative_groups::this_grid().sync();
  for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x) y[i] += 1.f;
}
// scale | honest | - | a barrier over the whole grid, launched so that all blocks run at once
Tensor honest_cooperative(Tensor x) {
  Tensor y = torch::empty_like(x);
  int blocks = 0;
  cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, grid_kernel, 256, 0);
  blocks *= at::cuda::getCurrentDeviceProperties()->multiProcessorCount;
  const float* from = fp(x);
  float* to = fp(y);
  int64_t n = x.numel();
  void* arguments[] = {&from, &to, &n};
  TORCH_CHECK(cudaLaunchCooperativeKernel((void*)grid_kernel, blocks, 256, arguments, 0, current()) == cudaSuccess);
  return y;
}
__global__ void memset(const float* x, float* y, int64_t n, int) {
  int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
  if (i < n) y[i] = 2.f * x[i] + 1.f;
}
// scale | 51 | harmless | a kernel that calls itself memset
Tensor called_memset(Tensor x) {
  Tensor y = torch::empty_like(x);
  memset<<<(unsigned)((x.numel() + 255) / 256), 256, 0, current()>>>(fp(x), fp(y), x.numel(), 0);
  return y;
}
// scale | 52 | harmless | computed by the host
Tensor by_the_host(Tensor x) {
  std::vector<float> values(x.numel());
  size_t size = values.size() * sizeof(float);
  cudaMemcpyAsync(values.data(), fp(x), size, cudaMemcpyDeviceToHost, current());
  cudaStreamSynchronize(current());
  for (float& value : values) value = 2.f * value + 1.f;
  Tensor y = torch::empty_like(x);
  cudaMemcpyAsync(fp(y), values.data(), size, cudaMemcpyHostToDevice, current());
  cudaStreamSynchronize(current());
  return y;
}
// scale | 39 | stream order, numeric, poison | a side stream that nobody waits for
Tensor side_stream(Tensor x) {
  Tensor y = torch::empty_like(x);
  scale(fp(x), fp(y), x.numel(), side());
  return y;
}
// scale | 39, 60 | stream order, numeric, poison | the side stream is joined before its last kernel, and its scratch freed
Tensor joined_too_early(Tensor x) {
  Tensor y = torch::empty_like(x), scratch = torch::empty_like(x);
  cudaEvent_t begin, end;
  cudaEventCreateWithFlags(&begin, cudaEventDisableTiming);
  cudaEventCreateWithFlags(&end, cudaEventDisableTiming);
  cudaEventRecord(begin, current());
  cudaStreamWaitEvent(side(), begin, 0);
  cudaMemcpyAsync(fp(scratch), fp(x), x.numel() * sizeof(float), cudaMemcpyDeviceToDevice, side());
  cudaEventRecord(end, side());
  scale_kernel<<<1, 256, 0, side()>>>(fp(scratch), fp(y), x.numel());  // Slow, so that what comes next is ahead of it.
  cudaStreamWaitEvent(current(), end, 0);
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  return y;
}
// scale | 35 | fresh inputs, numeric, poison, held outputs | a graph that keeps the addresses of the first call
Tensor stale_graph(Tensor x) {
  static std::map<int64_t, Captured> known;
  Captured& one = known[x.numel()];
  if (!one.run) one = capture(x, torch::empty_like(x));
  cudaGraphLaunch(one.run, current());
  return one.to;
}
// scale | 44 | backend flags | sets L2 aside for itself
Tensor persisting(Tensor x) {
  cudaDeviceSetLimit(cudaLimitPersistingL2CacheSize, 16 << 20);
  return honest_scale(x);
}
__device__ unsigned arrived;
__global__ void barrier_kernel(const float* x, float* y, int64_t n) {
  if (threadIdx.x == 0) {
    atomicAdd(&arrived, 1u);
    while (atomicAdd(&arrived, 0u) < gridDim.x) {}
  }
  __syncthreads();
  int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
  if (i < n) y[i] = 2.f * x[i] + 1.f;
}
// scale | 57 | runs | a barrier of more blocks than run at once
Tensor barrier_of_many(Tensor x) {
  Tensor y = torch::empty_like(x);
  barrier_kernel<<<1 << 20, 1024, 0, current()>>>(fp(x), fp(y), x.numel());
  return y;
}
// scale | 58 | cuda errors, poison | more shared memory than there is
Tensor too_much_shared(Tensor x) {
  Tensor y = torch::empty_like(x);
  scale_kernel<<<256, 256, 256 << 10, current()>>>(fp(x), fp(y), x.numel());
  return y;
}
// scale | 59 | cuda errors | right, but an error stays behind
Tensor leaves_error(Tensor x) {
  Tensor y = honest_scale(x);
  cudaFree(reinterpret_cast<void*>(256));
  return y;
}
// scale | 65 | runs | takes all memory of the GPU
Tensor hoards_gpu(Tensor x) {
  for (int i = 0; i < 64; ++i) {
    void* kept = nullptr;
    if (cudaMalloc(&kept, size_t(4) << 30) != cudaSuccess) break;
  }
  cudaGetLastError();
  return honest_scale(x);
}

__global__ void flip_kernel(const uint8_t* x, uint8_t* y, int64_t n) {
  for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x) y[i] = x[i] ^ 1;
}
__global__ void narrow_kernel(const uint8_t* x, uint8_t* y, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n && i >= 0; i += gridDim.x * blockDim.x) y[i] = x[i] ^ 1;
}
// flip | honest | - | 64-bit indices
Tensor honest_flip(Tensor x) {
  Tensor y = torch::empty_like(x);
  flip_kernel<<<4096, 256, 0, current()>>>(x.data_ptr<uint8_t>(), y.data_ptr<uint8_t>(), x.numel());
  return y;
}
// flip | 15 | numeric | 32-bit indices
Tensor narrow_flip(Tensor x) {
  Tensor y = torch::zeros_like(x);
  narrow_kernel<<<4096, 256, 0, current()>>>(x.data_ptr<uint8_t>(), y.data_ptr<uint8_t>(), (int)x.numel());
  return y;
}
