"""Start the measurement of `annot try` in a Python process, and write its result when the process ends."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
import wrapt

from annot.emit import guard
from annot.live.deadline import Deadline
from annot.live.request import Request, Result
from annot.live.session import Session, first_line, resolve
from annot.util.whole_files import write_file

_SESSIONS: Final = {"torch": "annot.live.torch_session:start", "keras": "annot.live.keras_session:start"}
"""Function that starts the session of a framework: it takes the request and returns a session, or None."""
_LAYERS: Final = "annot.live.layer_session:install"
_NOTE: Final = "annot try measures nothing"


def measure_when_imported(text: str) -> None:
    """Measure the steps of the program from the import of PyTorch or Keras, and write the result at the end.

    Args:
        text: a `Request` as JSON.
    """
    request = msgspec.json.decode(text, type=Request)
    sessions: list[Session] = []
    owner = os.getpid()

    def finish(*, in_time: bool = True) -> None:
        if os.getpid() == owner:
            for session in sessions:
                session.result.ended = session.result.ended if in_time else "process"
            guard.attempt(_write, request, sessions, otherwise=None, note=_NOTE)

    def leave_child() -> None:
        for session in sessions:
            session.leave()

    deadline = Deadline(lambda: finish(in_time=False), profiled=bool(request.losses))
    # The first registered function is called last, after those of the program.
    atexit.register(finish)
    os.register_at_fork(after_in_child=leave_child)
    if request.seed is not None:
        _seed_python(request.seed)
    for name, start in _SESSIONS.items():
        wrapt.register_post_import_hook(_starter(start, request, sessions, deadline), name)


def _starter(start: str, request: Request, sessions: list[Session], deadline: Deadline) -> Callable[[Any], None]:
    def begin(_: Any) -> None:
        session = resolve(start)(request)
        if session is not None:
            sessions.append(session)
            session.on_end = deadline.start
            if request.framework in ("", session.framework):
                session.apply()
            if request.layer is not None and session.framework == "torch":
                guard.attempt(lambda: resolve(_LAYERS)(session), otherwise=None, note="no layer is timed alone")

    return lambda module: guard.attempt(begin, module, otherwise=None, note=_NOTE)


def _seed_python(seed: int) -> None:
    import random

    random.seed(seed)
    wrapt.register_post_import_hook(lambda numpy: numpy.random.seed(seed % 2**32), "numpy")


def _write(request: Request, sessions: list[Session]) -> None:
    """Write the result of the session that trains, or of that with the most steps, unless the file has a better one."""
    session = max(sessions, key=_has_measured, default=Session(request))
    path = Path(request.result)
    if os.environ.get("RANK", "0") != "0" or _is_less(session.result, path):
        return
    error = getattr(sys, "last_exc", getattr(sys, "last_value", None))
    result = session.finish()
    result.error = first_line(error) if error is not None else ""
    write_file(path, [msgspec.json.encode(result)], force=True)


def _has_measured(session: Session) -> tuple[bool, int]:
    return session.result.trains, len(session.result.step_ns)


def _is_less(result: Result, path: Path) -> bool:
    """Return whether the process that has written a file measured a training instead of inference, or any steps."""
    if not result.step_ns:
        return path.exists()
    before = guard.attempt(lambda: msgspec.json.decode(path.read_bytes(), type=Result), otherwise=Result())
    return before.trains and not result.trains
