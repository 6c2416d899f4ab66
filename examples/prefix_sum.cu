// Inclusive prefix sum of every row, one block a row: a Hillis-Steele scan of tiles with a running carry.
//
// hiera: entry prefix_sum_rows
// hiera: arg x in float32[128, 8192]
// hiera: arg out out float32[128, 8192]
// hiera: arg columns 8192
// hiera: launch grid=(128) block=(256) shared=0
// hiera: reference torch.cumsum(x, dim=1)

#define TILE 256

__global__ void prefix_sum_rows(const float* __restrict__ x, float* __restrict__ out, int columns) {
  __shared__ float tile[TILE];
  const float* row = x + (size_t)blockIdx.x * columns;
  float* result = out + (size_t)blockIdx.x * columns;
  float carry = 0.0f;
  for (int start = 0; start < columns; start += TILE) {
    int column = start + threadIdx.x;
    tile[threadIdx.x] = column < columns ? row[column] : 0.0f;
    __syncthreads();
    for (int step = 1; step < TILE; step *= 2) {
      float before = threadIdx.x >= step ? tile[threadIdx.x - step] : 0.0f;
      __syncthreads();
      tile[threadIdx.x] += before;
      __syncthreads();
    }
    if (column < columns) result[column] = carry + tile[threadIdx.x];
    carry += tile[TILE - 1];
    __syncthreads();
  }
}
