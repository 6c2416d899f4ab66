"""The contract: one callable, its arguments and results, and how exact it must be (paper, Method)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from contracts.graph import Graph
from contracts.tensors import TensorSpec

Role = Literal["input", "parameter", "buffer", "attribute"]
Precision = Literal["match", "strict", "kernelbench"]
Space = Literal["cuda", "cuda_libs", "cuda_libs_torch"]
SPACES: tuple[Space, ...] = ("cuda", "cuda_libs", "cuda_libs_torch")


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """One argument of the host function.

    Attributes:
        name: C++ identifier, unique in the contract.
        role: Where the value comes from.
        tensor: Layout for tensors, None for attributes.
        value: The attribute's value (int, float, bool), None for tensors.
        path: State-dict path for parameters and buffers, the forward parameter's name for inputs.
        mutable: The call must write it (batch-norm statistics).
        low: For integer tensors, the smallest value the example held, if known.
        high: For integer tensors, the largest value the example held, if known.
    """

    name: str
    role: Role
    tensor: TensorSpec | None = None
    value: int | float | bool | None = None
    path: str = ""
    mutable: bool = False
    low: int | None = None
    high: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One set of shapes the callable must serve.

    Attributes:
        name: For messages, such as `example` or `batch 1`.
        tensors: Layout of every tensor argument, by argument name.
        outputs: Layout of every flat tensor output, in order.
        graph: The operator graph at these shapes, or None when the reference is CUDA text.
    """

    name: str
    tensors: Mapping[str, TensorSpec]
    outputs: tuple[TensorSpec, ...]
    graph: Graph | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """What a candidate must do.

    Attributes:
        name: C++ identifier made from the module's name.
        entry: Name of the host function in `cuda_source.cu`.
        arguments: Inputs, then parameters, then buffers, then attributes.
        output_tree: How the flat outputs are put together again: an output's index, or
            `{"tuple": [...]}`, `{"list": [...]}`, `{"dict": {key: ...}}`, `{"value": constant}`.
        mode: How the module was run.
        precision: The policy that decides acceptance.
        variants: Shapes to serve; the first is the example and is the one timed.
        random: True when forward draws random numbers (dropout in training).
        reference: `module` (groundtruth.py has Model), `function` (has reference), `cuda` (a .cu file
            is the reference).
        reference_sha256: Hash of the reference's text.
        flags: torch backend flags the reference ran with, such as `cudnn.allow_tf32`.
        notes: Sentences for the user about how the contract was made.
        free_dims: Input dimensions that may take other sizes: groups of (argument, dimension) that change together.
    """

    name: str
    entry: str
    arguments: tuple[Argument, ...]
    output_tree: object
    variants: tuple[Variant, ...]
    mode: Literal["train", "eval"] = "eval"
    precision: Precision = "match"
    random: bool = False
    reference: Literal["module", "function", "cuda"] = "module"
    reference_sha256: str = ""
    flags: Mapping[str, bool] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    free_dims: tuple[tuple[tuple[str, int], ...], ...] = ()

    @property
    def id(self) -> str:
        """First 16 hex digits of the SHA-256 of the canonical JSON, without notes."""
        from contracts import codec

        data = codec.to_data(self)
        data.pop("notes", None)
        text = json.dumps(data, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def example(self) -> Variant:
        """The variant that is timed."""
        return self.variants[0]

    @property
    def graph(self) -> Graph | None:
        """The example variant's operator graph."""
        return self.variants[0].graph

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """The example variant's flat outputs."""
        return self.variants[0].outputs

    @property
    def tensor_arguments(self) -> tuple[Argument, ...]:
        """Arguments that are tensors, in order."""
        return tuple(a for a in self.arguments if a.tensor is not None)
