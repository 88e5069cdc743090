"""Telling a collector when to collect: the CUDA profiler API, and an NVTX range around the window."""

from __future__ import annotations

from typing import Any

import torch

from annot import emit
from annot.schedule import CAPTURE_RANGE

__all__ = ["Capture"]

_NO_CUDA = "capture=True: there is no CUDA here, so only the range 'capture' says which steps are active"


class Capture:
    """One collector, which is started and stopped any number of times."""

    def __init__(self) -> None:
        self._opened: Any = None

    def set(self, on: bool) -> None:
        """Start or stop, unless that is done already; whatever goes wrong is one warning."""
        if on and self._opened is None:
            _tell_cuda("start")
            self._opened = emit.start(emit.event(CAPTURE_RANGE, category="loop", few=True))
        elif not on and self._opened is not None:
            emit.end(self._opened)
            self._opened = None
            _tell_cuda("stop")


def _tell_cuda(what: str) -> None:
    if not torch.cuda.is_available():
        emit.warn_once(_NO_CUDA)
        return
    try:
        getattr(torch.cuda.profiler, what)()
    except Exception as error:
        emit.warn_once(f"capture=True: the CUDA profiler did not {what}: {error}")
