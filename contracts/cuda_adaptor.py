"""From a `.cu` file of any form to the contract form: one host function over torch tensors.

A launcher with raw pointers or a bare kernel gets an adaptor appended to its text. The adaptor is
ours and is cut off again before a candidate is offered, so the user's file keeps its interface.
"""

from __future__ import annotations

from contracts.contract import Argument
from contracts.cuda_pragmas import DTYPE_OF_C, PragmaArgument, Pragmas
from contracts.cuda_sites import CudaFile, CudaFunction, CudaParameter
from contracts.errors import InputError
from contracts.tensors import TensorSpec

MARK = "// ---- hiera: the adaptor below is not part of your file ----"
C_OF_DTYPE = {
    "float32": "float", "float64": "double", "float16": "at::Half", "bfloat16": "at::BFloat16", "int64": "int64_t",
    "int32": "int", "int16": "int16_t", "int8": "int8_t", "uint8": "uint8_t", "bool": "bool",
}
SCALAR_TYPE_OF_DTYPE = {
    "float32": "at::kFloat", "float64": "at::kDouble", "float16": "at::kHalf", "bfloat16": "at::kBFloat16",
    "int64": "at::kLong", "int32": "at::kInt", "int16": "at::kShort", "int8": "at::kChar", "uint8": "at::kByte",
    "bool": "at::kBool",
}


def without_adaptor(source: str) -> str:
    """The user's own text: `source` up to the adaptor."""
    return source.split("\n" + MARK, 1)[0] if MARK in source else source


def choose_function(found: CudaFile, pragmas: Pragmas, name: str | None, file: str) -> CudaFunction:
    """The function to optimise: by name, by `// hiera: entry`, or the only sensible one.

    Raises:
        InputError: None or several fit.
    """
    wanted = name or pragmas.entry
    if wanted is not None:
        function = found.named(wanted)
        if function is None:
            names = ", ".join(f.name for f in found.functions) or "none"
            raise InputError(
                f"no function {wanted!r} in this file", hint=f"name one of: {names}", file=file, line=1
            )
        if function.template:
            raise InputError(
                f"{wanted!r} is a template and cannot be called by itself",
                hint="name a host function that launches it, by `// hiera: entry NAME`",
                file=file, line=function.name_span.start_line + 1,
            )
        return function
    for group in (
        [f for f in found.functions if f.kind != "kernel" and f.takes_tensors],
        [f for f in found.functions if f.kind == "launcher"],
        [f for f in found.functions if f.kind == "kernel" and not f.template],
    ):
        if len(group) == 1:
            return group[0]
        if len(group) > 1:
            raise InputError(
                f"several functions could be meant: {', '.join(f.name for f in group)}",
                hint="name one: FILE.cu::NAME, or `// hiera: entry NAME`",
                file=file, line=group[0].name_span.start_line + 1,
            )
    raise InputError(
        "this file has no kernel and no host function", hint="open a file with a __global__ function", file=file, line=1
    )


def contract_arguments(
    function: CudaFunction, pragmas: Pragmas, file: str
) -> tuple[tuple[Argument, ...], tuple[TensorSpec, ...]]:
    """Arguments (tensors, then numbers) and outputs of the contract's host function.

    Raises:
        InputError: A parameter has no pragma line, or the line does not fit its type.
    """
    tensors: list[Argument] = []
    numbers: list[Argument] = []
    outputs: list[TensorSpec] = []
    for parameter in _own(function):
        given = _given(parameter, function, pragmas, file)
        if given.tensor is None:
            numbers.append(Argument(name=parameter.name, role="attribute", value=given.value, path=parameter.name))
            continue
        _fits(parameter, given, file)
        if given.flow == "out":
            outputs.append(given.tensor)
        else:
            tensors.append(
                Argument(
                    name=parameter.name, role="input", tensor=given.tensor, path=parameter.name,
                    mutable=given.flow == "inout",
                )
            )
    if function.takes_tensors:
        outputs.extend(pragmas.returns)
        if "Tensor" in function.returns and not pragmas.returns:
            raise InputError(
                f"{function.name!r} returns tensors of unknown layout",
                hint="add a line such as `// hiera: returns float32[4096]`",
                file=file, line=function.name_span.start_line + 1,
            )
    if not outputs and not any(a.mutable for a in tensors):
        raise InputError(
            f"{function.name!r} writes nothing that could be checked",
            hint="mark a pointer as `out` or `inout` in its `// hiera: arg` line",
            file=file, line=function.name_span.start_line + 1,
        )
    return (*tensors, *numbers), tuple(outputs)


def host_signature(entry: str, arguments: tuple[Argument, ...], returns: str) -> str:
    """The declaration of the contract's host function, without a semicolon."""
    parameters = [
        f"torch::Tensor {a.name}" if a.tensor is not None else f"{_number_type(a)} {a.name}" for a in arguments
    ]
    return f"{returns} {entry}({', '.join(parameters)})"


def adapted_source(text: str, function: CudaFunction, pragmas: Pragmas, entry: str, file: str) -> str:
    """The text with an adaptor appended; as it is when the function takes tensors already."""
    if function.takes_tensors:
        return text
    arguments, outputs = contract_arguments(function, pragmas, file)
    lines = [
        MARK,
        "#include <torch/extension.h>",
        "#include <ATen/cuda/CUDAContext.h>",
        "#include <c10/cuda/CUDAException.h>",
        "",
        host_signature(entry, arguments, returns_of(len(outputs))) + " {",
    ]
    device = next(a.name for a in arguments if a.tensor is not None) if any(a.tensor for a in arguments) else ""
    call: list[str] = []
    made: list[str] = []
    for parameter in function.parameters:
        if parameter.type == "cudaStream_t":
            call.append("at::cuda::getCurrentCUDAStream()")
            continue
        given = pragmas.named(parameter.name)
        assert given is not None
        if given.tensor is None:
            call.append(f"static_cast<{parameter.type}>({parameter.name})")
            continue
        if given.flow == "out":
            made.append(parameter.name)
            options = f"{device}.options()" if device else "torch::TensorOptions().device(torch::kCUDA)"
            sizes = ", ".join(map(str, given.tensor.shape))
            lines.append(
                f"  torch::Tensor {parameter.name} = torch::empty({{{sizes}}}, "
                f"{options}.dtype({SCALAR_TYPE_OF_DTYPE[given.tensor.dtype]}));"
            )
        pointer = f"{'const ' if parameter.const else ''}{parameter.type}*"
        call.append(f"reinterpret_cast<{pointer}>({parameter.name}.data_ptr())")
    if function.kind == "kernel":
        lines.extend(_kernel_launch(function, pragmas, call, file))
    else:
        lines.append(f"  {function.name}({', '.join(call)});")
    if made:
        lines.append(f"  return {made[0]};" if len(made) == 1 else f"  return {{{', '.join(made)}}};")
    return text.rstrip("\n") + "\n" + "\n".join([*lines, "}"]) + "\n"


def returns_of(outputs: int) -> str:
    """C++ return type for a number of flat outputs."""
    return {0: "void", 1: "torch::Tensor"}.get(outputs, "std::vector<torch::Tensor>")


def _kernel_launch(function: CudaFunction, pragmas: Pragmas, call: list[str], file: str) -> list[str]:
    launch = pragmas.launch
    if launch is None:
        raise InputError(
            f"nothing says how kernel {function.name!r} is launched",
            hint="put `extern \"C\"` before a host function that launches it, or add a line such as "
                 "`// hiera: launch grid=(64) block=(256)`",
            file=file, line=function.name_span.start_line + 1,
        )
    grid, block = ", ".join(launch.grid), ", ".join(launch.block)
    return [
        f"  const dim3 hiera_grid({grid});",
        f"  const dim3 hiera_block({block});",
        f"  {function.name}<<<hiera_grid, hiera_block, {launch.shared_bytes}, at::cuda::getCurrentCUDAStream()>>>(",
        f"      {', '.join(call)});",
        "  C10_CUDA_KERNEL_LAUNCH_CHECK();",
    ]


def _own(function: CudaFunction) -> tuple[CudaParameter, ...]:
    """Parameters the caller gives a value for: all but the stream."""
    return tuple(p for p in function.parameters if p.type != "cudaStream_t")


def _given(parameter: CudaParameter, function: CudaFunction, pragmas: Pragmas, file: str) -> PragmaArgument:
    given = pragmas.named(parameter.name)
    if given is None:
        raise InputError(
            f"nothing says what argument {parameter.name!r} of {function.name!r} is",
            hint=f"add a line such as `// hiera: arg {parameter.name} "
            + ("in float32[1024]`" if parameter.pointer or parameter.is_tensor else "1024`"),
            file=file, line=function.name_span.start_line + 1,
        )
    kind = "pointer" if parameter.pointer else "tensor" if parameter.is_tensor else "number"
    if (given.tensor is not None) != (parameter.pointer or parameter.is_tensor):
        raise InputError(
            f"argument {parameter.name!r} is a {kind} in the code and something else in its pragma",
            hint=f"correct the line `// hiera: arg {parameter.name} ...`", file=file, line=given.line,
        )
    return given


def _fits(parameter: CudaParameter, given: PragmaArgument, file: str) -> None:
    expected = DTYPE_OF_C.get(parameter.type)
    assert given.tensor is not None
    if parameter.pointer and expected is not None and expected != given.tensor.dtype:
        raise InputError(
            f"argument {parameter.name!r} is {parameter.type}* in the code and {given.tensor.dtype} in its pragma",
            hint=f"write {expected} in the `// hiera: arg {parameter.name}` line", file=file, line=given.line,
        )


def _number_type(argument: Argument) -> str:
    if isinstance(argument.value, bool):
        return "bool"
    return "int64_t" if isinstance(argument.value, int) else "double"
