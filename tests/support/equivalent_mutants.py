"""Mutants that do what the code does, or differ only in speed: no test can notice them."""

from __future__ import annotations

from typing import Final

__all__ = ["EQUIVALENT"]

EQUIVALENT: Final[dict[tuple[str, str, str], str]] = {}
"""File, line of code and change of each mutant, and why it is equivalent."""
