"""Separate annot's own failures from exceptions that pass through it, such as those of signal handlers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

from annot import native
from annot.emit import client

T = TypeVar("T")


def attempt(work: Callable[..., T], *args: Any, otherwise: T, note: str = "") -> T:
    """Return the result of `work`, or `otherwise` if `work` fails. The user's program continues either way.

    Args:
        work: function to call. It must be safe to run twice.
        args: arguments of `work`.
        otherwise: result if `work` fails.
        note: consequence of the failure, as the start of a warning. Empty: no warning.

    Raises:
        BaseException: the exception did not originate in `work`, see `recurs`.

    Example:
        >>> attempt(int, "7", otherwise=0), attempt(int, "seven", otherwise=0)
        (7, 0)
    """
    try:
        return work(*args)
    except Exception as error:
        if not recurs(error, work, *args):
            raise
        if note:
            client.warn_once(f"{note}: {type(error).__name__}: {error}")
        return otherwise


def mark(make_text: Callable[[], str]) -> None:
    """Emit a mark that describes the run, or none if making the text fails."""
    attempt(lambda: client.mark_fact(make_text()), otherwise=None)


def _to_the_end(work: Callable[..., None], *args: Any) -> None:
    try:
        work(*args)
    except BaseException:
        try:
            work(*args)
        except BaseException:  # another signal may arrive
            work(*args)
        raise


def _exit(self: Any, *exception: Any) -> None:
    done: list[str] = []
    try:
        self._exit(done, *exception)
    except BaseException:
        _to_the_end(self._exit, done, *exception)
        raise


# CPython also handles signals on entry to a Python function. Only a C function is sure to run its first line.
_emit: Final = native.emitter()

to_the_end: Any = _emit.to_the_end if _emit is not None else _to_the_end
"""``to_the_end(work, *args)`` completes a cleanup even if a signal handler raises during it.

It calls `work` again after each exception, then raises the first one. `work` must continue where it was interrupted,
and do nothing once it is complete.
"""

exit_method: Any = _emit.exit_method if _emit is not None else _exit
"""An `__exit__` that completes ``self._exit(done, kind, error, where)`` as `to_the_end` does.

`_exit` records in the list `done` the steps that must not run twice. Without the C extension this is a Python function.
A signal handler may raise before its first line, and then no cleanup runs. A Python function cannot prevent that.
"""


def recurs(error: Exception, work: Callable[..., Any], *args: Any) -> bool:
    """Return whether `work` itself caused an exception: it then raises the same one when it runs again.

    A signal handler can raise anywhere in the main thread, and PyThreadState_SetAsyncExc anywhere in another thread.
    Such an exception, for example a timeout, is meant for the user and does not recur.

    An exception from a race, for example if another thread changes an argument while `work` reads it, does not recur
    either. It cannot be distinguished from one of PyThreadState_SetAsyncExc, so it reaches the user: this is better
    than swallowing a timeout.
    """
    try:
        work(*args)
    except type(error):
        return True
    return False
