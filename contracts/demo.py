"""The text of `torch_demo.py`: `ModelNew`, which calls the kernel through PyTorch's own extension builder."""

from __future__ import annotations

from contracts.contract import Argument, Contract

_HEAD = '''"""{title} through cuda_source.cu, built by torch.utils.cpp_extension.load_inline.

The extension's name holds the hash of its sources, so an edited source is built anew.
"""

import hashlib
import importlib.util
from functools import cache
from operator import attrgetter
from pathlib import Path

import torch
from torch.utils.cpp_extension import load_inline

HERE = Path(__file__).resolve().parent


@cache
def extension():
    """The built extension."""
    declaration = HERE.joinpath("cpp_source.cpp").read_text()
    source = HERE.joinpath("cuda_source.cu").read_text()
    digest = hashlib.sha256("\\0".join([declaration, source, torch.__version__]).encode()).hexdigest()[:16]
    bound = "PYBIND11_MODULE" in declaration
    return load_inline(
        name=f"hiera_{{digest}}",
        cpp_sources=[declaration],
        cuda_sources=[source],
        functions=None if bound else ["{entry}"],
        extra_cuda_cflags=["-O3", "-lineinfo"],
    )


def _load_groundtruth():
    digest = hashlib.sha256(str(HERE).encode()).hexdigest()[:12]
    spec = importlib.util.spec_from_file_location(f"groundtruth_{{digest}}", HERE / "groundtruth.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


groundtruth = _load_groundtruth()
{imports}

'''
_CLASS = '''
class ModelNew({base}):
    """{title} with the same arguments and state as the original."""

    def forward(self{parameters}):
        {result}extension().{entry}({arguments}
        )
{ending}'''


def torch_demo(contract: Contract, signature: str) -> str:
    """The file's text.

    Args:
        contract: Arguments in call order; inputs' paths are expressions over the parameters of forward.
        signature: Parameters of forward without self, such as `x, h0=None`.
    """
    module = contract.reference == "module"
    arguments = "".join(f"\n            {_expression(a)}," for a in contract.arguments)
    outputs = len(contract.outputs)
    tree = _tree(contract.output_tree, outputs)
    result, ending = ("out = ", f"        return {tree}\n") if outputs else ("", f"        return {tree}\n")
    title = contract.name
    imports = (
        "Model = groundtruth.Model\nget_inputs = groundtruth.get_inputs\nget_init_inputs = groundtruth.get_init_inputs"
        if module else "get_inputs = groundtruth.get_inputs"
    )
    return _HEAD.format(title=title, entry=contract.entry, imports=imports) + _CLASS.format(
        base="groundtruth.Model" if module else "torch.nn.Module",
        title=title,
        parameters=f", {signature}" if signature else "",
        result=result,
        entry=contract.entry,
        arguments=arguments,
        ending=ending,
    )


def result_expression(contract: Contract) -> str:
    """What forward returns, as an expression over `out`, the operator's result."""
    return _tree(contract.output_tree, len(contract.outputs))


def _expression(argument: Argument) -> str:
    if argument.role in ("input", "attribute"):
        return argument.path or repr(argument.value)
    if all(part.isidentifier() for part in argument.path.split(".")):
        return f"self.{argument.path}"
    return f'attrgetter("{argument.path}")(self)'


def _tree(tree: object, outputs: int) -> str:
    if isinstance(tree, int):
        return "out" if outputs == 1 else f"out[{tree}]"
    if not isinstance(tree, dict):
        raise TypeError(f"not an output tree: {tree!r}")
    ((kind, inside),) = tree.items()
    if kind == "value":
        return _constant(inside)
    if kind == "dict":
        return "{" + ", ".join(f"{key!r}: {_tree(item, outputs)}" for key, item in inside.items()) + "}"
    parts = ", ".join(_tree(item, outputs) for item in inside)
    if kind == "list":
        return f"[{parts}]"
    return f"({parts},)" if len(inside) == 1 else f"({parts})"


def _constant(value: object) -> str:
    if isinstance(value, dict):
        return f'float("{value["float"]}")'
    return repr(value)
