"""Operator graph and recipe to the whole text of cuda_source.cu.

Each variant of the contract becomes one function over its own shapes; the entry checks its arguments once,
picks the variant and returns tensors that share no memory with the arguments.
"""

from __future__ import annotations

import re

from contracts.contract import Contract, Variant
from contracts.cuda_adaptor import host_signature, returns_of
from engine.codegen import CannotWrite, Program, Recipe, cpp, recorded, text
from engine.codegen.products import template_text
from engine.codegen.variant import LONG_FUNCTION, UNOPTIMISED, VariantText, write_variant
from engine.records import Device


def write_program(contract: Contract, recipe: Recipe, device: Device) -> Program:
    """Write a source.

    Raises:
        CannotWrite: The recipe's space cannot express the contract.
    """
    parts = [_variant(contract, variant, recipe, device) for variant in contract.variants]
    single = len(parts) == 1
    launches = max(len(part.kernels) + len(part.library_calls) + len(part.torch_calls) for part in parts)
    record = recorded.tunable(contract, launches, tuple(call for part in parts for call in part.torch_calls))
    replays = recorded.chosen(recipe, record)
    if replays:
        for part, variant in zip(parts, contract.variants, strict=True):
            part.text += "\n" + "\n".join(
                piece for line in recorded.function(contract, variant).split("\n") for piece in text.wrapped(line))
    functions = [
        part.text if single else f"namespace {name} {{\n\n{part.text}\n}}  // namespace {name}\n"
        for part, name in zip(parts, _namespaces(contract), strict=True)
    ]
    entry = _entry(contract, parts, f"{contract.name}_{'replayed' if replays else 'variant'}")
    body = "\n".join([*functions, entry])
    device_helpers = _device_helpers(parts)
    helpers = text.host_helpers(
        (name for name in text.HOST_HELPERS if f"{name}(" in body), aten=recipe.space == "cuda_libs_torch"
    )
    notes = tuple(dict.fromkeys(note for part in parts for note in part.notes))
    pieces = [
        template_text([name for part in parts for name in part.templates]),
        *dict.fromkeys(piece for part in parts for piece in part.library_text),
        *([recorded.RECORDING] if replays else []),
    ]
    includes = _includes("\n".join([device_helpers, helpers, *pieces, body]))
    sections = [text.header(contract, recipe, notes), includes, device_helpers, helpers, *pieces, body]
    tunables = {tunable.key: tunable for part in reversed(parts) for tunable in part.tunables}
    if record is not None:
        tunables[record.key] = record
    return Program(
        source="\n".join(section for section in sections if section),
        tunables=tuple(sorted(tunables.values(), key=lambda t: (-t.weight, t.key))),
        kernels=tuple(kernel for part in parts for kernel in part.kernels),
        library_calls=tuple(dict.fromkeys(call for part in parts for call in part.library_calls)),
        torch_calls=tuple(dict.fromkeys(call for part in parts for call in part.torch_calls)),
        notes=notes,
    )


def declaration(contract: Contract) -> str:
    """The host function's declaration, as cpp_source.cpp has it, without the semicolon."""
    return host_signature(contract.entry, contract.arguments, returns_of(len(contract.outputs)))


def _variant(contract: Contract, variant: Variant, recipe: Recipe, device: Device) -> VariantText:
    if variant.graph is None:
        raise CannotWrite(f"{contract.name} has no operator graph: its reference is CUDA text")
    return write_variant(contract, variant, recipe, device)


def _namespaces(contract: Contract) -> list[str]:
    names = cpp.Names()
    return [names.fresh(f"for_{variant.name}") for variant in contract.variants]


def _device_helpers(parts: list[VariantText]) -> str:
    from engine.codegen.helpers import helper_text, occurring

    used = occurring(
        frozenset().union(*(part.helpers for part in parts)), "\n".join(part.text for part in parts))
    return helper_text(used) if used else ""


def _includes(body: str) -> str:
    lines = ["#include <torch/extension.h>"]
    if "at::cuda::CUDAGraph" in body:
        lines += ["#include <ATen/cuda/CUDAGraph.h>", "#include <memory>", "#include <mutex>"]
    if "CUDAGuard" in body:
        lines.append("#include <c10/cuda/CUDAGuard.h>")
    if "getCurrentCUDAStream" in body:
        lines.append("#include <ATen/cuda/CUDAContext.h>")
    if re.search(r"C10_CUDA_(CHECK|KERNEL_LAUNCH_CHECK)", body):
        lines.append("#include <c10/cuda/CUDAException.h>")
    for pattern, header in (
        (r"\bcublas(?!Lt)", "cublas_v2.h"), (r"\bcublasLt", "cublasLt.h"), (r"\b__half", "cuda_fp16.h"),
        (r"\b__nv_bfloat16", "cuda_bf16.h"), (r"\bnvcuda::wmma", "mma.h"),
        (r"\b__pipeline_", "cuda_pipeline.h"), (r"\bcooperative_groups", None),
        (r"\bstd::numeric_limits", "limits"), (r"\buintptr_t|\buint\d+_t", "cstdint"),
    ):
        if header and re.search(pattern, body):
            lines.append(f"#include <{header}>")
    if "cooperative_groups" in body:
        lines.append("#include <cooperative_groups.h>")
    if "std::tuple" in body or "std::get" in body:
        lines.append("#include <tuple>")
    lines.append("#include <vector>")
    return "\n".join(lines) + "\n"


def _entry(contract: Contract, parts: list[VariantText], function: str) -> str:
    return "\n".join(piece for line in _entry_lines(contract, parts, function) for piece in text.wrapped(line))


def _entry_lines(contract: Contract, parts: list[VariantText], function: str) -> list[str]:
    tensors = contract.tensor_arguments
    checks = [_checks(contract, variant, "  ") for variant in contract.variants]
    separate: list[str] = []
    for index, variant_checks in enumerate(checks):
        if len(variant_checks) > LONG_FUNCTION // 4:
            name = f"check_arguments_{index + 1}" if len(checks) > 1 else "check_arguments"
            taken = ", ".join(f"torch::Tensor& {argument.name}" for argument in tensors)
            separate += [*UNOPTIMISED, f"static void {name}({taken}) {{", *variant_checks, "}", ""]
            checks[index] = [f"  {name}({', '.join(argument.name for argument in tensors)});"]
    lines = [*separate, f"{declaration(contract)} {{"]
    first = tensors[0].name if tensors else None
    for argument in contract.arguments:
        if argument.tensor is None and argument.value is not None:
            literal = cpp.number(argument.value)
            lines.append(
                f'  TORCH_CHECK({argument.name} == {literal}, "{argument.name} must be {literal}: it is built in");'
            )
    if any(part.torch_calls for part in parts):
        lines.append("  const torch::NoGradGuard no_grad;")
    if first is not None:
        lines.append(f"  const c10::cuda::CUDAGuard device_guard({first}.device());")
    call = ", ".join(argument.name for argument in tensors)
    if len(parts) == 1:
        lines += checks[0]
        return [*lines, f"  return {function}({call});", "}", ""]
    for variant, namespace, variant_checks in zip(contract.variants, _namespaces(contract), checks, strict=True):
        condition = " && ".join(
            f"{a.name}.sizes() == {cpp.int_list(variant.tensors[a.name].shape)}"
            for a in tensors if a.role == "input"
        )
        lines += [f"  if ({condition or 'true'}) {{", *(f"  {line}" for line in variant_checks)]
        lines += [f"    return {namespace}::{function}({call});", "  }"]
    shapes = "; ".join(
        ", ".join(str(variant.tensors[a.name]) for a in tensors if a.role == "input") for variant in contract.variants
    )
    lines.append(f'  TORCH_CHECK(false, {cpp.text("these shapes are not among those served: " + shapes)});')
    return [*lines, "}", ""]


def _checks(contract: Contract, variant: Variant, indent: str) -> list[str]:
    tensors = contract.tensor_arguments
    lines = []
    for argument in tensors:
        spec = variant.tensors[argument.name]
        described = (f'{argument.name}, "{argument.name}", {cpp.scalar_type(spec.dtype)}, {cpp.sizes(spec.shape)}, '
                     f"{cpp.sizes(spec.stride)}, {tensors[0].name}")
        if argument.mutable:
            # Not replaced by a copy, which would keep the update from the caller.
            lines.append(f"{indent}check_written({described});")
        else:
            lines.append(f"{indent}{argument.name} = check_argument({described});")
    return lines
