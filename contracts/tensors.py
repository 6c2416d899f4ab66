"""Tensors as data: dtype, shape and stride, without a tensor library."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

DType = Literal[
    "float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool",
    "complex64", "complex128",
]

ITEM_BYTES: dict[str, int] = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "int16": 2,
    "int8": 1, "uint8": 1, "bool": 1, "complex64": 8, "complex128": 16,
}
FLOATING = frozenset({"float64", "float32", "float16", "bfloat16"})


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """Layout of one strided tensor.

    Attributes:
        dtype: Element type by torch's name.
        shape: Sizes, outermost first. Empty for a 0-d tensor.
        stride: Elements between neighbours along each dimension, as long as `shape`.
    """

    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @classmethod
    def contiguous(cls, dtype: str, shape: tuple[int, ...]) -> TensorSpec:
        """A row-major tensor."""
        return cls(dtype=dtype, shape=tuple(shape), stride=row_major(shape))

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def item_bytes(self) -> int:
        """Bytes of one element."""
        return ITEM_BYTES[self.dtype]

    @property
    def size_bytes(self) -> int:
        """Bytes of the elements, without gaps and without repeats of stride 0."""
        distinct = [n for n, s in zip(self.shape, self.stride, strict=True) if s != 0]
        return math.prod(distinct) * self.item_bytes if self.numel else 0

    @property
    def is_floating(self) -> bool:
        """True for real floating-point dtypes."""
        return self.dtype in FLOATING

    @property
    def is_contiguous(self) -> bool:
        """True for row-major storage without gaps. Sizes of 1 do not count."""
        return _same_stride(self.shape, self.stride, row_major(self.shape))

    @property
    def is_channels_last(self) -> bool:
        """True for NHWC or NDHWC storage of a 4-d or 5-d tensor."""
        return len(self.shape) in (4, 5) and _same_stride(
            self.shape, self.stride, channels_last(self.shape)
        )

    def __str__(self) -> str:
        sizes = ", ".join(map(str, self.shape))
        layout = "" if self.is_contiguous else f", stride ({', '.join(map(str, self.stride))})"
        return f"{self.dtype}[{sizes}]{layout}"


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a contiguous tensor, in elements."""
    stride: list[int] = []
    step = 1
    for size in reversed(shape):
        stride.append(step)
        step *= max(size, 1)
    return tuple(reversed(stride))


def channels_last(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a dense tensor whose dimension 1 varies fastest, in elements."""
    order = [0, *range(2, len(shape)), 1]
    inner = row_major(tuple(shape[d] for d in order))
    stride = [0] * len(shape)
    for position, dimension in enumerate(order):
        stride[dimension] = inner[position]
    return tuple(stride)


def _same_stride(shape: tuple[int, ...], a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    return all(n == 1 or x == y for n, x, y in zip(shape, a, b, strict=True)) or 0 in shape
