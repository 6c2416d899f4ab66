// CUDA's keywords on a host compiler. `__shared__` is static: blocks run one after another, so the
// block's memory can be the function's own; `hiera_emu::poison_shared` refills it for each block.
#pragma once

#ifndef HIERA_EMU
#define HIERA_EMU 1
#endif
#ifndef HIERA_EMU_ARCH
#define HIERA_EMU_ARCH 900
#endif
#define __CUDACC__ 1
#define __NVCC__ 1
#define __CUDA_ARCH__ HIERA_EMU_ARCH
#define __CUDACC_VER_MAJOR__ 13
#define __CUDACC_VER_MINOR__ 0
#define CUDART_VERSION 13000
#define CUDA_VERSION 13000

// __noinline__ is rewritten in the text: the C++ library has an attribute of that name.
#define __global__
#define __device__
#define __host__
#define __constant__
#define __managed__
#define __shared__ static
#define __forceinline__ inline __attribute__((always_inline))
#define __inline_hint__
#define __launch_bounds__(...)
#define __maxnreg__(...)
#define __block_size__(...)
#define __cluster_dims__(...)
#define __grid_constant__
#define __nv_pure__
#define __restrict__ __restrict
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_align__(n) __attribute__((aligned(n)))
#define __builtin_assume(condition) ((void)0)
#define CUDART_CB
