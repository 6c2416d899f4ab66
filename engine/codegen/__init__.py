"""How the expert writes `cuda_source.cu`: operator graph → fused kernels, library calls, host glue.

The public surface is two functions over plain data. A *recipe* says which choices were made; the
same contract and recipe always give the same text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from contracts.contract import Contract, Space
from engine.records import Device


@dataclass(frozen=True, slots=True, kw_only=True)
class Tunable:
    """One choice a recipe can make.

    Attributes:
        key: Unique name, such as `softmax_1.rows_per_block` or `layout`.
        direction: The direction (C, P, M, R, T) that moves it.
        values: Admissible values, the default first.
        meaning: One sentence for people and models.
        weight: Share of the module's time it touches, 0 to 1, for ordering.
    """

    key: str
    direction: str
    values: tuple[int | str | bool, ...]
    meaning: str
    weight: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Choices that make one source: the space, and values of tunables that differ from the default."""

    space: Space
    choices: Mapping[str, int | str | bool] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One written source.

    Attributes:
        source: The text of cuda_source.cu.
        tunables: Every choice this program could have made otherwise.
        kernels: Names of own kernels, in launch order.
        library_calls: Library functions used (cuBLAS, cuDNN, ...).
        torch_calls: ATen operators called from the host code.
        notes: Sentences about what was fused, dropped or chosen.
    """

    source: str
    tunables: tuple[Tunable, ...]
    kernels: tuple[str, ...] = ()
    library_calls: tuple[str, ...] = ()
    torch_calls: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class CannotWrite(Exception):
    """This space cannot express the contract; the message says which operator and why."""


def write(contract: Contract, recipe: Recipe, device: Device) -> Program:
    """Write a source.

    Raises:
        CannotWrite: The recipe's space cannot express the contract.
    """
    from engine.codegen.program import write_program

    return write_program(contract, recipe, device)
