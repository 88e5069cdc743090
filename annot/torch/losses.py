"""Losses: modules of `torch.nn` that are called outside the model, as layers of their own."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch.nn.modules.loss import _Loss

from annot.torch.calls import pass_over
from annot.torch.patches import Patches
from annot.torch.sites import Sites

__all__ = ["LAYER", "install"]

LAYER: Final = "Loss"
"""The layer of a loss that belongs to no model; a class follows, as in ``Loss CrossEntropyLoss``."""

# Globals, because torch.compile recompiles when the closure of a function that it has traced changes.
_is_compiling: Final = torch.compiler.is_dynamo_compiling
_sites: Sites
_shapes: bool


def install(patches: Patches, sites: Sites, *, shapes: bool) -> None:
    """Give a loss that has no site one when it is first called, so that its forward and backward have ranges.

    A function of `torch.nn.functional` has none: it is a function like any other, and `annot.trace` is for those.
    """
    global _sites, _shapes
    _sites, _shapes = sites, shapes
    pass_over(_call_loss)
    patches.replace(_Loss, "__call__", _call_loss)


def _call_loss(self: Any, /, *args: Any, **kwargs: Any) -> Any:
    if not _is_compiling():
        _sites.add_outside(self, LAYER, shapes=_shapes)
    return torch.nn.Module.__call__(self, *args, **kwargs)
