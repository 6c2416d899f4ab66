"""One graph node as readable C++: an ATen call.

`at::NAME(...)` as people write it where `aten_spellings` has a row, factories with tensor options, and for
everything else the exact overload, `at::_ops::NAME_OVERLOAD::call(...)`, whose arguments are the schema's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from contracts.graph import Arg, Const, Node, Ref
from contracts.tensors import TensorSpec
from engine.codegen import CannotWrite, cpp
from engine.codegen.aten_spellings import REQUIRED, SPELLINGS
from engine.codegen.cpp import words

# Operators that return a std::vector of tensors; all other results are one tensor or a std::tuple.
_LISTS = words(
    """split split_with_sizes unsafe_split unsafe_split_with_sizes chunk unsafe_chunk tensor_split hsplit vsplit
    dsplit unbind broadcast_tensors meshgrid align_tensors gradient split_copy split_with_sizes_copy
    unbind_copy"""
)
_TENSOR_OPTIONS = ("dtype", "layout", "device", "pin_memory")
# The generator's state is an input and an output of these: same call, same order, never dropped or merged.
_RANDOM = words(
    """rand randn randint randperm rand_like randn_like randint_like bernoulli dropout native_dropout alpha_dropout
    feature_dropout feature_alpha_dropout multinomial normal normal_functional uniform exponential geometric
    log_normal cauchy random poisson binomial rrelu rrelu_with_noise rrelu_with_noise_functional _fused_dropout
    _sample_dirichlet _standard_gamma"""
)
# Operators that only tell the exporter something.
IGNORED = words(
    """_assert_async _assert_scalar _assert_tensor_metadata sym_constrain_range sym_constrain_range_for_size
    _functional_assert_async _functional_assert_scalar _print _functional_sym_constrain_range"""
)


def is_random(node: Node) -> bool:
    """True when the call draws from torch's generator."""
    if node.base in ("scaled_dot_product_attention", "_scaled_dot_product_flash_attention"):
        return bool(node.args.get("dropout_p"))
    if node.base in ("lstm", "gru", "rnn_tanh", "rnn_relu"):
        return bool(node.args.get("dropout")) and bool(node.args.get("train"))
    if node.base in ("dropout", "native_dropout", "feature_dropout", "alpha_dropout"):
        return node.args.get("train") is not False and bool(node.args.get("p"))
    return node.base in _RANDOM


@dataclass(frozen=True, slots=True)
class Measures:
    """A convolution's algorithm is the fastest of those that cuDNN's heuristic names, measured in the first call."""

    tf32: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CallWriter:
    """What writing a node needs to know.

    Attributes:
        node: The operator call.
        names: Identifier of every value.
        values: Layout of every value.
        options: C++ of type TensorOptions that names the device, such as `x.options()`.
        measures: Whether cuDNN measures a convolution's algorithms in the first call, and may use TF32 then; None
            leaves both to torch's flags.
    """

    node: Node
    names: cpp.Names
    values: Mapping[str, TensorSpec]
    options: str
    measures: Measures | None = None

    def lines(self) -> list[str]:
        """Statements that leave every used output in a variable of its name.

        Raises:
            CannotWrite: There is no C++ for it here.
        """
        from engine.codegen.aten_special import BLOCKS

        if not self.node.op.startswith("aten."):
            raise CannotWrite(f"{self.node.op} is not an ATen operator{self.place}")
        if self.node.base in BLOCKS:
            return BLOCKS[self.node.base](self)
        return self.bind(self.expression())

    def expression(self) -> str:
        """The call itself."""
        from engine.codegen.aten_special import EXPRESSIONS

        node = self.node
        if node.base in EXPRESSIONS:
            return EXPRESSIONS[node.base](self)
        if "layout" in node.args or "pin_memory" in node.args:
            return self._factory()
        spelling = SPELLINGS.get(node.op)
        if spelling is None or any(name not in node.args for name, _ in spelling.arguments):
            return self.exact()
        pairs = [(name, node.args[name], default) for name, default in spelling.arguments]
        known = {name for name, _ in spelling.arguments} | {spelling.receiver}
        if any(value is not None for name, value in node.args.items() if name not in known):
            return self.exact()
        while pairs and pairs[-1][2] is not REQUIRED and _equal(*pairs[-1]):
            pairs.pop()
        written = ", ".join(self.argument(value, name) for name, value, _ in pairs)
        if spelling.receiver is None:
            return f"{spelling.function}({written})"
        return f"{self.argument(node.args[spelling.receiver])}.{spelling.function}({written})"

    def exact(self) -> str:
        """The overload by its own name: never ambiguous, all arguments written."""
        _, base, overload = self.node.op.split(".", 2)
        struct = base if overload == "default" else f"{base}_{overload}"
        written = ", ".join(self.argument(value, name) for name, value in self.node.args.items())
        return f"at::_ops::{struct}::call({written})"

    def bind(self, expression: str) -> list[str]:
        """Give the results their names."""
        outputs = self.node.outputs
        used = [name for name in outputs if name is not None]
        if not used:
            return [f"{expression};"]
        if self.node.base in _LISTS:
            pieces = self.names.fresh(f"{self.node.name}_parts")
            return [
                f"const std::vector<at::Tensor> {pieces} = {expression};",
                *(f"at::Tensor {self.names(name)} = {pieces}[{i}];" for i, name in enumerate(outputs) if name),
            ]
        if len(outputs) == 1:
            return [f"at::Tensor {self.names(used[0])} = {expression};"]
        if len(used) == 1:
            return [f"at::Tensor {self.names(used[0])} = std::get<{outputs.index(used[0])}>({expression});"]
        bound = ", ".join(self.names(name) if name else self.names.fresh("unused") for name in outputs)
        return [f"auto [{bound}] = {expression};"]

    def argument(self, value: Arg, name: str = "") -> str:
        """One argument's C++."""
        if name in ("cudnn_enable", "cudnn_enabled"):
            return "true"  # The exporter may have had no GPU; eager PyTorch on one asks for cuDNN.
        if value is None:
            return "::std::nullopt"
        if isinstance(value, Ref):
            return self.names(value.name)
        if isinstance(value, Const):
            return self.constant(value)
        if isinstance(value, (bool, int, float)):
            return cpp.number(value)
        if isinstance(value, str):
            return cpp.text(value)
        if value and all(isinstance(item, float) for item in value):
            return "at::ArrayRef<double>({" + ", ".join(self.argument(item) for item in value) + "})"
        return "{" + ", ".join(self.argument(item) for item in value) + "}"

    def constant(self, value: Const) -> str:
        """A dtype, memory format, layout or device. Devices become the arguments' own."""
        if value.kind == "dtype":
            return cpp.scalar_type(value.value)
        if value.kind == "memory_format":
            return cpp.MEMORY_FORMAT[value.value]
        if value.kind == "layout":
            if value.value != "strided":
                raise CannotWrite(f"{self.node.op} makes a {value.value} tensor{self.place}")
            return "at::kStrided"
        return f"{self.options}.device()"

    @property
    def place(self) -> str:
        """Where the call stands in the user's code, for messages."""
        return f" (at {self.node.source})" if self.node.source else ""

    def spec(self, argument: str) -> TensorSpec:
        """Layout of a tensor argument."""
        value = self.node.args[argument]
        assert isinstance(value, Ref), argument
        return self.values[value.name]

    def _factory(self) -> str:
        """A call with dtype, layout and device: those of the result, on the device of the arguments."""
        options = f"{self.options}.dtype({cpp.scalar_type(self.values[self.node.out].dtype)})"
        before, after = [], []
        for name, value in self.node.args.items():
            if name in _TENSOR_OPTIONS or name == "generator" or (name == "memory_format" and value is None):
                continue
            (after if name == "memory_format" else before).append(self.argument(value, name))
        base = self.node.base
        if base.startswith("new_"):
            # new_zeros(self, size): the receiver only lends its dtype and device, both known here.
            base, before = base.removeprefix("new_"), before[1:]
        return f"at::{base}({', '.join([*before, options, *after])})"


def _equal(_name: str, value: Arg, default: object) -> bool:
    return isinstance(value, bool) == isinstance(default, bool) and value == default
