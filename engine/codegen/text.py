"""Fixed text of a source: helpers that host functions share, and the comment on top."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

from contracts.contract import Contract
from engine.codegen import Recipe
from engine.codegen.format_copies import PACK_WEIGHTS

# Each helper is pasted only where a source calls it.
HOST_HELPERS: dict[str, str] = {
    "lies_as": """\
// True when `value` begins on 16 bytes, as wide accesses need, and lies in memory as `strides` say. Dimensions of
// size 1 do not count.
static bool lies_as(const at::Tensor& value, at::IntArrayRef strides) {
  if (reinterpret_cast<uintptr_t>(value.const_data_ptr()) % 16 != 0) return false;
  for (int64_t d = 0; d < value.dim(); ++d) {
    if (value.size(d) != 1 && value.stride(d) != strides[d]) return value.numel() == 0;
  }
  return true;
}
""",
    "copy_into": """\
// Copies every element of `source` into `target`; both have the same sizes, each its own strides.
struct CopyLayout {
  int64_t sizes[8], source_steps[8], target_steps[8], numel;
};
template <typename Word>
__device__ void copy_word(const void* source, void* target, int64_t from, int64_t to) {
  static_cast<Word*>(target)[to] = static_cast<const Word*>(source)[from];
}
__global__ void copy_elements(const void* source, void* target, const CopyLayout layout, int element_bytes) {
  const int64_t threads = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < layout.numel; i += threads) {
    int64_t rest = i, from = 0, to = 0;
    for (int d = 7; d >= 0; --d) {
      const int64_t position = rest % layout.sizes[d];
      rest /= layout.sizes[d];
      from += position * layout.source_steps[d];
      to += position * layout.target_steps[d];
    }
    switch (element_bytes) {
      case 1: copy_word<uint8_t>(source, target, from, to); break;
      case 2: copy_word<uint16_t>(source, target, from, to); break;
      case 4: copy_word<uint32_t>(source, target, from, to); break;
      case 8: copy_word<uint64_t>(source, target, from, to); break;
      default: copy_word<double2>(source, target, from, to);
    }
  }
}
static void copy_into(const at::Tensor& target, const at::Tensor& source) {
  TORCH_CHECK(source.dim() <= 8, "copies of more than 8 dimensions are not written");
  if (source.numel() == 0) return;
  CopyLayout layout{};
  layout.numel = source.numel();
  for (int64_t d = 0; d < 8; ++d) layout.sizes[d] = 1;
  for (int64_t d = 0; d < source.dim(); ++d) {
    layout.sizes[d] = source.size(d);
    layout.source_steps[d] = source.stride(d);
    layout.target_steps[d] = target.stride(d);
  }
  const int64_t wanted = (layout.numel + 255) / 256;
  const unsigned blocks = static_cast<unsigned>(wanted < 65535 ? wanted : 65535);
  const cudaStream_t stream = at::cuda::getCurrentCUDAStream();
  const int element_bytes = static_cast<int>(source.element_size());
  copy_elements<<<blocks, 256, 0, stream>>>(source.const_data_ptr(), target.data_ptr(), layout, element_bytes);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}
""",
    "fresh_copy": """\
// A copy with the given strides that shares no memory with `value`. Stride 0 repeats one element.
static at::Tensor fresh_copy(const at::Tensor& value, at::IntArrayRef strides) {
  at::Tensor distinct = value;
  for (int64_t d = 0; d < value.dim(); ++d) {
    if (strides[d] == 0 && value.size(d) > 1) distinct = distinct.narrow(d, 0, 1);
  }
  at::Tensor copy = at::empty_strided(distinct.sizes(), strides, value.options());
  copy_into(copy, distinct);
  return copy.expand(value.sizes());
}
""",
    "with_strides": """\
// `value` itself where it lies in memory as kernels expect, else a copy that does.
static at::Tensor with_strides(const at::Tensor& value, at::IntArrayRef strides) {
  return lies_as(value, strides) ? value : fresh_copy(value, strides);
}
""",
    "check_tensor": """\
// Refuses what this source was not written for.
static void check_tensor(const at::Tensor& value, const char* name, at::ScalarType dtype, at::IntArrayRef sizes,
                         const at::Tensor& first) {
  TORCH_CHECK(value.is_cuda(), name, " must be a CUDA tensor");
  TORCH_CHECK(value.get_device() == first.get_device(), name, " is on another GPU than the first argument");
  TORCH_CHECK(value.scalar_type() == dtype, name, " must have dtype ", dtype, ", not ", value.scalar_type());
  TORCH_CHECK(value.sizes() == sizes, name, " must have sizes ", sizes, ", not ", value.sizes());
}
""",
    "check_written": """\
// Refuses a tensor that is written to and does not lie as kernels expect: the caller would not see a copy's update.
static void check_written(const at::Tensor& value, const char* name, at::ScalarType dtype, at::IntArrayRef sizes,
                          at::IntArrayRef strides, const at::Tensor& first) {
  check_tensor(value, name, dtype, sizes, first);
  TORCH_CHECK(lies_as(value, strides), name,
              " is written in place: it must have the contract's strides and begin on 16 bytes");
}
""",
    "check_argument": """\
// The argument as kernels expect it.
static at::Tensor check_argument(const at::Tensor& value, const char* name, at::ScalarType dtype,
                                 at::IntArrayRef sizes, at::IntArrayRef strides, const at::Tensor& first) {
  check_tensor(value, name, dtype, sizes, first);
  return with_strides(value, strides);
}
""",
    "advance_counters": """\
// Adds `step` to every counter (such as the number of batches that a norm has seen) in one launch.
struct Counters {
  int64_t* at[256];
};
__global__ void advance_counters_kernel(const Counters counters, int count, int64_t step) {
  if (threadIdx.x < count) *counters.at[threadIdx.x] += step;
}
static void advance_counters(std::initializer_list<at::Tensor> tensors, int64_t step, cudaStream_t stream) {
  Counters counters;
  int count = 0, left = static_cast<int>(tensors.size());
  for (const at::Tensor& tensor : tensors) {
    counters.at[count++] = tensor.data_ptr<int64_t>();
    if (count == 256 || count == left) {
      advance_counters_kernel<<<1, 256, 0, stream>>>(counters, count, step);
      C10_CUDA_KERNEL_LAUNCH_CHECK();
      left -= count;
      count = 0;
    }
  }
}
""",
    "update_arguments": """\
// Writes new contents into arguments that the call updates: pairs of contiguous tensors of 4-byte elements, one launch.
struct Updates {
  float* target[64];
  const float* source[64];
  int64_t numel[64];
};
__global__ void update_arguments_kernel(const Updates updates) {
  const int pair = blockIdx.x;
  for (int64_t i = threadIdx.x; i < updates.numel[pair]; i += blockDim.x) {
    updates.target[pair][i] = updates.source[pair][i];
  }
}
static void update_arguments(std::initializer_list<std::pair<at::Tensor, at::Tensor>> pairs, cudaStream_t stream) {
  Updates updates;
  int count = 0, left = static_cast<int>(pairs.size());
  for (const auto& [target, source] : pairs) {
    updates.target[count] = target.data_ptr<float>();
    updates.source[count] = source.data_ptr<float>();
    updates.numel[count++] = target.numel();
    if (count == 64 || count == left) {
      update_arguments_kernel<<<count, 256, 0, stream>>>(updates);
      C10_CUDA_KERNEL_LAUNCH_CHECK();
      left -= count;
      count = 0;
    }
  }
}
""",
    "pack_weights": PACK_WEIGHTS,
    "release": """\
// Gives tensors back to the allocator before the function ends: work on the stream that reads them keeps its order.
template <typename... Tensors>
static void release(Tensors&... tensors) {
  ((tensors = at::Tensor()), ...);
}
""",
}
_ATEN_COPY = """\
static void copy_into(const at::Tensor& target, const at::Tensor& source) { target.copy_(source); }
"""
_NEEDS = {
    "fresh_copy": ("copy_into",),
    "with_strides": ("lies_as", "fresh_copy", "copy_into"),
    "check_written": ("lies_as", "check_tensor"),
    "check_argument": ("lies_as", "fresh_copy", "with_strides", "check_tensor", "copy_into"),
}


def host_helpers(used: Iterable[str], *, aten: bool) -> str:
    """The text of the helpers used and of those they need, in the order of definition.

    Args:
        used: Keys of `HOST_HELPERS`.
        aten: Whether ATen may copy; otherwise an own kernel does.
    """
    wanted = set(used)
    for name in list(wanted):
        wanted.update(_NEEDS.get(name, ()))
    texts = {**HOST_HELPERS, **({"copy_into": _ATEN_COPY} if aten else {})}
    return "\n".join(text for name, text in texts.items() if name in wanted)


def comment(paragraphs: Sequence[str], width: int = 110) -> str:
    """A `//` comment, one wrapped paragraph after the other. Lines that start with two spaces are not wrapped."""
    lines: list[str] = []
    for paragraph in paragraphs:
        if paragraph.startswith("  "):
            lines.append(paragraph)
        else:
            lines += textwrap.wrap(paragraph, width) or [""]
    return "".join(f"// {line}".rstrip() + "\n" for line in lines)


def wrapped(line: str, width: int = 118) -> list[str]:
    """A long statement over several lines, broken after commas outside of literals."""
    if len(line) <= width or "//" in line:
        return [line]
    indent = len(line) - len(line.lstrip())
    rest, lines, step = line, [], " " * (indent + 4)
    while len(rest) > width:
        cut = _last_break(rest, width)
        if cut <= len(step):
            break
        lines.append(rest[:cut])
        rest = step + rest[cut:].lstrip()
    return [*lines, rest]


def _last_break(line: str, width: int) -> int:
    """Position after the last comma before `width` outside of literals and braces, 0 if there is none."""
    inside, depth, found = False, 0, 0
    for position, character in enumerate(line[:width]):
        if character == '"' and line[position - 1] != "\\":
            inside = not inside
        elif not inside:
            depth += {"{": 1, "}": -1}.get(character, 0)
            if character == "," and depth == 0:
                found = position + 1
    return found


def header(contract: Contract, recipe: Recipe, notes: Sequence[str]) -> str:
    """The comment on top: what the file computes, under which permissions, and what was chosen."""
    arguments = contract.arguments
    inputs = [a for a in arguments if a.role == "input" and a.tensor is not None]
    others = [a for a in arguments if a.role in ("parameter", "buffer")]
    lines = [f"{contract.entry}: {contract.name} in {contract.mode} mode, as a CUDA extension.", "", "Inputs"]
    lines += [f"  {a.name}: {a.tensor}{', written' if a.mutable else ''}" for a in inputs]
    if others:
        written = sum(a.mutable for a in others)
        lines.append(
            f"and {len(others)} parameters and buffers in the order of params_semantics.json"
            + (f", {written} of them written." if written else ".")
        )
    lines += ["Outputs", *(f"  {spec}" for spec in contract.outputs)]
    lines += ["", f"Space {recipe.space}: {_SPACE_TEXT[recipe.space]}"]
    if recipe.choices:
        lines.append("Choices: " + ", ".join(f"{k} = {v}" for k, v in sorted(recipe.choices.items())) + ".")
    if notes:
        lines += ["", *(f"* {note}" for note in notes)]
    return comment(lines)


_SPACE_TEXT = {
    "cuda": "own kernels only.",
    "cuda_libs": "own kernels and NVIDIA's libraries.",
    "cuda_libs_torch": "own kernels, NVIDIA's libraries and ATen operators.",
}
