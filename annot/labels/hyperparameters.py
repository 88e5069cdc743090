"""Serialize the hyperparameters of layers into range names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypeAlias

from annot.labels import tag

ALWAYS: Final = object()
"""Default of a hyperparameter whose value is always recorded."""

_SCALARS: Final = (bool, int, float, str, type(None))

Arguments: TypeAlias = tuple[tuple[str, tag.Value], ...]
Hyperparameter: TypeAlias = tuple[str, "str | Callable[[Any], object]", object]
"""Name in the text, attribute (or a function of the layer), and the default that is left out."""


def hyperparameter_values(layer: object, family: Iterable[Hyperparameter]) -> Iterator[tuple[str, tag.Value]]:
    """Yield the names and values of the hyperparameters that differ from their defaults.

    Args:
        layer: the layer.
        family: the hyperparameters of the layer's class.

    Raises:
        TypeError: a value is unsupported in range names, for example a symbolic size.

    Example:
        >>> family = [("from", "start", 0), ("to", "stop", ALWAYS), ("step", "step", 1)]
        >>> tuple(hyperparameter_values(slice(1, 2), family))
        (('from', 1), ('to', 2))
    """
    for name, source, default in family:
        value = source(layer) if callable(source) else _attribute(layer, source)
        if not _is_default(value, default):
            yield name, _value(value)


def _attribute(layer: Any, path: str) -> object:
    """Return an attribute such as ``linear1.out_features``, or None if the class lacks it."""
    for name in path.split("."):
        layer = getattr(layer, name, None)
    return layer


def _is_default(value: object, default: object) -> bool:
    items = value if isinstance(value, (tuple, list)) else (value,)
    return default is not ALWAYS and (value is None or all(item == default for item in items))


def _value(value: object) -> tag.Value:
    items = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    if any(type(item) not in _SCALARS for item in items):
        raise TypeError(f"an argument in a range name must be a number, a string or a sequence of these, got {value!r}")
    return items if isinstance(value, (tuple, list)) else items[0]
