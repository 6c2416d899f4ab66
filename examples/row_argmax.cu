// Index of the largest element of every row, bound to Python. The first index wins among equals, and NaN wins, as in
// torch.argmax.
//
// hiera: entry row_argmax
// hiera: arg x in float32[1024, 8192]
// hiera: returns int64[1024]
// hiera: reference torch.argmax(x, dim=1)

#include <torch/extension.h>
#include <c10/cuda/CUDAStream.h>

__global__ void row_argmax_kernel(const float* __restrict__ x, int64_t* __restrict__ out, int columns) {
  extern __shared__ char storage[];
  float* best = reinterpret_cast<float*>(storage);
  int* where = reinterpret_cast<int*>(best + blockDim.x);
  const float* row = x + (size_t)blockIdx.x * columns;
  float largest = -INFINITY;
  int index = 0;
  for (int column = threadIdx.x; column < columns; column += blockDim.x) {
    const float value = row[column];
    if (value > largest || (isnan(value) && !isnan(largest))) {
      largest = value;
      index = column;
    }
  }
  best[threadIdx.x] = largest;
  where[threadIdx.x] = index;
  __syncthreads();
  for (int step = blockDim.x / 2; step > 0; step /= 2) {
    if (threadIdx.x < step) {
      const float mine = best[threadIdx.x], other = best[threadIdx.x + step];
      const int other_index = where[threadIdx.x + step];
      const bool equal = other == mine || (isnan(other) && isnan(mine));
      const bool larger = other > mine || (isnan(other) && !isnan(mine));
      if (larger || (equal && other_index < where[threadIdx.x])) {
        best[threadIdx.x] = other;
        where[threadIdx.x] = other_index;
      }
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) out[blockIdx.x] = where[0];
}

torch::Tensor row_argmax(torch::Tensor x) {
  TORCH_CHECK(x.dim() == 2 && x.scalar_type() == torch::kFloat32, "row_argmax takes a float32 matrix");
  auto input = x.contiguous();
  auto out = torch::empty({input.size(0)}, input.options().dtype(torch::kInt64));
  const int threads = 256;
  const size_t shared_bytes = threads * (sizeof(float) + sizeof(int));
  row_argmax_kernel<<<input.size(0), threads, shared_bytes, c10::cuda::getCurrentCUDAStream()>>>(
      input.data_ptr<float>(), out.data_ptr<int64_t>(), (int)input.size(1));
  return out;
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("row_argmax", &row_argmax, "Index of the largest element of every row");
}
