"""Shapes and dtypes of the tensor arguments of a call, for any framework."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from annot.emit import guard
from annot.labels.tag import TensorSpec, short_dtype

MAX_TENSORS: Final = 8
"""Maximum number of tensors in the text of a range. The text counts the others."""

_DEPTH: Final = 2


def tensor_specs(args: Iterable[Any], kwargs: Mapping[str, Any]) -> tuple[tuple[TensorSpec, ...], int]:
    """Return the specs of the first `MAX_TENSORS` tensor arguments of a call, and the number of the others.

    Positional arguments come first, then keyword arguments. Lists, tuples and dicts are searched two levels deep. An
    object with a `shape` and a `dtype` is a tensor.

    Example:
        >>> import numpy
        >>> tensor_specs([numpy.zeros((2, 3), "float32")], {})
        ((TensorSpec(shape=(2, 3), dtype='f32'),), 0)
    """
    return specs_of(tensors_in(args, kwargs, lambda value: hasattr(value, "shape") and hasattr(value, "dtype")))


def specs_of(tensors: Sequence[Any]) -> tuple[tuple[TensorSpec, ...], int]:
    """Return the specs of the first `MAX_TENSORS` tensors, and the number of the others."""
    return tuple(map(spec_of, tensors[:MAX_TENSORS])), max(0, len(tensors) - MAX_TENSORS)


def tensors_in(args: Iterable[Any], kwargs: Mapping[str, Any], is_tensor: Callable[[Any], bool]) -> list[Any]:
    """Return the tensor arguments in the order of `tensor_specs`."""
    tensors: list[Any] = []
    _collect(args, _DEPTH, is_tensor, tensors)
    if kwargs:
        _collect(kwargs.values(), _DEPTH, is_tensor, tensors)
    return tensors


def spec_of(tensor: Any) -> TensorSpec:
    """Return the spec of one tensor. Sizes that it does not provide, as in a ragged shape, are unknown."""
    dtype = short_dtype(getattr(tensor.dtype, "name", None) or str(tensor.dtype))
    return TensorSpec(guard.attempt(_sizes, tensor, otherwise=(None,)), dtype)


def _sizes(tensor: Any) -> tuple[int | None, ...]:
    # Reading the value of a symbolic size would specialize the traced graph to it.
    return tuple(size if type(size) is int else None for size in tensor.shape)


def _collect(values: Iterable[Any], depth: int, is_tensor: Callable[[Any], bool], tensors: list[Any]) -> None:
    for value in values:
        if is_tensor(value):
            tensors.append(value)
        elif depth and isinstance(value, (list, tuple)):
            _collect(value, depth - 1, is_tensor, tensors)
        elif depth and isinstance(value, dict):
            _collect(list(value.values()), depth - 1, is_tensor, tensors)
