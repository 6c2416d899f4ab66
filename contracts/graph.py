"""The operator graph as data: what `torch.export` found, without torch.

Values are named. A node's arguments are kept by their schema names, in schema order, with the
defaults filled in, so that a reader needs no operator schema to understand a node.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, Union

from contracts.tensors import TensorSpec


@dataclass(frozen=True, slots=True)
class Ref:
    """Use of a value by its name."""

    name: str


@dataclass(frozen=True, slots=True)
class Const:
    """A constant that is neither a number nor text, by torch's name, such as `float32`."""

    kind: Literal["dtype", "memory_format", "layout", "device"]
    value: str


Arg = Union[Ref, Const, int, float, bool, str, None, tuple["Arg", ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One operator call.

    Attributes:
        name: Unique in the graph.
        op: Full overload name, such as `aten.linear.default`.
        args: Argument name to value, in schema order, defaults filled in.
        outputs: Names of the values it makes, in order; None where an output is unused or absent.
        module: Dotted path of the submodule it came from; empty for the root.
        source: `file:line` in the user's code, or empty.
    """

    name: str
    op: str
    args: Mapping[str, Arg]
    outputs: tuple[str | None, ...]
    module: str = ""
    source: str = ""

    @property
    def base(self) -> str:
        """The operator without namespace and overload: `linear` for `aten.linear.default`."""
        return self.op.split(".")[1]

    @property
    def out(self) -> str:
        """The single output's name."""
        (name,) = [n for n in self.outputs if n is not None][:1] or [""]
        return name

    def refs(self) -> Iterator[str]:
        """Names of all values used, in argument order, with repeats."""
        for value in self.args.values():
            yield from _refs(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """A functional operator graph: nodes in an order in which every value is made before its use.

    Attributes:
        inputs: Names of the argument values, in the contract's argument order (tensors only).
        nodes: Operator calls.
        outputs: What the flat outputs are: a `Ref`, or a constant for a non-tensor output.
        mutations: Argument name to the value it must hold after the call (batch-norm statistics).
        values: Layout of every named value, arguments included.
    """

    inputs: tuple[str, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[Arg, ...]
    mutations: Mapping[str, str]
    values: Mapping[str, TensorSpec]

    def producer(self, name: str) -> Node | None:
        """The node that makes `name`, or None for an argument."""
        return next((node for node in self.nodes if name in node.outputs), None)

    def users(self, name: str) -> tuple[Node, ...]:
        """The nodes that use `name`, in order."""
        return tuple(node for node in self.nodes if name in set(node.refs()))


def _refs(value: Arg) -> Iterator[str]:
    if isinstance(value, Ref):
        yield value.name
    elif isinstance(value, tuple):
        for item in value:
            yield from _refs(item)
