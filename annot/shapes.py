"""Shapes and dtypes of the tensors among the arguments of a call, of any framework."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from annot import own
from annot.tag import TensorSpec, short_dtype

__all__ = ["MAX_TENSORS", "tensor_specs", "tensors_in"]

MAX_TENSORS: Final = 8
"""How many tensors are spelt out in the text of one range; further ones are counted."""

_DEPTH: Final = 2


def tensor_specs(args: Iterable[Any], kwargs: Mapping[str, Any]) -> tuple[tuple[TensorSpec, ...], int]:
    """Return the specs of the tensors among the arguments, and how many more there are.

    Tensors are looked for in the positional arguments, then in the keyword arguments, and two levels deep in
    lists, tuples and dicts. Anything with a `shape` and a `dtype` counts.

    Example:
        >>> import numpy
        >>> tensor_specs([numpy.zeros((2, 3), "float32")], {})
        ((TensorSpec(shape=(2, 3), dtype='f32'),), 0)
    """
    found = tensors_in(args, kwargs, lambda value: hasattr(value, "shape") and hasattr(value, "dtype"))
    return tuple(map(spec_of, found[:MAX_TENSORS])), max(0, len(found) - MAX_TENSORS)


def tensors_in(args: Iterable[Any], kwargs: Mapping[str, Any], is_tensor: Callable[[Any], bool]) -> list[Any]:
    """Return the tensors among the arguments in the order in which `tensor_specs` names them."""
    found: list[Any] = []
    _collect(args, _DEPTH, is_tensor, found)
    if kwargs:
        _collect(kwargs.values(), _DEPTH, is_tensor, found)
    return found


def spec_of(tensor: Any) -> TensorSpec:
    """Return the spec of one tensor; what it does not tell (as a ragged shape) is unknown."""
    dtype = short_dtype(getattr(tensor.dtype, "name", None) or str(tensor.dtype))
    return TensorSpec(own.attempt(_sizes, tensor, otherwise=(None,)), dtype)


def _sizes(tensor: Any) -> tuple[int | None, ...]:
    # A symbolic size would be fixed by looking at its value.
    return tuple(size if type(size) is int else None for size in tensor.shape)


def _collect(values: Iterable[Any], depth: int, is_tensor: Callable[[Any], bool], found: list[Any]) -> None:
    for value in values:
        if is_tensor(value):
            found.append(value)
        elif depth and isinstance(value, (list, tuple)):
            _collect(value, depth - 1, is_tensor, found)
        elif depth and isinstance(value, dict):
            _collect(list(value.values()), depth - 1, is_tensor, found)
