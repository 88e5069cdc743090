"""Options that select the ranges, steps and processes of a report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["ALL", "Selection"]


@dataclass(frozen=True, slots=True)
class Selection:
    """Ranges, steps and processes to report on.

    Args:
        domain: use only ranges of this NVTX domain ("" is the default domain); None: all domains.
        steps: use only these steps; None: the whole profile.
        step_range: label of the ranges that mark steps, ``#`` matches any number; None: detect the steps.
        process: use only this process; None: all processes.
        by_process: treat each process with layers or steps as a rank. If no process has layers or steps, each process
            with ranges is a rank.
    """

    domain: str | None = None
    steps: slice | None = None
    step_range: str | None = None
    process: int | None = None
    by_process: bool = False


ALL: Final = Selection()
"""The whole profile."""
