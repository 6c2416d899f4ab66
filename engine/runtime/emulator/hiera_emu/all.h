// CUDA C++ on the CPU: the same kernel text, one block at a time, each CUDA thread a fiber.
// Made for numerics and diagnostics. x86-64 and aarch64 Linux, g++ or clang++.
//
//   qualifiers, vectors    the language's keywords and types
//   fibers, block, guard   threads that wait, the scheduler, limits and faults
//   launch, warp, atomics  grids, collectives, memory operations
//   math, runtime_api      device mathematics, host calls
//   tensor_cores           matrix instructions, where inline PTX names them
//   half                   included by cuda_fp16.h and cuda_bf16.h
#pragma once
#include "math.h"

#include "atomics.h"
#include "runtime_api.h"
#include "tensor_cores.h"
