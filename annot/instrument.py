"""`emit_ranges`: from a model to the wing of the framework that it comes from."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from typing import Any

__all__ = ["emit_ranges"]


def emit_ranges(model: Any, **options: Any) -> AbstractContextManager[Any]:
    """Put a range around every forward, every backward and every optimizer step of `model`, layer by layer.

    Nothing in the model changes, and after the block everything is as before. If `annot.enabled` is false on
    entry, nothing is installed at all.

    Args:
        model: a `torch.nn.Module`.
        options: those of `annot.torch.emit_ranges`.

    Raises:
        TypeError: the model is of another type, or an option does not exist.

    Example:
        >>> import torch, annot
        >>> model = torch.nn.Linear(3, 1)
        >>> with annot.emit_ranges(model):
        ...     model(torch.ones(2, 3)).sum().backward()
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(model, torch.nn.Module):
        from annot.torch import emit_ranges as emit_torch_ranges

        return emit_torch_ranges(model, **options)
    raise TypeError(f"emit_ranges expects a torch.nn.Module, got {type(model).__module__}.{type(model).__qualname__}")
