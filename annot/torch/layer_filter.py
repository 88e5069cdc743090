"""Layer filter for PyTorch: `annot.emit.layer_filter` for dotted paths and subclasses of `torch.nn.Module`."""

from __future__ import annotations

import torch

from annot.emit import layer_filter
from annot.emit.layer_filter import EVERYTHING, Choice, Selection

__all__ = ["EVERYTHING", "Choice", "Selection", "choose"]


def choose(include: Selection = None, exclude: Selection = None, depth: int | None = None) -> Choice:
    """Return the selection of modules that pass `include`, `exclude` and `depth`.

    Args:
        include: modules that have ranges, as in `annot.emit.layer_filter.choose`. None: every module.
        exclude: modules without ranges.
        depth: maximum depth below the model. 0: only the model. None: unlimited.

    Raises:
        TypeError: a pattern is not a string, a class is not a subclass of `torch.nn.Module`, or `depth` is not an int.
        ValueError: `depth` is negative, or a set in a pattern contains a reversed range such as ``[z-a]``.

    Example:
        >>> choice = choose(include="features.**", exclude=torch.nn.ReLU)
        >>> choice.takes("features.0", torch.nn.Linear(1, 1)), choice.takes("features.1", torch.nn.ReLU())
        (True, False)
    """
    return layer_filter.choose(include, exclude, depth, base=torch.nn.Module, base_name="torch.nn.Module")
