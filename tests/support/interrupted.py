"""Raise an exception at a point inside annot where CPython runs signal handlers."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import annot
from annot import native
from annot.emit import guard

where: list[Any] = []
FOLDER = str(Path(annot.__file__).parent)
IS_NATIVE = native.emitter() is not None
# Without the C parts, a signal can interrupt these functions before their first line. This gap is accepted.
GAPS = set() if IS_NATIVE else {guard._exit.__code__, guard._to_the_end.__code__}


class Timeout(Exception):  # noqa: N818
    """Exception of a watchdog."""


def interrupt_at(number: int, body: Callable[[], object], kind: type[BaseException]) -> bool:
    """Raise in annot's code at the number-th point where CPython handles signals.

    These points are the end of a C call and the start of a Python function.

    Returns:
        Whether `body` reached the point.
    """
    left = number

    def on_event(frame: FrameType, event: str, _: object) -> None:
        nonlocal left
        if event not in ("call", "c_return") or not frame.f_code.co_filename.startswith(FOLDER):
            return
        if frame.f_code in GAPS:
            return
        if event == "call" and frame.f_code.co_flags & inspect.CO_GENERATOR:
            return  # a generator may be resumed by close(), where CPython does not check signals
        left -= 1
        if left < 0:
            where[:] = [frame.f_code.co_qualname, frame.f_lineno, event]
            raise kind  # CPython removes a profile function that raises

    sys.setprofile(on_event)
    try:
        body()
    except kind:
        return True
    finally:
        sys.setprofile(None)
    assert left >= 0, f"the exception at point {number}, {where}, was lost"
    return False
