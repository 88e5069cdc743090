"""Mutants that do what the code does, or differ only in speed: no test can notice them."""

from __future__ import annotations

from typing import Final

__all__ = ["EQUIVALENT"]

EQUIVALENT: Final[dict[tuple[str, str, str], str]] = {
    (
        "annot/report/units.py",
        "longest = max((abs(time) for time in times if time is not None), default=0)",
        "0 becomes 1",
    ): "1 ns has the unit of 0 ns",
}
"""File, line of code and change of each mutant, and why it is equivalent."""
