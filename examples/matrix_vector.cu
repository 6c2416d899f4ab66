// Dense matrix-vector product y = A x, with a C launcher, as a C++ program calls it.
// A is row-major, rows x columns.
//
// hiera: entry matrix_vector
// hiera: arg a in float32[4096, 2048]
// hiera: arg x in float32[2048]
// hiera: arg y out float32[4096]
// hiera: arg rows 4096
// hiera: arg columns 2048
// hiera: reference torch.mv(a, x)

#include <cuda_runtime.h>

__global__ void matrix_vector_kernel(const float* a, const float* x, float* y, int rows, int columns) {
  int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  float sum = 0.0f;
  for (int column = 0; column < columns; ++column) {
    sum += a[(size_t)row * columns + column] * x[column];
  }
  y[row] = sum;
}

extern "C" void matrix_vector(const float* a, const float* x, float* y, int rows, int columns, cudaStream_t stream) {
  const int threads = 128;
  matrix_vector_kernel<<<(rows + threads - 1) / threads, threads, 0, stream>>>(a, x, y, rows, columns);
}
