// One explicit step of the heat equation on a 3-D grid in double precision: a 7-point stencil, fixed borders.
// A bare kernel, as a simulation code has it. The grid is 192 x 192 x 192, x varies fastest.
//
// hiera: entry heat_step
// hiera: arg u in float64[192, 192, 192]
// hiera: arg next out float64[192, 192, 192]
// hiera: arg nx 192
// hiera: arg ny 192
// hiera: arg nz 192
// hiera: arg alpha 0.1
// hiera: launch grid=((nx + 31) / 32, (ny + 3) / 4, (nz + 3) / 4) block=(32, 4, 2) shared=0

__global__ void heat_step(const double* u, double* next, int nx, int ny, int nz, double alpha) {
  int x = blockIdx.x * blockDim.x + threadIdx.x;
  int y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x >= nx || y >= ny) return;
  size_t plane = (size_t)nx * ny;
  // Each thread walks a few planes.
  for (int z = blockIdx.z * blockDim.z + threadIdx.z; z < nz; z += gridDim.z * blockDim.z) {
    size_t here = (size_t)z * plane + (size_t)y * nx + x;
    double centre = u[here];
    bool border = x == 0 || y == 0 || z == 0 || x == nx - 1 || y == ny - 1 || z == nz - 1;
    if (border) {
      next[here] = centre;
    } else {
      next[here] = centre + alpha * (u[here - 1] + u[here + 1] + u[here - nx] + u[here + nx] + u[here - plane] +
                                     u[here + plane] - 6.0 * centre);
    }
  }
}
