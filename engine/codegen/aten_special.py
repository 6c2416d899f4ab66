"""ATen calls whose obvious C++ is ambiguous, needs more than one statement, or is not what is meant."""

from __future__ import annotations

from collections.abc import Callable

from contracts.graph import Arg, Const, Ref
from engine.codegen import cpp
from engine.codegen.aten_calls import CallWriter
from engine.codegen.indexing import index, index_put


def _to(writer: CallWriter) -> str:
    arguments = writer.node.args
    source = writer.argument(next(iter(arguments.values())))
    converted = f"{source}.to({cpp.scalar_type(writer.values[writer.node.out].dtype)})"
    memory_format = arguments.get("memory_format")
    if isinstance(memory_format, Const) and memory_format.value != "preserve_format":
        converted += f".contiguous({writer.constant(memory_format)})"
    return converted


def _reshape(writer: CallWriter) -> str:
    if writer.node.op == "aten.view.dtype":
        return writer.exact()
    # Not `.view`: the exporter's strides need not be the ones this device's operators give.
    return f"{writer.argument(writer.node.args['self'])}.reshape({cpp.sizes(writer.values[writer.node.out].shape)})"


def _expand(writer: CallWriter) -> str:
    return f"{writer.argument(writer.node.args['self'])}.expand({cpp.sizes(writer.values[writer.node.out].shape)})"


def _as_strided(writer: CallWriter) -> str:
    arguments = writer.node.args
    exact = f"with_strides({writer.argument(arguments['self'])}, {cpp.sizes(writer.spec('self').stride)})"
    rest = ", ".join(writer.argument(value) for name, value in arguments.items() if name != "self")
    return f"at::as_strided({exact}, {rest})"


def _spread(value: Arg, dims: int) -> Arg:
    return value * dims if isinstance(value, tuple) and len(value) == 1 < dims else value


def _convolution(writer: CallWriter) -> str:
    """Every convolution in the one form that has no second overload to be confused with."""
    arguments = writer.node.args
    weight = writer.spec("weight")
    dims = len(weight.shape) - 2
    unbatched = len(writer.spec("input").shape) != dims + 2
    if isinstance(arguments["padding"], str) or unbatched:
        return writer.exact()
    transposed = bool(arguments.get("transposed", writer.node.base.startswith("conv_transpose")))

    def sizes(name: str) -> str:
        return writer.argument(_spread(arguments.get(name, (0,) * dims), dims))

    written = (
        f"{writer.argument(arguments['input'])}, {writer.argument(arguments['weight'])}, "
        f"{writer.argument(arguments['bias'])}, /*stride=*/{sizes('stride')}, /*padding=*/{sizes('padding')}, "
        f"/*dilation=*/{sizes('dilation')}, /*transposed=*/{cpp.number(transposed)}, "
        f"/*output_padding=*/{sizes('output_padding')}, /*groups=*/{writer.argument(arguments['groups'])}"
    )
    if writer.measures is None:
        return f"at::convolution({written})"
    return (f"at::_convolution({written}, /*benchmark=*/true, /*deterministic=*/false, /*cudnn_enabled=*/true, "
            f"/*allow_tf32=*/{cpp.number(writer.measures.tf32)})")


def _batch_norm(writer: CallWriter) -> list[str]:
    """Batch norm with statistics that the functional graph returns and the library updates in place."""
    node, arguments = writer.node, writer.node.args
    outputs = (*node.outputs, None, None, None, None)[:5]
    if any(outputs[1:3]):
        return writer.bind(writer.exact())
    training = bool(arguments.get("training", node.base != "_native_batch_norm_legit_no_training"))
    lines, statistics, converted = [], [], []
    for name, updated in (("running_mean", outputs[3]), ("running_var", outputs[4])):
        value = arguments.get(name)
        if isinstance(value, Ref) and updated is not None and writer.names(updated) != writer.names(value.name):
            lines.append(f"at::Tensor {writer.names(updated)} = {writer.names(value.name)}.clone();")
            statistics.append(writer.names(updated))
            # The functional graph gives statistics of half types in float32.
            if writer.values[updated].dtype != writer.values[value.name].dtype:
                dtype = cpp.scalar_type(writer.values[updated].dtype)
                converted.append(f"{writer.names(updated)} = {writer.names(updated)}.to({dtype});")
        else:
            statistics.append(writer.argument(value))
    source, weight, bias = (writer.argument(arguments[key]) for key in ("input", "weight", "bias"))
    call = (
        f"at::batch_norm({source}, {weight}, {bias}, {', '.join(statistics)}, /*training=*/{cpp.number(training)}, "
        f"/*momentum=*/{writer.argument(arguments['momentum'])}, /*eps=*/{writer.argument(arguments['eps'])}, "
        f"/*cudnn_enabled=*/true)"
    )
    target = f"at::Tensor {writer.names(outputs[0])} = " if outputs[0] else ""
    return [*lines, f"{target}{call};", *converted]


EXPRESSIONS: dict[str, Callable[[CallWriter], str]] = {
    "_to_copy": _to, "to": _to,
    "view": _reshape, "_unsafe_view": _reshape, "reshape": _reshape, "expand": _expand, "as_strided": _as_strided,
    "convolution": _convolution,
    "conv1d": _convolution, "conv2d": _convolution, "conv3d": _convolution,
    "conv_transpose1d": _convolution, "conv_transpose2d": _convolution, "conv_transpose3d": _convolution,
}
BLOCKS: dict[str, Callable[[CallWriter], list[str]]] = {
    "_native_batch_norm_legit_functional": _batch_norm, "_native_batch_norm_legit": _batch_norm,
    "_native_batch_norm_legit_no_training": _batch_norm, "native_batch_norm": _batch_norm,
    "index": index, "_unsafe_index": index,
    "index_put": index_put, "_unsafe_index_put": index_put,
}
