"""Which modules of a model have ranges: `annot.choice` for dotted paths and classes of PyTorch."""

from __future__ import annotations

import torch

from annot import choice
from annot.choice import EVERYTHING, Choice, Selection

__all__ = ["EVERYTHING", "Choice", "Selection", "choose"]


def choose(include: Selection = None, exclude: Selection = None, depth: int | None = None) -> Choice:
    """Return the choice of modules that pass all three; `annot.choice.choose` says what patterns mean.

    Raises:
        TypeError: a pattern is no text, a class no subclass of `torch.nn.Module`, `depth` no integer.
        ValueError: `depth` is negative, or a set in a pattern holds a range that runs backwards.

    Example:
        >>> choice = choose(include="features.**", exclude=torch.nn.ReLU)
        >>> choice.takes("features.0", torch.nn.Linear(1, 1)), choice.takes("features.1", torch.nn.ReLU())
        (True, False)
    """
    return choice.choose(include, exclude, depth, base=torch.nn.Module, base_name="torch.nn.Module")
