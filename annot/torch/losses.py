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

_is_compiling: Final = torch.compiler.is_dynamo_compiling


def install(patches: Patches, sites: Sites, *, shapes: bool) -> None:
    """Give a loss that has no site one when it is first called, so that its forward and backward have ranges.

    A function of `torch.nn.functional` has none: it is a function like any other, and `annot.trace` is for those.
    """

    def __call__(self: Any, /, *args: Any, **kwargs: Any) -> Any:  # noqa: N807  (the name in tracebacks)
        if not _is_compiling():
            sites.add_outside(self, LAYER, shapes=shapes)
        return torch.nn.Module.__call__(self, *args, **kwargs)

    pass_over(__call__)
    patches.replace(_Loss, "__call__", __call__)
