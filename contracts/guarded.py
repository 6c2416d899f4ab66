"""The text of `kernel.py`: the kernel as a registered operator, and `accelerate`, which uses it where it may.

The contract is what was verified. Every call that is outside of it runs the original code.
"""

from __future__ import annotations

import ast
import hashlib
import keyword
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from contracts.contract import Argument, Contract
from contracts.demo import result_expression
from contracts.errors import InputError
from contracts.tensors import TensorSpec

# Layers of torch.nn that compute the same in training and in evaluation.
SAME_IN_BOTH_MODES = frozenset({
    "Linear", "Bilinear", "Identity", "Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d",
    "ConvTranspose3d", "LayerNorm", "GroupNorm", "RMSNorm", "LocalResponseNorm", "Embedding", "EmbeddingBag",
    "ReLU", "ReLU6", "LeakyReLU", "PReLU", "ELU", "CELU", "SELU", "GELU", "SiLU", "Mish", "GLU", "Sigmoid",
    "LogSigmoid", "Tanh", "Tanhshrink", "Hardtanh", "Hardsigmoid", "Hardswish", "Hardshrink", "Softplus",
    "Softshrink", "Softsign", "Softmax", "LogSoftmax", "Softmin", "Softmax2d", "Threshold", "Sequential",
    "ModuleList", "ModuleDict", "ParameterList", "ParameterDict", "Flatten", "Unflatten", "MaxPool1d",
    "MaxPool2d", "MaxPool3d", "AvgPool1d", "AvgPool2d", "AvgPool3d", "AdaptiveAvgPool1d", "AdaptiveAvgPool2d",
    "AdaptiveAvgPool3d", "AdaptiveMaxPool1d", "AdaptiveMaxPool2d", "AdaptiveMaxPool3d", "LPPool1d", "LPPool2d",
    "PixelShuffle", "PixelUnshuffle", "Upsample", "Fold", "Unfold", "ChannelShuffle", "ZeroPad1d", "ZeroPad2d",
    "ZeroPad3d", "ConstantPad1d", "ConstantPad2d", "ConstantPad3d", "ReflectionPad1d", "ReflectionPad2d",
    "ReflectionPad3d", "ReplicationPad1d", "ReplicationPad2d", "ReplicationPad3d", "CosineSimilarity",
    "PairwiseDistance", "MSELoss", "L1Loss", "SmoothL1Loss", "HuberLoss", "NLLLoss", "CrossEntropyLoss",
    "BCELoss", "BCEWithLogitsLoss", "KLDivLoss",
})
# Names that kernel.py itself uses where the arguments' names stand.
TAKEN = frozenset({"torch", "extension", "device", "found", "taken", "own", "value", "made", "inputs", "outputs",
                   "layout", "dtype", "shape", "stride", "zip", "all", "list", "tuple", "isinstance"})
SCALARS = (int, float, bool, str, type(None))


@dataclass(frozen=True, slots=True)
class _Forward:
    """The parameters of forward, without self.

    Attributes:
        head: As a definition takes them, every default written as None.
        call: As a call passes them on.
        defaults: Text of each default, by name.
        names: All names; `starred` are those of `*args` and `**kwargs`.
    """

    head: str
    call: str
    defaults: Mapping[str, str]
    names: tuple[str, ...]
    starred: tuple[str, ...]


def guarded_kernel(
    contract: Contract, signature: str, modules: Sequence[Mapping[str, object]], *, source: str, sm: str,
    module_text: str,
) -> str:
    """The file's text.

    Args:
        contract: What was verified.
        signature: Parameters of forward without self, such as `x, h0=None`.
        modules: Facts about the module and its submodules: path, type, attributes.
        source: The kernel's text; its hash names the operator.
        sm: Compute capability it was measured on, such as `9.0`; empty for any.
        module_text: The user's file, where a look at `training` shows.

    Raises:
        InputError: No guard can tell whether a call is inside the contract.
    """
    if contract.random:
        raise _cannot("it draws random numbers, and a kernel draws others")
    if contract.reference == "cuda" or not contract.tensor_arguments:
        raise _cannot("it is no module or function with tensor arguments")
    forward = _forward(signature)
    is_module = contract.reference == "module"
    digest = hashlib.sha256(f"{contract.id}\n{source}".encode()).hexdigest()[:12]
    names = ", ".join(_name(a) for a in contract.arguments)
    conditions = [*_parameter_conditions(contract, forward)]
    if is_module:
        conditions = ["type(self) is _target", *_module_conditions(modules), *conditions]
        if mode_matters(modules, module_text):
            conditions.insert(1, f"self.training is {contract.mode == 'train'}")
    text = _TEXT.format(
        name=contract.name, operator=f"hiera::{ascii_name(contract.entry)}_{digest}", entry=contract.entry,
        capability=tuple(int(part) for part in sm.split(".")) if re.fullmatch(r"\d+\.\d+", sm) else None,
        variants="".join(_variant(contract, i) for i in range(len(contract.variants))),
        schema=_schema(contract), mutated=tuple(_name(a) for a in contract.arguments if a.mutable), names=names,
        result=_operator_result(len(contract.outputs)), fake=_fake_result(len(contract.outputs)),
        tensors="".join(f"{_name(a)}, " for a in contract.tensor_arguments),
        first=_name(contract.tensor_arguments[0]), tree=result_expression(contract),
    )
    return text + _accelerate(contract, forward, conditions, is_module=is_module)


def ascii_name(name: str) -> str:
    """`name` with everything that an ASCII identifier cannot hold replaced."""
    return re.sub(r"[^0-9A-Za-z_]", "_", name)


def mode_matters(modules: Sequence[Mapping[str, object]], module_text: str) -> bool:
    """True unless training and evaluation surely compute the same."""
    if re.search(r"\btraining\b|dropout|batch_norm|instance_norm|rrelu", module_text, re.IGNORECASE):
        return True
    own = set(re.findall(r"^\s*class\s+(\w+)", module_text, re.MULTILINE))
    return any(str(part["type"]) not in SAME_IN_BOTH_MODES | own for part in modules)


def _accelerate(contract: Contract, forward: _Forward, conditions: Sequence[str], *, is_module: bool) -> str:
    tests = "\n                and ".join(conditions) or "True"
    places = {a.name: i for i, a in enumerate(contract.arguments)}
    numbers = [f"_arguments[{places[a.name]}] == {a.value!r}" for a in contract.arguments if a.tensor is None]
    tensors = "".join(f"_arguments[{places[a.name]}], " for a in contract.tensor_arguments)
    return _ACCELERATE.format(
        what="a module class" if is_module else "a function",
        original="_target.forward" if is_module else "_target",
        head=", ".join(filter(None, ["self" if is_module else "", forward.head])),
        call=", ".join(filter(None, ["self" if is_module else "", forward.call])),
        tests=tests, values="".join(f"\n                {_expression(a)}," for a in contract.arguments),
        fits=" and ".join([*numbers, f"_fits({'_arguments' if not numbers else f'({tensors})'})"]),
        ending="_target.forward = forward\n    return _target" if is_module else "return forward",
    )


def _name(argument: Argument) -> str:
    """The argument's name where kernel.py has it as a parameter."""
    # Operator schemas take ASCII only; the bytes in hexadecimal keep names apart.
    name = argument.name if argument.name.isascii() else f"argument_{argument.name.encode().hex()}"
    return f"{name}_" if keyword.iskeyword(name) or name in TAKEN else name


def _forward(signature: str) -> _Forward:
    try:
        node = ast.parse(f"def f({signature}): pass").body[0]
    except SyntaxError:
        raise _cannot(f"its parameters `{signature}` cannot be read") from None
    assert isinstance(node, ast.FunctionDef)
    given = node.args
    positional = [*given.posonlyargs, *given.args]
    last = [a.arg for a in positional[len(positional) - len(given.defaults):]]
    defaults = dict(zip(last, given.defaults, strict=True))
    defaults |= {a.arg: d for a, d in zip(given.kwonlyargs, given.kw_defaults, strict=True) if d is not None}
    texts = {name: ast.unparse(value) for name, value in defaults.items()}
    for a in (*positional, *given.kwonlyargs, given.vararg, given.kwarg):
        if a is not None:
            a.annotation = None
    given.defaults = [ast.Constant(None) for _ in given.defaults]
    given.kw_defaults = [None if d is None else ast.Constant(None) for d in given.kw_defaults]
    passed = [a.arg for a in positional]
    passed += [f"*{given.vararg.arg}"] if given.vararg else []
    passed += [f"{a.arg}={a.arg}" for a in given.kwonlyargs]
    passed += [f"**{given.kwarg.arg}"] if given.kwarg else []
    starred = tuple(a.arg for a in (given.vararg, given.kwarg) if a is not None)
    names = (*(a.arg for a in positional), *(a.arg for a in given.kwonlyargs), *starred)
    return _Forward(ast.unparse(given), ", ".join(passed), texts, names, starred)


def _parameter_conditions(contract: Contract, forward: _Forward) -> Iterator[str]:
    """What must hold of forward's parameters beyond the tensors' layout."""
    indices: dict[str, list[object]] = {}
    covered: set[str] = set()
    for argument in contract.arguments:
        if argument.role not in ("input", "attribute") or not argument.path:
            continue
        found = re.fullmatch(r"(\w+)(?:\[(\d+|'[^'\\]*'|\"[^\"\\]*\")\])?", argument.path)
        if found is None or found[1] not in forward.names:
            raise _cannot(f"its argument `{argument.path}` lies too deep for a guard")
        covered.add(found[1])
        if found[2] is not None:
            indices.setdefault(found[1], []).append(ast.literal_eval(found[2]))
    for name, keys in indices.items():
        if all(isinstance(key, int) for key in keys):
            yield f"isinstance({name}, (tuple, list)) and len({name}) == {len(keys)}"
        else:
            yield f"isinstance({name}, dict) and set({name}) == {set(map(str, keys))!r}"
    for name in forward.names:
        if name in covered:
            continue
        if name in forward.starred:
            yield f"not {name}"
        elif name not in forward.defaults:
            raise _cannot(f"its argument `{name}` is no tensor and has no default")
        elif forward.defaults[name] in ("None", "True", "False"):
            yield f"{name} is {forward.defaults[name]}"
        else:
            yield f"{name} is _defaults[{name!r}]"


def _module_conditions(modules: Sequence[Mapping[str, object]]) -> Iterator[str]:
    """Types and settings of the module and its parts: they are constants in the kernel."""
    for part in modules:
        path = str(part["path"])
        place = "self" if not path else _place(path)
        if path:
            yield f"type({place}).__name__ == {str(part['type'])!r}"
        attributes = part.get("attributes")
        for name, value in attributes.items() if isinstance(attributes, Mapping) else ():
            attribute = f"{place}.{name}" if str(name).isidentifier() else f"getattr({place}, {name!r})"
            if isinstance(value, Mapping) and set(value) == {"float"}:
                yield f"{attribute} == float({value['float']!r})"
            elif value is None or isinstance(value, bool):
                yield f"{attribute} is {value}"
            elif isinstance(value, SCALARS):
                yield f"{attribute} == {value!r}"
            elif isinstance(value, (list, tuple)) and all(isinstance(item, SCALARS) for item in value):
                yield f"tuple({attribute}) == {tuple(value)!r}"
            else:
                raise _cannot(f"its setting `{path}.{name}` is too complex for a guard")
    if parts := [_place(str(part["path"])) for part in modules if part["path"]]:
        yield f"_plain({', '.join(parts)})"


def _place(path: str) -> str:
    parts = "".join(f".{part}" if part.isidentifier() else f"[{part}]" for part in path.split(".") if part)
    return f"self{parts}"


def _expression(argument: Argument) -> str:
    if argument.role in ("input", "attribute"):
        return argument.path or repr(argument.value)
    owner, _, last = argument.path.rpartition(".")
    place = _place(owner) if owner else "self"
    return f"{place}.{last}" if last.isidentifier() else f"{place}[{last}]"


def _schema(contract: Contract) -> str:
    kinds = {bool: "bool", int: "int", float: "float"}
    arguments = [
        f"Tensor{f'(a{i}!)' if a.mutable else ''} {_name(a)}" if a.tensor is not None
        else f"{kinds[type(a.value)]} {_name(a)}"  # type: ignore[index]
        for i, a in enumerate(contract.arguments)
    ]
    outputs = len(contract.outputs)
    returns = "()" if outputs == 0 else "Tensor" if outputs == 1 else "(" + ", ".join(["Tensor"] * outputs) + ")"
    return f"({', '.join(arguments)}) -> {returns}"


def _variant(contract: Contract, index: int) -> str:
    variant = contract.variants[index]
    inputs = "".join(f"\n            {_layout(variant.tensors[a.name])}," for a in contract.tensor_arguments)
    outputs = "".join(f"\n            {_layout(spec)}," for spec in variant.outputs)
    return f"    (  # {variant.name}\n        ({inputs}\n        ),\n        ({outputs}\n        ),\n    ),\n"


def _layout(spec: TensorSpec) -> str:
    return f"(torch.{spec.dtype}, {spec.shape!r}, {spec.stride!r})"


def _operator_result(outputs: int) -> str:
    return {0: "None", 1: "own[0]"}.get(outputs, "tuple(own)")


def _fake_result(outputs: int) -> str:
    return {0: "None", 1: "made[0]"}.get(outputs, "tuple(made)")


def _cannot(why: str) -> InputError:
    return InputError(f"the kernel cannot be put in place by a guard: {why}",
                      hint="call ModelNew of the contract folder's torch_demo.py where you want the kernel")


_TEXT = '''"""{name} through cuda_source.cu where its contract holds; else the original runs. Written by HIERA.

The kernel runs when the tensors are on a GPU of the kind that it was made for, have the dtype, shape and stride that
were verified, no gradient is needed, autocast is off, the module's settings are those that were verified, and no hook
hangs on its parts.
The extension is built at the first such call (about a minute; it needs nvcc) and kept by PyTorch's own cache.
The environment variable HIERA_ORIGINAL=1 turns the kernel off.
"""

import functools
import hashlib
import inspect
import os
import threading
import warnings
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent
DEVICE_TYPE = "cuda"
CAPABILITY = {capability}
# What was verified: dtype, shape and stride of the tensor arguments, and those of the outputs.
VARIANTS = (
{variants})
_lock = threading.Lock()
_usable = {{}}


@functools.cache
def extension():
    """The built extension."""
    from torch.utils.cpp_extension import load_inline

    declaration = HERE.joinpath("cpp_source.cpp").read_text(encoding="utf-8")
    source = HERE.joinpath("cuda_source.cu").read_text(encoding="utf-8")
    digest = hashlib.sha256("\\0".join([declaration, source, torch.__version__]).encode()).hexdigest()[:16]
    return load_inline(
        name=f"hiera_{{digest}}",
        cpp_sources=[declaration],
        cuda_sources=[source],
        functions=None if "PYBIND11_MODULE" in declaration else ["{entry}"],
        extra_cuda_cflags=["-O3", "-lineinfo"],
    )


@torch.library.custom_op("{operator}", mutates_args={mutated!r}, schema="{schema}")
def _kernel({names}):
    """Run the kernel; `accelerate` has checked that it may."""
    device = {first}.device
    if device.type == "cuda" and device.index != torch.cuda.current_device():
        with torch.cuda.device(device):
            found = extension().{entry}({names})
    else:
        found = extension().{entry}({names})
    found = [] if found is None else [found] if isinstance(found, torch.Tensor) else list(found)
    # An operator may not give back memory of its arguments.
    taken = {{value.untyped_storage().data_ptr() for value in ({tensors}) if value.numel()}}
    own = [value.clone() if value.untyped_storage().data_ptr() in taken else value for value in found]
    return {result}


@_kernel.register_fake
def _({names}):
    for inputs, outputs in VARIANTS:
        if all(tuple(value.shape) == layout[1] for value, layout in zip(({tensors}), inputs)):
            made = [{first}.new_empty_strided(shape, stride, dtype=dtype) for dtype, shape, stride in outputs]
            return {fake}
    raise RuntimeError("the kernel was not verified for these shapes")


@torch.compiler.assume_constant_result
def usable(index):
    """True when the kernel can run on this device. Builds it, once."""
    if os.environ.get("HIERA_ORIGINAL"):
        return False
    with _lock:
        if index not in _usable:
            _usable[index] = _prepare(index)
        return _usable[index]


def _prepare(index):
    if CAPABILITY is not None and DEVICE_TYPE == "cuda" and torch.cuda.get_device_capability(index) != CAPABILITY:
        return False
    try:
        extension()
    except Exception as error:
        warnings.warn(f"the kernel of {name} cannot be built, the original runs: {{error}}", stacklevel=2)
        return False
    return True


def _plain(*parts):
    """True when nothing hangs on the parts that the kernel does the work of: hooks, or a forward of one's own."""
    for part in parts:
        if part._forward_hooks or part._forward_pre_hooks or "forward" in part.__dict__:
            return False
    return True


def _transformed():
    """True inside of torch.func's transforms and of forward-mode differentiation: the operator has no rule for them."""
    return torch._C._functorch.peek_interpreter_stack() is not None or torch.autograd.forward_ad._current_level >= 0


def _fits(tensors):
    """True when the tensors are what the kernel was verified for, and nobody needs a gradient."""
    device = tensors[0].device if isinstance(tensors[0], torch.Tensor) else None
    if device is None or device.type != DEVICE_TYPE or torch.is_autocast_enabled(DEVICE_TYPE):
        return False
    for value in tensors:
        if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.device != device:
            return False
        if value.layout != torch.strided or (value.requires_grad and torch.is_grad_enabled()):
            return False
    # A compiler sees neither; there, the operator is part of the graph.
    if not torch.compiler.is_compiling() and (_transformed() or any(value.data_ptr() % 16 for value in tensors)):
        return False
    for inputs, _ in VARIANTS:
        same = True
        for value, (dtype, shape, stride) in zip(tensors, inputs):
            same = same and value.dtype == dtype and tuple(value.shape) == shape and tuple(value.stride()) == stride
        if same:
            return usable(device.index)
    return False


def _result(out):
    return {tree}
'''
_ACCELERATE = '''

def accelerate(_target):
    """Decorate {what}: inside the contract it runs the kernel, outside of it its own code."""
    _original = {original}
    _defaults = {{name: value.default for name, value in inspect.signature(_original).parameters.items()}}

    @functools.wraps(_original)
    def forward({head}):
        if (
                {tests}
        ):
            _arguments = ({values}
            )
            if {fits}:
                return _result(_kernel(*_arguments))
        return _original({call})

    forward.__defaults__ = _original.__defaults__
    forward.__kwdefaults__ = _original.__kwdefaults__
    {ending}
'''
