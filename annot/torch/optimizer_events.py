"""Events of optimizer steps, with the arguments of the optimizer."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from typing import Any

from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from annot.emit import client, guard
from annot.labels import optimizer_arguments, tag
from annot.util.weak_keys import WeakKeys

__all__ = ["UpdateEvents"]


class UpdateEvents:
    """Cache of the events of optimizer steps: ``Optimizer SGD params=11689512 momentum=True |opt``.

    Parameters are counted at the first step of an optimizer, and again when its parameter groups change.
    """

    def __init__(self) -> None:
        self._known: WeakKeys[Any, tuple[list[tuple[int, int]], Any]] = WeakKeys()

    def of(self, optimizer: Any) -> Any:
        """Return the event of the next step of an optimizer, without arguments if reading the groups fails."""
        found = guard.attempt(self._of, optimizer, otherwise=None)
        return _make_event(optimizer) if found is None else found

    def _of(self, optimizer: Any) -> Any:
        groups = [(id(group["params"]), len(group["params"])) for group in optimizer.param_groups]
        known = self._known.get(optimizer)
        if known is None or known[0] != groups:
            known = self._known[optimizer] = groups, _make_event(optimizer, _arguments(optimizer))
        return known[1]


def _make_event(optimizer: Any, arguments: tuple[tuple[str, tag.Value], ...] = ()) -> Any:
    text = optimizer_arguments.text(type(optimizer).__name__, arguments)
    return client.event(text, category="optimizer", few=True)


def _arguments(optimizer: Any) -> tuple[tuple[str, tag.Value], ...]:
    return *_base(optimizer), *optimizer_arguments.arguments(_rows(optimizer.param_groups))


def _rows(groups: Iterable[Any]) -> Iterator[optimizer_arguments.Row]:
    for group in groups:
        on = optimizer_arguments.switched_on(group, decoupled=group.get("decoupled_weight_decay") is True)
        for parameter in group["params"]:
            if not is_lazy(parameter):
                yield parameter.numel(), tag.short_dtype(str(parameter.dtype)), on


def _base(optimizer: Optimizer) -> tuple[tuple[str, tag.Value], ...]:
    """Return the argument `base` of a user-defined class that inherits `step` from a class of PyTorch."""
    cls = type(optimizer)
    known = next((one for one in cls.__mro__ if one.__module__.startswith("torch.optim.")), Optimizer)
    computes = inspect.unwrap(cls.step).__module__
    if known in (cls, Optimizer) or not computes.startswith("torch.optim."):
        return ()
    return (("base", known.__name__),)
