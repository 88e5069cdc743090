"""Layer paths, separated by ``/`` (Keras), ``.`` (PyTorch) or `` › `` (ranges of a program inside each other).

Layer names can contain the other characters. The separator is `` › ``, or else the one that occurs first in a path, so
that a path and its outer layers have the same separator.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Final

__all__ = ["INSIDE", "above", "common", "last", "with_parent", "within"]

INSIDE: Final = " › "
"""Separator of the names of ranges inside each other."""


def above(path: str) -> Iterator[str]:
    """Yield the layers around a layer, innermost first, and finally the whole model (an empty path).

    Example:
        >>> list(above("net/block.1/conv")), list(above("towers.user/item.fc")), list(above(""))
        (['net/block.1', 'net', ''], ['towers.user/item', 'towers', ''], [])
    """
    separator = _separator(path)
    while path:
        path = path.rpartition(separator)[0]
        yield path


def within(path: str) -> list[str]:
    """Return a layer and the layers around it, outermost first, without the whole model.

    Example:
        >>> within("net/block/conv")
        ['net', 'net/block', 'net/block/conv']
    """
    return [path, *above(path)][-2::-1] if path else []


def common(paths: Sequence[str]) -> str:
    """Return the innermost layer that contains or equals all of the layers, empty for the whole model.

    Example:
        >>> common(["net/a/conv", "net/a/norm"]), common(["x.0", "y.0"])
        ('net/a', '')
    """
    columns = zip(*map(within, paths), strict=False)
    return next(reversed([names[0] for names in takewhile(lambda names: len(set(names)) == 1, columns)]), "")


def last(path: str) -> str:
    """Return the last name of a path.

    Example:
        >>> last("net/block/conv"), last("features.0")
        ('conv', '0')
    """
    return path.rpartition(_separator(path))[2]


def with_parent(path: str, root: str = "") -> str:
    """Return the path with the class of the model in front, if its first name is a number, which says nothing alone.

    Example:
        >>> with_parent("2", "Sequential"), with_parent("*.fc", "Sequential"), with_parent("classifier.2", "Net")
        ('Sequential.2', 'Sequential.*.fc', 'classifier.2')
    """
    return f"{root}.{path}" if root and (path[:1].isdecimal() or path[:1] == "*") else path


def _separator(path: str) -> str:
    if INSIDE in path:
        return INSIDE
    slash, dot = path.find("/"), path.find(".")
    return "/" if slash >= 0 and not 0 <= dot < slash else "."
