"""Mutants that do what the code does, or differ in what has no right value: no test can notice them."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["is_equivalent"]

_EQUIVALENT: Final = (
    # file, pattern of the line of code, change, reason
    ("annot/report/units.py", r"longest = max\(.*default=0\)", "0 becomes 1", "1 ns has the unit of 0 ns"),
    ("annot/analyze/verdict.py", r"several = .* else 1", "1 becomes 0", "only more than 1 is named"),
    ("annot/labels/tag.py", r'"\w+": 0xFF\w{6},', r"\d+ becomes \d+", "a color of a range"),
)


def is_equivalent(path: str, code: str, change: str) -> bool:
    """Whether a change of a line of code is in the table of equivalent mutants."""
    return any(
        path == file and re.fullmatch(line, code) and re.fullmatch(changes, change)
        for file, line, changes, _ in _EQUIVALENT
    )
