"""Labels of the step ranges of Keras optimizers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from annot.emit import client, guard
from annot.labels import optimizer_arguments, tag
from annot.util.weak_keys import WeakKeys

__all__ = ["event"]

_known: Final[WeakKeys[Any, tuple[list[int], Any]]] = WeakKeys()


def event(optimizer: Any, variables: Sequence[Any] | None = None) -> Any:
    """Return the event of the next step of an optimizer: ``Optimizer SGD params=11689512 momentum=True |opt``.

    Args:
        optimizer: the optimizer. For a wrapper such as `LossScaleOptimizer`, the label describes the inner one.
        variables: the variables that it updates; None: those that it was built for.
    """
    found = guard.attempt(_event, optimizer, variables, otherwise=None)
    return _new_event(type(optimizer).__name__) if found is None else found


def _event(optimizer: Any, variables: Sequence[Any] | None) -> Any:
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    updated: list[Any] = list(variables if variables is not None else getattr(inner, "_trainable_variables", ()))
    ids, known = [id(one) for one in updated], _known.get(optimizer)
    if known is None or known[0] != ids:
        name = type(optimizer).__name__
        known = _known[optimizer] = ids, _new_event(name, _arguments(name, inner, updated))
    return known[1]


def _new_event(name: str, arguments: tuple[tuple[str, tag.Value], ...] = ()) -> Any:
    return client.event(optimizer_arguments.text(name, arguments), category="optimizer", few=True)


def _arguments(name: str, optimizer: Any, variables: Sequence[Any]) -> tuple[tuple[str, tag.Value], ...]:
    names = (*optimizer_arguments.NUMBERS, "weight_decay")
    on = optimizer_arguments.switched_on({name: getattr(optimizer, name, None) for name in names}, decoupled=True)
    rows = ((math.prod(one.shape), _dtype(one), on) for one in variables)
    return *_base(name, optimizer), *optimizer_arguments.arguments(rows)


def _dtype(variable: Any) -> str:
    return tag.short_dtype(str(getattr(variable.dtype, "name", variable.dtype)))


def _base(name: str, optimizer: Any) -> tuple[tuple[str, tag.Value], ...]:
    """Return ``base``, the Keras class whose update step the optimizer uses, if `name` is another one."""
    cls: Any = type(optimizer)
    known = next((one for one in cls.__mro__ if one.__module__.startswith("keras.src.optimizers.")), cls)
    if known.__name__ == name or cls.update_step is not known.update_step:
        return ()
    return (("base", known.__name__),)
