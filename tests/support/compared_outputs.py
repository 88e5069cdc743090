"""Comparison of two folders of text files, number by number."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice, zip_longest
from pathlib import Path
from typing import Final

__all__ = ["compare", "differences"]

_NUMBER: Final = re.compile(r"(?:(?<!\w)-)?\d+(?:\.\d+)?(?:e[-+]?\d+)?", re.IGNORECASE)
_PRECISION: Final = 1e-9
_LINES, _BEFORE, _WIDTH = 3, 40, 100
"""Number of differing lines to print of a file, and of characters: at the start, before the difference, and in all."""


def compare(before: Path, after: Path, *, only: Sequence[str] = (), words: bool = False) -> int:
    """Print the files that differ and their first differing lines, and return the exit status: 1 at any difference.

    Args:
        before, after: the folders.
        only: compare the files whose names contain one of these texts; empty: all.
        words: ignore words; see `differences`.
    """
    names = {
        str(path.relative_to(folder)) for folder in (before, after) for path in folder.rglob("*") if path.is_file()
    }
    counts = Counter[str]()
    for name in sorted(name for name in names if not only or any(part in name for part in only)):
        paths = (before / name, after / name)
        if absent := [path for path in paths if not path.exists()]:
            counts["missing"] += 1
            print(f"{absent[0]} is missing")
            continue
        old, new = (path.read_text(encoding="utf-8") for path in paths)
        different = list(islice(differences(old, new, words=words), _LINES))
        counts["different" if different else "equal"] += 1
        if different:
            print(name)
        for lines in different:
            print("".join(f"  {sign} {text}\n" for sign, text in zip("-+", _around(*lines), strict=True)), end="")
    print(", ".join(f"{counts[name]:,} {name}" for name in ("equal", "different", "missing")))
    return 0 if counts.total() == counts["equal"] > 0 else 1


def differences(old: str, new: str, *, words: bool = False) -> Iterator[tuple[str, str]]:
    """Yield the pairs of lines that differ. `words`: only numbers count, and lines without numbers are left out.

    Example:
        >>> list(differences("a 0.3", "a 0.30000000000000004")), list(differences("3 a", "4 a"))
        ([], [('3 a', '4 a')])
    """
    if old == new:
        return
    lines = [text.splitlines() for text in (old, new)]
    if words:
        lines = [[line for line in side if _NUMBER.search(line)] for side in lines]
    for one, other in zip_longest(*lines):
        if one is None or other is None or not _is_same(one, other, words=words):
            yield one or "", other or ""


def _is_same(one: str, other: str, *, words: bool) -> bool:
    if one == other:
        return True
    numbers, others = _NUMBER.findall(one), _NUMBER.findall(other)
    same_words = words or _NUMBER.split(one) == _NUMBER.split(other)
    return same_words and len(numbers) == len(others) and all(map(_is_same_number, numbers, others))


def _is_same_number(one: str, other: str) -> bool:
    """Return whether two numbers are equal: integers exactly, floats to `_PRECISION`."""
    if one == other or one.lstrip("-").isdigit() or other.lstrip("-").isdigit():
        return one == other
    return math.isclose(float(one), float(other), rel_tol=_PRECISION)


def _around(one: str, other: str) -> tuple[str, str]:
    """Return the start of both lines and the place of their first difference."""
    same = next((place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), 0)
    if same <= 2 * _BEFORE:
        return one[: _BEFORE + _WIDTH], other[: _BEFORE + _WIDTH]
    middle = slice(same - _BEFORE, same - _BEFORE + _WIDTH)
    return f"{one[:_BEFORE]} … {one[middle]}", f"{other[:_BEFORE]} … {other[middle]}"
