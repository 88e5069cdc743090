"""The part of a profile that a report is about: domain, steps, process, captures, and the peaks of its device."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from annot.analyze.hardware_counters import peaks_from_file
from annot.analyze.peaks import Peaks


@dataclass(frozen=True, slots=True)
class Selection:
    """Ranges, steps and processes to report on.

    Args:
        domain: use only ranges of this NVTX domain ("" is the default domain); None: all domains.
        steps: use only these steps; None: the whole profile.
        step_range: label of the ranges that mark steps, ``#`` matches any number; None: detect the steps.
        step_kind: use only steps of this kind, such as ``decode``; None: all kinds.
        process: use only this process; None: all processes.
        by_process: treat each process with layers or steps as a rank. If no process has layers or steps, each process
            with ranges is a rank.
        captures: traces in which the graphs were captured that the profile replays; empty: those beside the profile.
        within: folders outside of which no files beside the profile are read; empty: all folders.
        peaks: file of `annot calibrate` with the peaks of the device, or the peaks; None: see
            `annot.analyze.hardware_counters`.

    Raises:
        AnnotError: the file of the peaks cannot be read.
        TypeError: an argument has another type.
    """

    domain: str | None = None
    steps: slice | None = None
    step_range: str | None = None
    step_kind: str | None = None
    process: int | None = None
    by_process: bool = False
    captures: tuple[str, ...] = ()
    within: tuple[Path, ...] = ()
    peaks: str | os.PathLike[str] | Peaks | None = None

    def __post_init__(self) -> None:
        for name, kind in (("domain", str), ("steps", slice), ("step_range", str), ("step_kind", str)):
            if (value := getattr(self, name)) is not None and not isinstance(value, kind):
                raise TypeError(f"{name} must be a {kind.__name__} or None, got {value!r}")
        if isinstance(self.peaks, str | os.PathLike):
            object.__setattr__(self, "peaks", peaks_from_file(self.peaks))
        elif not isinstance(self.peaks, Peaks | None):
            raise TypeError(f"peaks must be the path of a file or None, got {self.peaks!r}")

    @property
    def of_steps(self) -> bool:
        """Whether it selects ranges or steps, which a profile may lack."""
        return (self.domain, self.steps, self.step_range, self.step_kind) != (None,) * 4


ALL: Final = Selection()
"""The whole profile."""
