"""Data classes to JSON values and back, by cattrs.

Infinities and NaN, which JSON lacks, are written as `{"float": "inf"}`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import singledispatch
from typing import Any, TypeVar, Union, get_args, get_origin

import cattrs

from contracts.graph import Arg, Const, Ref

T = TypeVar("T")
_converter = cattrs.Converter(forbid_extra_keys=False)


def to_data(value: object) -> Any:
    """A JSON value (dict, list, number, text, None) for `value`."""
    return _finite(_converter.unstructure(value))


def from_data(data: Any, kind: type[T]) -> T:
    """Rebuild a `kind` from `to_data`'s result.

    Raises:
        cattrs.BaseValidationError: The data does not have the shape of `kind`.
    """
    return _converter.structure(data, kind)


@singledispatch
def _finite(value: Any) -> Any:
    return value


@_finite.register
def _(value: float) -> Any:
    return value if math.isfinite(value) else {"float": str(value)}


@_finite.register(Mapping)
def _(value: Mapping[Any, Any]) -> Any:
    return {key: _finite(item) for key, item in value.items()}


@_finite.register(list)
@_finite.register(tuple)
def _(value: Any) -> Any:
    return [_finite(item) for item in value]


def _arg_to_data(value: Arg) -> Any:
    if isinstance(value, Ref):
        return {"ref": value.name}
    if isinstance(value, Const):
        return {value.kind: value.value}
    if isinstance(value, tuple):
        return [_arg_to_data(item) for item in value]
    return value


def _arg_from_data(data: Any, _kind: Any = None) -> Any:
    if isinstance(data, Mapping):
        ((kind, value),) = data.items()
        if kind == "ref":
            return Ref(value)
        if kind == "float":
            return float(value)
        return Const(kind, value)
    if isinstance(data, (list, tuple)):
        return tuple(_arg_from_data(item) for item in data)
    return data


def _is_arg(kind: Any) -> bool:
    # The recursive alias resolves to differently nested unions; all of them name Ref.
    return get_origin(kind) is Union and Ref in get_args(kind)


_converter.register_unstructure_hook(Ref, _arg_to_data)
_converter.register_unstructure_hook(Const, _arg_to_data)
_converter.register_structure_hook_func(_is_arg, _arg_from_data)
_converter.register_unstructure_hook_func(_is_arg, _arg_to_data)
_converter.register_structure_hook_func(lambda kind: kind is object, lambda data, _: data)
_converter.register_structure_hook_func(
    lambda kind: kind == int | float | bool | None, lambda data, _: _arg_from_data(data)
)
_converter.register_structure_hook(
    float, lambda data, _: float(data["float"]) if isinstance(data, Mapping) else float(data)
)
