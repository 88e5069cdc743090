"""Keep what fails in annot apart from exceptions that only pass through it, such as those of signal handlers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

from annot import emit, native

__all__ = ["attempt", "exit_method", "guarded", "recurs", "to_the_end"]

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


def attempt(work: Callable[..., T], *args: Any, otherwise: T, note: str = "") -> T:
    """Return what `work` returns, or `otherwise` if annot cannot do it: the user's program goes on without it.

    Args:
        work: reads the arguments of a call, for example; running it twice does no harm.
        args: the arguments of `work`.
        otherwise: stands for the result.
        note: what the failure costs, for a warning; an empty text: no warning.

    Raises:
        BaseException: the exception has come from outside, see `recurs`.

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
            emit.warn_once(f"{note}: {type(error).__name__}: {error}")
        return otherwise


def guarded(note: str) -> Callable[[F], F]:
    """Decorate a function that returns None where annot fails, with a warning that begins with `note`."""

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def run(*args: Any) -> Any:
            return attempt(function, *args, otherwise=None, note=note)

        return cast("F", run)

    return decorate


def _to_the_end(work: Callable[..., None], *args: Any) -> None:
    try:
        work(*args)
    except BaseException:
        try:
            work(*args)
        except BaseException:  # there may be signals in a row
            work(*args)
            raise
        raise


def _exit(self: Any, *exception: Any) -> None:
    done: list[str] = []
    try:
        self._exit(done, *exception)
    except BaseException:
        _to_the_end(self._exit, done, *exception)
        raise


# CPython handles signals when it enters a function of Python, too: only those in C cannot be left before they begin.
_fast: Final = native.fast()

to_the_end: Any = _fast.to_the_end if _fast is not None else _to_the_end
"""``to_the_end(work, *args)`` runs what puts something back, to its end, even if a signal handler raises in it.

`work` goes on where it was left, and does nothing when all is done; then what was raised in it first goes on.
"""

exit_method: Any = _fast.exit_method if _fast is not None else _exit
"""An `__exit__` that runs ``self._exit(done, kind, error, where)`` to its end, as `to_the_end` does.

`_exit` notes in the list `done` what must not be done twice. Without the C parts this is a function of Python, which a
signal handler may leave before its first line: then nothing is put back. No function of Python can prevent that.
"""


def recurs(error: Exception, work: Callable[..., Any], *args: Any) -> bool:
    """Return whether an exception that `work` has raised is its own: then `work` raises it again.

    A signal handler raises wherever the main thread happens to be, and PyThreadState_SetAsyncExc wherever another one
    is: such an exception, a timeout for example, is for the user, and does not come again.

    Nor does one of a race, as when another thread changes an argument while `work` reads it. It cannot be told from one
    that PyThreadState_SetAsyncExc raises, and so reaches the user: that is better than a timeout that never comes.
    """
    try:
        work(*args)
    except type(error):
        return True
    return False
