"""Fixed text of a source: helpers that host functions share, and the comment on top."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

from contracts.contract import Contract
from engine.codegen import Recipe

# Each helper is pasted only where a source calls it.
HOST_HELPERS: dict[str, str] = {
    "same_strides": """\
// True when `value` lies in memory as `strides` say. Dimensions of size 1 do not count.
static bool same_strides(const at::Tensor& value, at::IntArrayRef strides) {
  for (int64_t d = 0; d < value.dim(); ++d) {
    if (value.size(d) != 1 && value.stride(d) != strides[d]) return value.numel() == 0;
  }
  return true;
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
  copy.copy_(distinct);
  return copy.expand(value.sizes());
}
""",
    "with_strides": """\
// `value` itself where its strides are the expected ones, else a copy that has them.
static at::Tensor with_strides(const at::Tensor& value, at::IntArrayRef strides) {
  return same_strides(value, strides) ? value : fresh_copy(value, strides);
}
""",
    "check_written": """\
// Refuses what this source was not written for.
static void check_written(const at::Tensor& value, const char* name, at::ScalarType dtype, at::IntArrayRef sizes,
                          const at::Tensor& first) {
  TORCH_CHECK(value.is_cuda(), name, " must be a CUDA tensor");
  TORCH_CHECK(value.get_device() == first.get_device(), name, " is on another GPU than the first argument");
  TORCH_CHECK(value.scalar_type() == dtype, name, " must have dtype ", dtype, ", not ", value.scalar_type());
  TORCH_CHECK(value.sizes() == sizes, name, " must have sizes ", sizes, ", not ", value.sizes());
}
""",
    "check_argument": """\
// The argument as kernels expect it: a copy where its strides or its alignment are others.
static at::Tensor check_argument(const at::Tensor& value, const char* name, at::ScalarType dtype,
                                 at::IntArrayRef sizes, at::IntArrayRef strides, const at::Tensor& first) {
  check_written(value, name, dtype, sizes, first);
  const bool aligned = reinterpret_cast<uintptr_t>(value.const_data_ptr()) % 16 == 0;
  return aligned && same_strides(value, strides) ? value : fresh_copy(value, strides);
}
""",
    "release": """\
// Gives tensors back to the allocator before the function ends: work on the stream that reads them keeps its order.
template <typename... Tensors>
static void release(Tensors&... tensors) {
  ((tensors = at::Tensor()), ...);
}
""",
}
_NEEDS = {
    "with_strides": ("same_strides", "fresh_copy"), "check_argument": ("same_strides", "fresh_copy", "check_written"),
}


def host_helpers(used: Iterable[str]) -> str:
    """The text of the helpers used and of those they need, in the order of definition."""
    wanted = set(used)
    for name in list(wanted):
        wanted.update(_NEEDS.get(name, ()))
    return "\n".join(text for name, text in HOST_HELPERS.items() if name in wanted)


def comment(paragraphs: Sequence[str], width: int = 110) -> str:
    """A `//` comment, one wrapped paragraph after the other. Lines that start with two spaces are not wrapped."""
    lines: list[str] = []
    for paragraph in paragraphs:
        if paragraph.startswith("  "):
            lines.append(paragraph)
        else:
            lines += textwrap.wrap(paragraph, width) or [""]
    return "".join(f"// {line}".rstrip() + "\n" for line in lines)


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
