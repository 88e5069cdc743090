"""Layer filter for any framework: select the layers that have ranges by path, class and depth."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

Selection: TypeAlias = "str | type[Any] | Iterable[str | type[Any]] | None"
"""A path pattern, a layer class, or an iterable of these."""


@dataclass(frozen=True, slots=True)
class _Selectors:
    patterns: tuple[re.Pattern[str], ...]
    classes: tuple[type[Any], ...]

    def has(self, path: str, layer: object) -> bool:
        """Return whether a pattern or a class matches the layer."""
        return isinstance(layer, self.classes) or any(pattern.fullmatch(path) for pattern in self.patterns)


@dataclass(frozen=True, slots=True)
class Choice:
    """Selection of layers, made by `choose`."""

    include: _Selectors | None = None
    exclude: _Selectors | None = None
    depth: int | None = None
    separator: str = "."

    def takes(self, path: str, layer: object) -> bool:
        """Return whether a layer has ranges. Its path is relative to the model."""
        if self.depth is not None and (path.count(self.separator) + 1 if path else 0) > self.depth:
            return False
        if self.include is not None and not self.include.has(path, layer):
            return False
        return self.exclude is None or not self.exclude.has(path, layer)


EVERYTHING: Final = Choice()
"""Selection of every layer."""


def choose(
    include: Selection = None,
    exclude: Selection = None,
    depth: int | None = None,
    *,
    base: type[Any] = object,
    base_name: str = "a class",
    separator: str = ".",
) -> Choice:
    """Return the selection of layers that pass `include`, `exclude` and `depth`.

    In a pattern ``*`` matches any characters of one name, ``?`` one character, ``[…]`` one character of a set, and
    ``**`` zero or more names. The path of the model itself is ``""``.

    Args:
        include: layers that have ranges. None: every layer.
        exclude: layers without ranges. Their sublayers are matched separately: ``"encoder.**"`` excludes the encoder
            and everything inside it, ``"encoder"`` only the encoder itself.
        depth: maximum depth below the model. 0: only the model. None: unlimited.
        base: base class of all layers.
        base_name: name of `base` in error messages.
        separator: character between the names of a path.

    Raises:
        TypeError: a pattern is not a string, a class is not a subclass of `base`, or `depth` is not an int.
        ValueError: `depth` is negative, or a set in a pattern contains a reversed range such as ``[z-a]``.

    Example:
        >>> choice = choose(include="block_1/**", exclude=int, separator="/")
        >>> choice.takes("block_1/conv", "layer"), choice.takes("block_1/relu", 0), choice.takes("head", "layer")
        (True, False, False)
    """
    if depth is not None and (not isinstance(depth, int) or isinstance(depth, bool)):
        raise TypeError(f"depth must be an int or None, got {depth!r}")
    if depth is not None and depth < 0:
        raise ValueError(f"depth must not be negative, got {depth}")
    rest = base, f"path patterns and subclasses of {base_name}", separator
    return Choice(_selectors("include", include, *rest), _selectors("exclude", exclude, *rest), depth, separator)


def _selectors(name: str, selection: Selection, base: type[Any], expected: str, separator: str) -> _Selectors | None:
    if selection is None:
        return None
    patterns, classes = [], []
    several = isinstance(selection, Iterable) and not isinstance(selection, (str, type))
    for selector in selection if several else (selection,):
        if isinstance(selector, str):
            patterns.append(_compiled(selector, separator))
        elif isinstance(selector, type) and issubclass(selector, base):
            classes.append(selector)
        else:
            raise TypeError(f"{name} must contain {expected}, got {selector!r}")
    return _Selectors(tuple(patterns), tuple(classes))


def _compiled(pattern: str, separator: str) -> re.Pattern[str]:
    """Translate a pattern into a regular expression for the whole path."""
    between = re.escape(separator)
    meaning = {
        "*": f"[^{between}]*",
        "?": f"[^{between}]",
        f"{separator}**": f"(?:{between}.+)?",
        f"**{separator}": f"(?:.+{between})?",
        "**": ".*",
    }
    tokens = re.findall(rf"{between}\*\*|\*\*{between}?|\*|\?|\[!?\]?[^\]]*\]|.", pattern, re.DOTALL)
    translated = "".join(meaning.get(token) or _character(token, between) for token in tokens)
    if pattern not in ("", "**"):  # only "" and "**" match the empty path of the model
        translated = "(?=.)" + translated
    try:
        return re.compile(translated, re.DOTALL)
    except re.error as error:
        raise ValueError(f"{pattern!r} is not a valid path pattern: {error}") from None


def _character(token: str, between: str) -> str:
    if len(token) > 2 and token[0] == "[" and token[-1] == "]":
        inside = token[1:-1].replace("\\", r"\\").replace("[", r"\[").replace("^", r"\^")
        return f"[^{between}{inside[1:]}]" if inside.startswith("!") else f"[{inside}]"
    return re.escape(token)
