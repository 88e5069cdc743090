"""Ranges around zeroing and clipping of gradients, learning-rate schedulers and gradient scaling.

Their phase is ``optimizer``, and their layer is the name of the function: ``zero_grad SGD |opt``,
``clip_grad_norm_ |opt``, ``lr_scheduler StepLR |opt``, ``unscale_ GradScaler |opt``, ``update GradScaler |opt``.
`annot.torch.optimizer` emits the ranges of the steps.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from annot.emit import client
from annot.labels import tag
from annot.torch.optimizer import subclasses
from annot.torch.patches import Patches

__all__ = ["install"]


def install(patches: Patches) -> None:
    """Open a range around each of these functions.

    Gradient clipping has a range if it is called as ``torch.nn.utils.clip_grad_norm_``. A function imported by name
    before the block is not patched.
    """
    patches.surround(Optimizer, "zero_grad", "zero_grad", _of_class("zero_grad"))
    for name in ("clip_grad_norm_", "clip_grad_value_"):
        for module in (torch.nn.utils, torch.nn.utils.clip_grad):
            patches.surround(module, name, "clip_grad", _named(name))
    for scheduler in {LRScheduler, ReduceLROnPlateau, *subclasses(LRScheduler)}:
        if "step" in vars(scheduler):
            patches.surround(scheduler, "step", "lr_scheduler", _of_class("lr_scheduler"))
    for name in ("unscale_", "update"):
        patches.surround(torch.amp.GradScaler, name, "scaler", _of_class(name))


def _of_class(name: str) -> Callable[..., Any]:
    return lambda instance, *_, **__: _event(name, type(instance).__name__)


def _named(name: str) -> Callable[..., Any]:
    return lambda *_, **__: _event(name)


@functools.cache
def _event(name: str, module: str = "") -> Any:
    return client.event(tag.format(tag.Tag(name, module, "optimizer")), category="optimizer", few=True)
