"""Autocast and loss scaling for a program that has neither."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain
from typing import Any, Final

import torch
from torch.optim import Optimizer

from annot.live.torch_session import TorchSession

_FIRST_SCALE: Final = 65536.0
_GROWTH: Final = 2.0
_BACKOFF: Final = 0.5
_GROWTH_INTERVAL: Final = 2000
"""The defaults of `torch.amp.GradScaler`."""


class _Thread(threading.local):
    """The autocast that this thread has left open between a model and the backward of its loss."""

    opened: ExitStack | None = None


class Autocast:
    """Autocast around calls of models, and on to the backward, as in ``with torch.autocast(...): loss = ...``.

    In a call without gradients, autocast ends with the call.
    """

    def __init__(self, session: TorchSession, dtype: torch.dtype) -> None:
        self.on = False
        """Whether calls of models compute in `dtype`."""
        self._dtype = dtype
        # PyTorch does not capture CUDA graphs while autocast caches weights.
        self._cache = "cuda-graphs" not in session.request.changes
        self._thread = _Thread()
        session.around_calls(self.around_call)
        session.before_backward(self.close)
        session.around_steps(lambda _: self.close(), lambda _: None)

    @property
    def is_open(self) -> bool:
        """Whether this thread is between a call of a model and its backward."""
        return self._thread.opened is not None

    @contextmanager
    def around_call(self, model: torch.nn.Module) -> Iterator[None]:
        """Enter autocast, unless it is open."""
        device_type = next(model.parameters()).device.type
        opened = self._thread.opened
        if not self.on:
            yield
        elif not torch.is_grad_enabled():
            # The cache of an open autocast must not get casts without gradients.
            with torch.autocast(device_type, self._dtype, cache_enabled=self._cache and opened is None):
                yield
        else:
            if opened is None:
                opened = ExitStack()
                opened.enter_context(torch.autocast(device_type, self._dtype, cache_enabled=self._cache))
                self._thread.opened = opened
            yield

    def close(self) -> None:
        """Leave the autocast of this thread."""
        opened, self._thread.opened = self._thread.opened, None
        if opened is not None:
            opened.close()


class LossScaler:
    """Scale losses, and skip steps whose gradients are infinite, as `torch.amp.GradScaler` does.

    Gradients are unscaled right after each backward, before code of the program sees them. A step of an optimizer
    whose parameters have no gradients changes nothing: this is how a step is skipped.
    """

    def __init__(self, session: TorchSession, autocast: Autocast) -> None:
        self._session = session
        self._autocast = autocast
        self._scale: Any = None
        self._optimizers: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        session.patches.wrap(Optimizer, "__init__", self._optimizer_made)
        session.replace_backward(self.run_backward)
        session.around_steps(self.before_step, self.after_step)

    def run_backward(self, backward: Callable[[Any], Any], root: torch.Tensor) -> Any:
        """Run the backward of a scaled loss, and unscale the gradients."""
        if not self._autocast.on:
            return backward(root)
        if self._scale is None:
            self._scale = torch.full((), _FIRST_SCALE, device=root.device)
            self._growth = torch.full((), 0, dtype=torch.int32, device=root.device)
            self._overflow = torch.full((), 0.0, device=root.device)
        earlier = list(self._gradients())
        if earlier:  # of an earlier backward of the same step, or zeros
            torch._foreach_mul_(earlier, self._scale)
        result = backward(root * self._scale)
        self._unscale(self._gradients())
        return result

    def _unscale(self, scaled: Iterable[torch.Tensor]) -> None:
        by_kind: dict[tuple[torch.device, torch.dtype], list[torch.Tensor]] = {}
        for gradient in scaled:
            by_kind.setdefault((gradient.device, gradient.dtype), []).append(gradient)
        for (device, _), gradients in by_kind.items():
            overflow, inverse = self._overflow.to(device), self._scale.to(device).double().reciprocal().float()
            torch._amp_foreach_non_finite_check_and_unscale_(gradients, overflow, inverse)
            self._overflow.copy_(torch.maximum(self._overflow, overflow.to(self._overflow.device)))

    def before_step(self, optimizer: Optimizer) -> None:
        """Drop the gradients of the optimizer if one is infinite or NaN. Reading this waits for the device."""
        if self._scale is None:
            return
        if optimizer not in self._optimizers:  # a copy
            unscaled = set(map(id, self._gradients()))
            self._optimizers.add(optimizer)
            self._unscale([gradient for gradient in self._gradients() if id(gradient) not in unscaled])
        if bool(self._overflow):
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.grad = None

    def after_step(self, optimizer: Optimizer) -> None:
        """Adapt the scale."""
        if self._scale is not None:
            torch._amp_update_scale_(self._scale, self._growth, self._overflow, _GROWTH, _BACKOFF, _GROWTH_INTERVAL)
            self._overflow.zero_()

    def _optimizer_made(self, original: Callable[..., Any], optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
        original(optimizer, *args, **kwargs)
        self._optimizers.add(optimizer)

    def _gradients(self) -> Iterable[torch.Tensor]:
        """Return the gradients of the models and of the optimizers, which may step parameters outside models."""
        stepped = (group["params"] for optimizer in self._optimizers for group in optimizer.param_groups)
        lists = chain((model.parameters() for model in self._session.models), stepped)
        parameters = {id(parameter): parameter for parameter in chain.from_iterable(lists)}
        return (parameter.grad for parameter in parameters.values() if parameter.grad is not None)
