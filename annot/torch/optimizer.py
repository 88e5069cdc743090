"""Ranges around optimizer steps, zeroing and clipping of gradients, learning-rate schedulers and gradient scaling.

The range of a step shows arguments of the optimizer: ``Optimizer SGD params=11689512 momentum=True |opt``. The layer
of the other ranges is the name of the function: ``zero_grad SGD |opt``, ``clip_grad_norm_ |opt``,
``lr_scheduler StepLR |opt``, ``unscale_ GradScaler |opt``, ``update GradScaler |opt``.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import torch
import wrapt
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from annot.emit import client
from annot.emit.patches import subclasses
from annot.emit.update_events import UpdateEvents
from annot.labels import optimizer_arguments, tag
from annot.torch.internals import internal, is_compiling
from annot.torch.patches import Patches

_before: Final[dict[int, Any]] = internal("torch.optim.optimizer._global_optimizer_pre_hooks")
_after: Final[dict[int, Any]] = internal("torch.optim.optimizer._global_optimizer_post_hooks")


class _Thread(threading.local):
    """Ids of the optimizers whose step this thread runs inside a range."""

    def __init__(self) -> None:
        self.active: set[int] = set()


class OptimizerSteps(Patches):
    """Ranges around `step` of every optimizer, from `install` to `undo`.

    PyTorch wraps the `step` of a class when the first optimizer of that class is created. The wrapper of annot goes
    around that one. A learning-rate scheduler created before `install` calls PyTorch's wrapper directly. In that case
    the step hooks open the range.

    A step may get a closure that runs forward and backward, for example from Lightning. The range then opens when the
    closure returns. Further calls of the closure close it and open it again.
    """

    def __init__(self) -> None:
        super().__init__()
        self._wrappers: list[Any] = []
        self._thread = _Thread()
        self._open: dict[int, Any] = {}  # ranges opened by the hooks, by thread id
        self._events = UpdateEvents(_parameter_groups, _arguments)

    def install(self) -> None:
        """Patch every optimizer class that is in use now or used later."""
        for cls in subclasses(Optimizer):
            self._patch(cls)
        original = vars(Optimizer)["_patch_step_function"]
        first_use = wrapt.FunctionWrapper(original, self._on_first_use)
        self.replace(Optimizer, "_patch_step_function", first_use)
        register_optimizer_step_pre_hook(self._pre_hook)
        register_optimizer_step_post_hook(self._post_hook)

    def undo(self) -> None:
        """Restore all attributes in reverse order."""
        self.live = False
        # By value: `install` loses the handle of a hook if an interrupt comes before the assignment.
        for hooks, ours in ((_before, self._pre_hook), (_after, self._post_hook)):
            for key in [key for key, hook in dict(hooks).items() if hook == ours]:
                del hooks[key]
        while self._open:  # other threads may be inside a step
            client.end(self._open.popitem()[1])
        super().undo()

    def _patch(self, cls: type) -> None:
        step = vars(cls).get("step")
        if getattr(step, "hooked", False) and all(wrapper is not step for wrapper in self._wrappers):
            self._wrappers.append(self._wrap(step))
            self.replace(cls, "step", self._wrappers[-1])

    def _on_first_use(self, wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        result = wrapped(*args, **kwargs)
        self._patch(type(instance))
        return result

    def _wrap(self, original: Any) -> Any:
        # A plain function: schedulers read `step.__func__`, and a wrapt wrapper returns the original there.
        @functools.wraps(original)
        def step(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if is_compiling() or not self.live:
                return original(optimizer, *args, **kwargs)
            return self._call_step(original, optimizer, args, kwargs)

        return step

    def _call_step(self, original: Any, optimizer: Any, args: Any, kwargs: Any) -> Any:
        active = self._thread.active
        if id(optimizer) in active:
            return original(optimizer, *args, **kwargs)
        depth, event, ident = client.depth(), self._events.next_event(optimizer), id(optimizer)
        wrapped = wrap_closure((optimizer, *args), kwargs, lambda: client.pop_to(depth), lambda: client.push(event))
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

    def _pre_hook(self, optimizer: Any, args: Any, kwargs: Any) -> Any:
        if is_compiling():
            return None
        self._close_stale()
        if id(optimizer) in self._thread.active:
            return None

        def open_range() -> None:
            if self.live:
                self._open[threading.get_ident()] = client.start(self._events.next_event(optimizer))

        wrapped = wrap_closure(args, kwargs, self._close_stale, open_range)
        if wrapped is None:
            open_range()
        return wrapped

    def _post_hook(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if not is_compiling():
            self._close_stale()

    def _close_stale(self) -> None:
        """Close the range that the hooks opened. The post hook does not run if a step raises."""
        opened = self._open.pop(threading.get_ident(), None)
        if opened is not None:
            client.end(opened)


def wrap_closure(args: Any, kwargs: Any, before: Callable[[], None], after: Callable[[], None]) -> Any:
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


def _parameter_groups(optimizer: Any) -> list[tuple[int, int]]:
    return [(id(group["params"]), len(group["params"])) for group in optimizer.param_groups]


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
    torch_class = next((base for base in cls.__mro__ if base.__module__.startswith("torch.optim.")), Optimizer)
    computes = inspect.unwrap(cls.step).__module__
    if torch_class in (cls, Optimizer) or not computes.startswith("torch.optim."):
        return ()
    return (("base", torch_class.__name__),)


def install(patches: Patches) -> None:
    """Open a range around each of the other functions.

    Gradient clipping has a range if it is called as ``torch.nn.utils.clip_grad_norm_``. A function imported by name
    before the block is not patched.
    """
    patches.surround(Optimizer, "zero_grad", "zero_grad", _class_event("zero_grad"))
    for name in ("clip_grad_norm_", "clip_grad_value_"):
        for module in (torch.nn.utils, torch.nn.utils.clip_grad):
            patches.surround(module, name, "clip_grad", lambda *_, name=name, **__: _event(name))
    for scheduler in {LRScheduler, ReduceLROnPlateau, *subclasses(LRScheduler)}:
        if "step" in vars(scheduler):
            patches.surround(scheduler, "step", "lr_scheduler", _class_event("lr_scheduler"))
    for name in ("unscale_", "update"):
        patches.surround(torch.amp.GradScaler, name, "scaler", _class_event(name))


def _class_event(name: str) -> Callable[..., Any]:
    return lambda instance, *_, **__: _event(name, type(instance).__name__)


@functools.cache
def _event(name: str, module: str = "") -> Any:
    return client.event(tag.format(tag.Tag(name, module, "optimizer")), category="optimizer", few=True)
