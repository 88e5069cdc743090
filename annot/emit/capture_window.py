"""Start and stop of a profiler around the active steps: the CUDA profiler API, and an NVTX range around the window."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from annot.emit import client
from annot.emit.schedule import CAPTURE_RANGE

__all__ = ["NO_CUDA", "Capture"]

NO_CUDA = "capture=True: CUDA is not available. Only the range 'capture' marks the active steps"
"""Warning for machines without CUDA."""


class Capture:
    """Collection window of one profiler. It can open and close any number of times.

    `tell_cuda` calls the CUDA profiler API of the framework with ``start`` or ``stop``. It reports a failure as one
    warning.
    """

    def __init__(self, tell_cuda: Callable[[str], None]) -> None:
        self._tell_cuda = tell_cuda
        self._opened: Any = None

    def set(self, on: bool) -> None:
        """Start (True) or stop (False) collection. Repeated calls have no effect."""
        if on and self._opened is None:
            self._tell_cuda("start")
            self._opened = client.start(client.event(CAPTURE_RANGE, category="loop", few=True))
        elif not on and self._opened is not None:
            client.end(self._opened)
            self._opened = None
            self._tell_cuda("stop")
