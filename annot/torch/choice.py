"""Which modules of a model have ranges: by path, by class, by how deep they lie."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, TypeAlias

import torch

__all__ = ["EVERYTHING", "Choice", "Selection", "choose"]

Selection: TypeAlias = "str | type[torch.nn.Module] | Iterable[str | type[torch.nn.Module]] | None"
"""Patterns on the dotted path, module classes, or several of either."""


@dataclass(frozen=True, slots=True)
class _Selectors:
    patterns: tuple[re.Pattern[str], ...]
    classes: tuple[type[torch.nn.Module], ...]

    def has(self, path: str, module: torch.nn.Module) -> bool:
        """Return whether any pattern or class fits."""
        return isinstance(module, self.classes) or any(pattern.fullmatch(path) for pattern in self.patterns)


@dataclass(frozen=True, slots=True)
class Choice:
    """Says of each module whether it has ranges; see `choose`."""

    include: _Selectors | None = None
    exclude: _Selectors | None = None
    depth: int | None = None

    def takes(self, path: str, module: torch.nn.Module) -> bool:
        """Return whether the module at this dotted path has ranges."""
        if self.depth is not None and (path.count(".") + 1 if path else 0) > self.depth:
            return False
        if self.include is not None and not self.include.has(path, module):
            return False
        return self.exclude is None or not self.exclude.has(path, module)


EVERYTHING: Final = Choice()
"""Every module has ranges."""


def choose(include: Selection = None, exclude: Selection = None, depth: int | None = None) -> Choice:
    """Return the choice of modules that pass all three.

    In a pattern ``*`` and ``?`` stand for any characters, or one, of a name, ``[…]`` for one of a set, and ``**`` for
    any number of names, also none. The path of the whole model is ``""``.

    Args:
        include: what has ranges; None: every module.
        exclude: what has none. Modules inside it are judged by themselves: ``"encoder.**"`` leaves out the encoder
            with all it contains, ``"encoder"`` the encoder alone.
        depth: how many levels below the model have ranges; 0: the model alone; None: all.

    Raises:
        TypeError: a pattern is no text, a class no subclass of `torch.nn.Module`, `depth` no integer.
        ValueError: `depth` is negative, or a set in a pattern holds a range that runs backwards.

    Example:
        >>> choice = choose(include="features.**", exclude=torch.nn.ReLU)
        >>> choice.takes("features.0", torch.nn.Linear(1, 1)), choice.takes("features.1", torch.nn.ReLU())
        (True, False)
    """
    if depth is not None and (not isinstance(depth, int) or isinstance(depth, bool)):
        raise TypeError(f"depth must be an int or None, got {depth!r}")
    if depth is not None and depth < 0:
        raise ValueError(f"depth must not be negative, got {depth}")
    return Choice(_selectors("include", include), _selectors("exclude", exclude), depth)


def _selectors(name: str, selection: Selection) -> _Selectors | None:
    if selection is None:
        return None
    patterns, classes = [], []
    several = isinstance(selection, Iterable) and not isinstance(selection, (str, type))
    for one in selection if several else (selection,):  # type: ignore[union-attr]
        if isinstance(one, str):
            patterns.append(_compiled(one))
        elif isinstance(one, type) and issubclass(one, torch.nn.Module):
            classes.append(one)
        else:
            raise TypeError(f"{name} must hold path patterns and subclasses of torch.nn.Module, got {one!r}")
    return _Selectors(tuple(patterns), tuple(classes))


_PART = re.compile(r"\.\*\*|\*\*\.?|\*|\?|\[!?\]?[^\]]*\]|.", re.DOTALL)
_MEANING = {"*": r"[^.]*", "?": r"[^.]", ".**": r"(?:\..+)?", "**.": r"(?:.+\.)?", "**": r".*"}


def _compiled(pattern: str) -> re.Pattern[str]:
    """Translate a pattern to a regular expression that matches the whole path."""
    translated = "".join(_translated(part) for part in _PART.findall(pattern))
    if pattern not in ("", "**"):  # the path of the whole model has no name that a star could stand for
        translated = "(?=.)" + translated
    try:
        return re.compile(translated, re.DOTALL)
    except re.error as error:
        raise ValueError(f"{pattern!r} is no path pattern: {error}") from None


def _translated(part: str) -> str:
    if len(part) > 2 and part[0] == "[" and part[-1] == "]":
        inside = part[1:-1].replace("\\", r"\\").replace("[", r"\[").replace("^", r"\^")
        return f"[^.{inside[1:]}]" if inside.startswith("!") else f"[{inside}]"
    return _MEANING.get(part) or re.escape(part)
