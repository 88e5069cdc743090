"""Which layers of a model have ranges, in any framework: by path, by class, by how deep they lie."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

__all__ = ["EVERYTHING", "Choice", "Selection", "choose"]

Selection: TypeAlias = "str | type[Any] | Iterable[str | type[Any]] | None"
"""Patterns on the path, classes of layers, or several of either."""


@dataclass(frozen=True, slots=True)
class _Selectors:
    patterns: tuple[re.Pattern[str], ...]
    classes: tuple[type[Any], ...]

    def has(self, path: str, layer: object) -> bool:
        """Return whether any pattern or class fits."""
        return isinstance(layer, self.classes) or any(pattern.fullmatch(path) for pattern in self.patterns)


@dataclass(frozen=True, slots=True)
class Choice:
    """Says of each layer whether it has ranges; see `choose`."""

    include: _Selectors | None = None
    exclude: _Selectors | None = None
    depth: int | None = None
    separator: str = "."

    def takes(self, path: str, layer: object) -> bool:
        """Return whether the layer at this path, which begins below the model, has ranges."""
        if self.depth is not None and (path.count(self.separator) + 1 if path else 0) > self.depth:
            return False
        if self.include is not None and not self.include.has(path, layer):
            return False
        return self.exclude is None or not self.exclude.has(path, layer)


EVERYTHING: Final = Choice()
"""Every layer has ranges."""


def choose(
    include: Selection = None,
    exclude: Selection = None,
    depth: int | None = None,
    *,
    base: type[Any] = object,
    base_name: str = "a class",
    separator: str = ".",
) -> Choice:
    """Return the choice of layers that pass all three.

    In a pattern ``*`` and ``?`` stand for any characters, or one, of a name, ``[…]`` for one of a set, and ``**`` for
    any number of names, also none. The path of the whole model is ``""``.

    Args:
        include: what has ranges; None: every layer.
        exclude: what has none. Layers inside it are judged by themselves: ``"encoder.**"`` leaves out the encoder
            with all it contains, ``"encoder"`` the encoder alone.
        depth: how many levels below the model have ranges; 0: the model alone; None: all.
        base: what classes must derive from.
        base_name: how an error calls that.
        separator: the character between the names of a path.

    Raises:
        TypeError: a pattern is no text, a class no subclass of `base`, `depth` no integer.
        ValueError: `depth` is negative, or a set in a pattern holds a range that runs backwards.

    Example:
        >>> choice = choose(include="block_1/**", exclude=int, separator="/")
        >>> choice.takes("block_1/conv", "layer"), choice.takes("block_1/relu", 0), choice.takes("head", "layer")
        (True, False, False)
    """
    if depth is not None and (not isinstance(depth, int) or isinstance(depth, bool)):
        raise TypeError(f"depth must be an int or None, got {depth!r}")
    if depth is not None and depth < 0:
        raise ValueError(f"depth must not be negative, got {depth}")
    expected = f"path patterns and subclasses of {base_name}"

    def selectors(name: str, selection: Selection) -> _Selectors | None:
        return _selectors(name, selection, base, expected, separator)

    return Choice(selectors("include", include), selectors("exclude", exclude), depth, separator)


def _selectors(name: str, selection: Selection, base: type[Any], expected: str, separator: str) -> _Selectors | None:
    if selection is None:
        return None
    patterns, classes = [], []
    several = isinstance(selection, Iterable) and not isinstance(selection, (str, type))
    for one in selection if several else (selection,):
        if isinstance(one, str):
            patterns.append(_compiled(one, separator))
        elif isinstance(one, type) and issubclass(one, base):
            classes.append(one)
        else:
            raise TypeError(f"{name} must hold {expected}, got {one!r}")
    return _Selectors(tuple(patterns), tuple(classes))


def _compiled(pattern: str, separator: str) -> re.Pattern[str]:
    """Translate a pattern to a regular expression that matches the whole path."""
    between = re.escape(separator)
    parts = re.compile(rf"{between}\*\*|\*\*{between}?|\*|\?|\[!?\]?[^\]]*\]|.", re.DOTALL)
    translated = "".join(_translated(part, separator) for part in parts.findall(pattern))
    if pattern not in ("", "**"):  # the path of the whole model has no name that a star could stand for
        translated = "(?=.)" + translated
    try:
        return re.compile(translated, re.DOTALL)
    except re.error as error:
        raise ValueError(f"{pattern!r} is no path pattern: {error}") from None


def _translated(part: str, separator: str) -> str:
    between = re.escape(separator)
    meaning = {
        "*": f"[^{between}]*", "?": f"[^{between}]", f"{separator}**": f"(?:{between}.+)?",
        f"**{separator}": f"(?:.+{between})?", "**": ".*",
    }  # fmt: skip
    if len(part) > 2 and part[0] == "[" and part[-1] == "]":
        inside = part[1:-1].replace("\\", r"\\").replace("[", r"\[").replace("^", r"\^")
        return f"[^{between}{inside[1:]}]" if inside.startswith("!") else f"[{inside}]"
    return meaning.get(part) or re.escape(part)
