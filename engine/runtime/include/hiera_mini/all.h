// What every shadow header (torch/extension.h, ATen/*, c10/*) includes. See engine/evaluate/operators.py for the two
// generated files; they lie beside the candidate's source.
#pragma once
#include "hiera_ops_decl.h"  // HM_METHOD_DECLS, HIERA_MINI_HALF, standard headers that the source leans on.
#include <hiera_mini/binding.h>
#include <hiera_mini/dispatch.h>
#include <hiera_mini/irange.h>
#include <hiera_mini/stream.h>
#include "hiera_ops.h"  // at::_ops declarations, functions, method bodies, arithmetic.

namespace torch {
using namespace at;
using at::Tensor;
using c10::NoGradGuard;
}  // namespace torch
