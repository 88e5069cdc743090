"""A range around every optimizer step."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import wrapt
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from annot import emit, tag

__all__ = ["OptimizerSteps", "subclasses"]


class _Patch(NamedTuple):
    owner: type
    name: str
    ours: Any
    original: Any

    def undo(self) -> None:
        """Put the original back, unless somebody else has put something there since."""
        if vars(self.owner).get(self.name) is self.ours:
            setattr(self.owner, self.name, self.original)


class OptimizerSteps:
    """Ranges around `step` of every optimizer, from `install` to `remove`.

    PyTorch puts its own wrapper on the `step` of a class when the first optimizer of that class is made. Ours goes
    around that one. A learning-rate scheduler that was made earlier calls PyTorch's wrapper directly; there the
    hooks of the step open the range instead.
    """

    def __init__(self) -> None:
        self._patched: list[_Patch] = []
        self._handles: list[Any] = []
        self._thread = threading.local()

    def install(self) -> None:
        """Patch every optimizer class that is in use, and those that come into use later."""
        for cls in subclasses(Optimizer):
            self._patch(cls)
        self._replace(Optimizer, "_patch_step_function", self._on_first_use)
        self._handles = [
            register_optimizer_step_pre_hook(self._before_step),
            register_optimizer_step_post_hook(self._after_step),
        ]

    def remove(self) -> None:
        """Put everything back, in reverse order."""
        for handle in self._handles:
            handle.remove()
        self._close_stale()
        while self._patched:
            self._patched.pop().undo()

    def _replace(self, owner: type, name: str, wrapper: Any) -> None:
        original = vars(owner)[name]
        ours = wrapt.FunctionWrapper(original, wrapper)
        setattr(owner, name, ours)
        self._patched.append(_Patch(owner, name, ours, original))

    def _patch(self, cls: type) -> None:
        step = vars(cls).get("step")
        if getattr(step, "hooked", False) and all(patch.ours is not step for patch in self._patched):
            self._replace(cls, "step", self._around_step)

    def _on_first_use(self, wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        result = wrapped(*args, **kwargs)
        self._patch(type(instance))
        return result

    def _around_step(self, wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        active = self._active()
        if id(instance) in active:
            return wrapped(*args, **kwargs)
        active.append(id(instance))
        emit.push(_event(instance))
        try:
            return wrapped(*args, **kwargs)
        finally:
            emit.pop()
            active.remove(id(instance))

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._close_stale()
        if id(optimizer) not in self._active():
            self._thread.open = (optimizer, emit.start(_event(optimizer)))

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._close_stale()

    def _close_stale(self) -> None:
        """Close the range that the hooks opened; the second hook does not run when a step raises."""
        opened = getattr(self._thread, "open", None)
        if opened is not None:
            self._thread.open = None
            emit.end(opened[1])

    def _active(self) -> list[int]:
        try:
            return self._thread.active  # type: ignore[no-any-return]
        except AttributeError:
            self._thread.active = []
            return self._thread.active  # type: ignore[no-any-return]


def _event(optimizer: Any) -> Any:
    return emit.event(tag.format(tag.Tag(module=type(optimizer).__name__, phase="optimizer")), category="optimizer")


def subclasses(cls: type) -> Iterator[type]:
    """Yield the subclasses of a class, however far down; one may come several times."""
    children: list[type] = cls.__subclasses__()
    for child in children:
        yield child
        yield from subclasses(child)
