"""Layer paths, separated by ``/`` (Keras), ``.`` (PyTorch) or `` › `` (ranges of a program inside each other).

The path of a kernel that is fused from several layers joins their paths by ``+``: ``h.0.ln_1+h.0.attn.c_attn``.

Layer names can contain the other characters. The separator is `` › ``, or else the one that occurs first in a path, so
that a path and its outer layers have the same separator.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile
from typing import Final

from annot.labels.tag import FUSED, MODEL

INSIDE: Final = " › "
"""Separator of the names of ranges inside each other."""

_SHOWN: Final = 3
"""Layers of a fused kernel that its short name has."""


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


def layers_of(path: str) -> list[str]:
    """Return the paths of the layers of a fused kernel, or the path of a layer.

    Example:
        >>> layers_of("(model)+h.0.ln_1"), layers_of("h.0")
        (['', 'h.0.ln_1'], ['h.0'])
    """
    names = path.split(FUSED)
    return ["" if name == MODEL else name for name in names] if len(names) > 1 else names


def around(path: str) -> Iterator[str]:
    """Yield the layers that contain a layer, or all layers of a fused kernel, innermost first, and the whole model.

    A fused kernel is inside a layer that is one of its own if it contains the others.

    Example:
        >>> list(around("h.0.fc")), list(around("h.0.ln_1+h.0.attn.c_attn")), list(around("h.0.act+h.0"))
        (['h.0', 'h', ''], ['h.0', 'h', ''], ['h.0', 'h', ''])
    """
    if FUSED in path:
        yield (path := common(layers_of(path)))
    yield from above(path)


def relative(path: str, outer: str) -> str:
    """Return the path of a layer inside another one, or the whole path outside.

    The path of a fused kernel has at most three layers; the number of the others stands for these.

    Example:
        >>> relative("h.0.attn.c_attn", "h.0"), relative("h.0.ln_1+h.0.attn.c_attn+h.0", "h.0"), relative("h.1", "h.0")
        ('attn.c_attn', 'ln_1+attn.c_attn+(self)', 'h.1')
        >>> relative("a+b+c+d+e", "")
        'a+(3 more)+e'
    """
    if FUSED in path:
        names = [relative(layer, outer) for layer in path.split(FUSED)]
        more = len(names) - _SHOWN + 1
        return FUSED.join(names if more <= 1 else [names[0], f"({more} more)", names[-1]])
    if not outer or not is_within(path, outer):
        return path
    return path[len(outer) + len(INSIDE if INSIDE in path else ".") :] or "(self)"


def is_within(path: str, outer: str) -> bool:
    """Return whether a path is that of a layer or of a layer inside it.

    Example:
        >>> is_within("h.1.fc", "h.1"), is_within("h.10", "h.1")
        (True, False)
    """
    return path == outer or path.startswith((f"{outer}.", f"{outer}/", outer + INSIDE))


def containers(outer: Iterable[str], inner: Iterable[str]) -> set[str]:
    """Return the layers of `outer` that contain layers of `inner`, without a list of all layers around each.

    Example:
        >>> sorted(containers(["", "h.0", "h.1"], ["h.0.fc", "h.10"]))
        ['', 'h.0']
    """
    names = sorted({path for path in inner if path})

    def has(prefix: str) -> bool:
        place = bisect_left(names, prefix)
        return place < len(names) and names[place].startswith(prefix)

    return {path for path in set(outer) if (any(map(has, (f"{path}.", f"{path}/", path + INSIDE))) if path else names)}


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


def named(path: str, module: str) -> str:
    """Return the path and the class of a layer, the class alone if it is the path of a model in a script.

    Example:
        >>> named("encoder.fc", "Linear"), named("Linear", "Linear")
        ('encoder.fc Linear', 'Linear')
    """
    return path if path == module else f"{path} {module}".strip()


def _separator(path: str) -> str:
    if INSIDE in path:
        return INSIDE
    slash, dot = path.find("/"), path.find(".")
    return "/" if slash >= 0 and not 0 <= dot < slash else "."
