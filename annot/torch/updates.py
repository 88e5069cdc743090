"""What the range of an optimizer's step says of the optimizer."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from typing import Any

from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from annot import emit, own, tag, update_text
from annot.weak import WeakKeys

__all__ = ["UpdateEvents"]


class UpdateEvents:
    """The events of optimizer steps: ``Optimizer SGD params=11689512 momentum=True |opt``.

    Parameters are counted when an optimizer makes its first step, and again when its groups are others.
    """

    def __init__(self) -> None:
        self._known: WeakKeys[Any, tuple[list[tuple[int, int]], Any]] = WeakKeys()

    def of(self, optimizer: Any) -> Any:
        """Return the event of the next step of an optimizer, without arguments if its groups are no list of groups."""
        found = own.attempt(self._of, optimizer, otherwise=None)
        return _formatted(optimizer, ()) if found is None else found

    def _of(self, optimizer: Any) -> Any:
        groups = [(id(group["params"]), len(group["params"])) for group in optimizer.param_groups]
        known = self._known.get(optimizer)
        if known is None or known[0] != groups:
            known = self._known[optimizer] = groups, _event(optimizer)
        return known[1]


def _event(optimizer: Any) -> Any:
    return _formatted(optimizer, (*_base(optimizer), *update_text.arguments(_rows(optimizer.param_groups))))


def _formatted(optimizer: Any, arguments: tuple[tuple[str, tag.Value], ...]) -> Any:
    text = tag.format(tag.Tag(module=type(optimizer).__name__, phase="optimizer", arguments=arguments))
    return emit.event(text, category="optimizer", few=True)


def _rows(groups: Iterable[Any]) -> Iterator[update_text.Row]:
    for group in groups:
        on = update_text.switched_on(group, decoupled=group.get("decoupled_weight_decay") is True)
        for parameter in group["params"]:
            if not is_lazy(parameter):
                yield parameter.numel(), tag.short_dtype(str(parameter.dtype)), on


def _base(optimizer: Optimizer) -> tuple[tuple[str, tag.Value], ...]:
    """Return the class of PyTorch that a class of somebody's own takes its step from."""
    cls = type(optimizer)
    known = next((one for one in cls.__mro__ if one.__module__.startswith("torch.optim.")), Optimizer)
    computes = inspect.unwrap(cls.step).__module__
    if known in (cls, Optimizer) or not computes.startswith("torch.optim."):
        return ()
    return (("base", known.__name__),)
