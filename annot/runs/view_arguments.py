"""Checks of the arguments of `Run.view` and `Ranks.view`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, SupportsFloat, SupportsIndex

from annot.report.table import ORDERS
from annot.report.views import View

__all__ = ["check", "paths_to_expand"]


def check(depth: int | None, top: int | None, min_share: float, sort: str) -> None:
    """Check arguments of `Run.view`.

    Raises:
        TypeError: an argument has another type.
        ValueError: an argument is out of range.

    Example:
        >>> check(None, 0, 0.0, "order")
        Traceback (most recent call last):
        ValueError: top must be at least 1, got 0
    """
    for name, number, least in (("depth", depth, 0), ("top", top, 1)):
        if number is not None and (isinstance(number, bool) or not isinstance(number, SupportsIndex)):
            raise TypeError(f"{name} must be an int or None, got {_described(number)}")
        if number is not None and number < least:
            raise ValueError(f"{name} must be at least {least}, got {number}")
    if isinstance(min_share, bool) or not isinstance(min_share, SupportsFloat):
        raise TypeError(f"min_share must be a number, got {_described(min_share)}")
    if not 0 <= min_share <= 1:
        raise ValueError(f"min_share must be from 0 to 1 (0.05 is 5%), got {min_share}")
    if sort not in ORDERS:
        raise ValueError(f"sort must be one of {', '.join(ORDERS)}, got {sort!r}")


def paths_to_expand(expand: str | Sequence[str], view: View) -> tuple[str, ...]:
    """Return the argument `expand` as paths; one str is one path.

    Raises:
        TypeError: it is neither a path nor a sequence of paths.
        ValueError: the view has no tree of layers.
    """
    if not isinstance(expand, str | Sequence):
        raise TypeError(f"expand must be a path of a layer or a sequence of paths, got {_described(expand)}")
    paths = (expand,) if isinstance(expand, str) else tuple(expand)
    if wrong := [path for path in paths if not isinstance(path, str)]:
        raise TypeError(f"expand must have paths of layers, got {_described(wrong[0])}")
    if paths and not view.folds:
        raise ValueError(f"expand needs the times of layers, got by {view.by} with columns {view.group}")
    return paths


def _described(value: Any) -> str:
    return f"{value!r} ({type(value).__name__})"
