"""What the range of an optimizer's step says of an optimizer of Keras."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from annot import emit, own, tag, update_text
from annot.weak import WeakKeys

__all__ = ["event"]

_known: Final[WeakKeys[Any, tuple[list[int], Any]]] = WeakKeys()


def event(optimizer: Any, variables: Sequence[Any] | None = None) -> Any:
    """Return the event of the next step of an optimizer: ``Optimizer SGD params=11689512 momentum=True |opt``.

    Args:
        optimizer: the optimizer; of one around another, this other one's work is told.
        variables: what it updates; None: what it was built for.
    """
    found = own.attempt(_event, optimizer, variables, otherwise=None)
    return _formatted(type(optimizer).__name__, ()) if found is None else found


def _event(optimizer: Any, variables: Sequence[Any] | None) -> Any:
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    updated: list[Any] = list(variables if variables is not None else getattr(inner, "_trainable_variables", ()))
    ids, known = [id(one) for one in updated], _known.get(optimizer)
    if known is None or known[0] != ids:
        known = _known[optimizer] = ids, _made(type(optimizer).__name__, inner, updated)
    return known[1]


def _made(name: str, optimizer: Any, variables: Sequence[Any]) -> Any:
    names = (*update_text.NUMBERS, "weight_decay")
    on = update_text.switched_on({name: getattr(optimizer, name, None) for name in names}, decoupled=True)
    rows = ((math.prod(one.shape), _dtype(one), on) for one in variables)
    return _formatted(name, (*_base(name, optimizer), *update_text.arguments(rows)))


def _formatted(name: str, arguments: tuple[tuple[str, tag.Value], ...]) -> Any:
    text = tag.format(tag.Tag(module=name, phase="optimizer", arguments=arguments))
    return emit.event(text, category="optimizer", few=True)


def _dtype(variable: Any) -> str:
    return tag.short_dtype(str(getattr(variable.dtype, "name", variable.dtype)))


def _base(name: str, optimizer: Any) -> tuple[tuple[str, tag.Value], ...]:
    """Return the class of Keras whose update it makes, if it goes by another name."""
    cls: Any = type(optimizer)
    known = next((one for one in cls.__mro__ if one.__module__.startswith("keras.src.optimizers.")), cls)
    if known.__name__ == name or cls.update_step is not known.update_step:
        return ()
    return (("base", known.__name__),)
