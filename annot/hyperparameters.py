"""How what a layer says beside shapes is spelt in the text of its ranges, in any framework."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypeAlias

from annot import tag

__all__ = ["ALWAYS", "Arguments", "Said", "spelt"]

ALWAYS: Final = object()
"""In the place of a default: the value is always said."""

_SCALARS: Final = (bool, int, float, str, type(None))

Arguments: TypeAlias = tuple[tuple[str, tag.Value], ...]
Said: TypeAlias = tuple[str, "str | Callable[[Any], object]", object]
"""Name in the text, attribute (or what gives it), and the default that is left out."""


def spelt(layer: object, family: Iterable[Said]) -> Iterator[tuple[str, tag.Value]]:
    """Yield the names and values that are not the defaults.

    Raises:
        TypeError: a tag cannot have a value, for example a size that is a symbol.

    Example:
        >>> tuple(spelt(slice(1, 2), [("from", "start", 0), ("to", "stop", ALWAYS), ("step", "step", 1)]))
        (('from', 1), ('to', 2))
    """
    for name, source, default in family:
        value = source(layer) if callable(source) else _attribute(layer, source)
        if not _is_default(value, default):
            yield name, _value(value)


def _attribute(layer: Any, path: str) -> object:
    """Return an attribute, for example ``linear1.out_features``; None where a class of the family has none."""
    for name in path.split("."):
        layer = getattr(layer, name, None)
    return layer


def _is_default(value: object, default: object) -> bool:
    if default is ALWAYS:
        return False
    if value is None or isinstance(value, (tuple, list)):
        return value is None or all(item == default for item in value)
    return value == default


def _value(value: object) -> tag.Value:
    items = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    if any(type(item) not in _SCALARS for item in items):
        raise TypeError(f"an argument of a range must be numbers or texts, got {value!r}")
    return items if isinstance(value, (tuple, list)) else items[0]
