"""Raise an exception at a point inside annot where CPython lets a signal handler do so."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import annot
from annot import native, own

where: list[Any] = []
FOLDER = str(Path(annot.__file__).parent)
IS_NATIVE = native.fast() is not None
# Where there is no C, this may be left before it begins.
GAPS = set() if IS_NATIVE else {own._exit.__code__, own._to_the_end.__code__}


class Timeout(Exception):  # noqa: N818
    """What a watchdog raises."""


def interrupt_at(number: int, body: Callable[[], object], kind: type[BaseException]) -> bool:
    """Raise in annot's code at the end of a call of C or at the beginning of a function, whichever is the number-th.

    There CPython handles signals. Returns whether that point was reached.
    """
    left = number

    def on_event(frame: FrameType, event: str, _: object) -> None:
        nonlocal left
        if event not in ("call", "c_return") or not frame.f_code.co_filename.startswith(FOLDER):
            return
        if frame.f_code in GAPS:
            return
        if event == "call" and frame.f_code.co_flags & inspect.CO_GENERATOR:
            return  # it may be resumed only to be closed, where CPython looks at no signals
        left -= 1
        if left < 0:
            where[:] = [frame.f_code.co_qualname, frame.f_lineno, event]
            raise kind  # CPython then calls this function no more

    sys.setprofile(on_event)
    try:
        body()
    except kind:
        return True
    finally:
        sys.setprofile(None)
    assert left >= 0, f"the exception at point {number}, {where}, has vanished"
    return False
