"""Telling a collector when to collect: the profiler API of CUDA, and an NVTX range around the window."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from annot import emit
from annot.schedule import CAPTURE_RANGE

__all__ = ["NO_CUDA", "Capture"]

NO_CUDA = "capture=True: there is no CUDA here, so only the range 'capture' says which steps are active"
"""What is said where there is no collector to tell."""


class Capture:
    """One collector, which is started and stopped any number of times.

    Args:
        tell_cuda: tells the profiler API of CUDA, as the framework reaches it, to ``start`` or ``stop``; whatever goes
            wrong there is one warning.
    """

    def __init__(self, tell_cuda: Callable[[str], None]) -> None:
        self._tell_cuda = tell_cuda
        self._opened: Any = None

    def set(self, on: bool) -> None:
        """Start or stop, unless that is done already."""
        if on and self._opened is None:
            self._tell_cuda("start")
            self._opened = emit.start(emit.event(CAPTURE_RANGE, category="loop", few=True))
        elif not on and self._opened is not None:
            emit.end(self._opened)
            self._opened = None
            self._tell_cuda("stop")
