"""Ranges around optimizer steps."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
import wrapt
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from annot.emit import client
from annot.torch.optimizer_events import UpdateEvents
from annot.torch.patches import Patches

__all__ = ["OptimizerSteps", "subclasses"]

_module: Final[Any] = sys.modules[Optimizer.__module__]  # torch.optim deletes its attribute of that name
_before: Final[dict[int, Any]] = _module._global_optimizer_pre_hooks
_after: Final[dict[int, Any]] = _module._global_optimizer_post_hooks
_is_compiling: Final = torch.compiler.is_dynamo_compiling


class OptimizerSteps:
    """Ranges around `step` of every optimizer, from `install` to `remove`.

    PyTorch wraps the `step` of a class when the first optimizer of that class is created. The wrapper of annot goes
    around that one. A learning-rate scheduler created before `install` calls PyTorch's wrapper directly. In that case
    the step hooks open the range.

    A step may get a closure that runs forward and backward, for example from Lightning. The range then opens when the
    closure returns. Further calls of the closure close it and open it again.
    """

    def __init__(self) -> None:
        self._patches = Patches()
        self._wrappers: list[Any] = []
        self._thread = threading.local()
        self._open: dict[int, Any] = {}  # ranges opened by the hooks, by thread id
        self._live = True
        self._events = UpdateEvents()

    def install(self) -> None:
        """Patch every optimizer class that is in use now or used later."""
        for cls in subclasses(Optimizer):
            self._patch(cls)
        original = vars(Optimizer)["_patch_step_function"]
        first_use = wrapt.FunctionWrapper(original, self._on_first_use)
        self._patches.replace(Optimizer, "_patch_step_function", first_use)
        register_optimizer_step_pre_hook(self._before_step)
        register_optimizer_step_post_hook(self._after_step)

    def remove(self) -> None:
        """Restore all attributes in reverse order."""
        self._live = False
        # By value: `install` loses the handle of a hook if an interrupt comes before the assignment.
        for hooks, ours in ((_before, self._before_step), (_after, self._after_step)):
            for key in [key for key, hook in dict(hooks).items() if hook == ours]:
                del hooks[key]
        while self._open:  # other threads may be inside a step
            client.end(self._open.popitem()[1])
        self._patches.undo()

    def _patch(self, cls: type) -> None:
        step = vars(cls).get("step")
        if getattr(step, "hooked", False) and all(wrapper is not step for wrapper in self._wrappers):
            self._wrappers.append(self._wrap(step))
            self._patches.replace(cls, "step", self._wrappers[-1])

    def _on_first_use(self, wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        result = wrapped(*args, **kwargs)
        self._patch(type(instance))
        return result

    def _wrap(self, original: Any) -> Any:
        # A plain function: schedulers read `step.__func__`, and a wrapt wrapper returns the original there.
        @functools.wraps(original)
        def step(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if _is_compiling() or not self._live:
                return original(optimizer, *args, **kwargs)
            return self._around_step(original, optimizer, args, kwargs)

        return step

    def _around_step(self, original: Any, optimizer: Any, args: Any, kwargs: Any) -> Any:
        active = self._active()
        if id(optimizer) in active:
            return original(optimizer, *args, **kwargs)
        depth, event, ident = client.depth(), self._events.of(optimizer), id(optimizer)
        wrapped = _with_closure((optimizer, *args), kwargs, lambda: client.pop_to(depth), lambda: client.push(event))
        try:
            active.add(ident)
            if wrapped is None:
                client.push(event)
                return original(optimizer, *args, **kwargs)
            return original(*wrapped[0], **wrapped[1])
        finally:
            try:
                client.pop_to(depth)
            finally:
                active.discard(ident)

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> Any:
        if _is_compiling():
            return None
        self._close_stale()
        if id(optimizer) in self._active():
            return None

        def open_range() -> None:
            if self._live:
                self._open[threading.get_ident()] = client.start(self._events.of(optimizer))

        wrapped = _with_closure(args, kwargs, self._close_stale, open_range)
        if wrapped is None:
            open_range()
        return wrapped

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if not _is_compiling():
            self._close_stale()

    def _close_stale(self) -> None:
        """Close the range that the hooks opened. The post hook does not run if a step raises."""
        opened = self._open.pop(threading.get_ident(), None)
        if opened is not None:
            client.end(opened)

    def _active(self) -> set[int]:
        try:
            return self._thread.active  # type: ignore[no-any-return]
        except AttributeError:
            self._thread.active = set()
            return self._thread.active  # type: ignore[no-any-return]


def _with_closure(args: Any, kwargs: Any, before: Callable[[], None], after: Callable[[], None]) -> Any:
    """Return the arguments of a step with `before` and `after` around the closure, or None without a closure."""
    closure = args[1] if len(args) > 1 else kwargs.get("closure")
    if not callable(closure):
        return None

    def evaluate() -> Any:
        before()
        result = closure()
        after()
        return result

    return ((args[0], evaluate, *args[2:]), kwargs) if len(args) > 1 else (args, {**kwargs, "closure": evaluate})


def subclasses(cls: type) -> Iterator[type]:
    """Yield all direct and indirect subclasses of a class, possibly with duplicates."""
    children: list[type] = cls.__subclasses__()
    for child in children:
        yield child
        yield from subclasses(child)
