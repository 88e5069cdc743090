"""Calls of built-in functions in a block of code. Frameworks and compilers run as without a watch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any


def can_watch() -> bool:
    """Return whether this thread has no profiler of the program, such as that of `profile`."""
    return sys.getprofile() is None


@contextmanager
def watch_builtins(names: Collection[str], call: Callable[[], object]) -> Iterator[None]:
    """Call a function when code in the block calls, for the first time, a built-in function of one of these names.

    Only calls on this thread count. Each call of a Python function in the block takes longer until then.

    Example:
        >>> seen = []
        >>> with watch_builtins({"divmod"}, lambda: seen.append(True)):
        ...     list(map(abs, [divmod(7, 2)[0], len("a")]))
        [3, 1]
        >>> seen
        [True]
    """

    def watch(_: Any, event: str, function: Any) -> None:
        if event == "c_call" and getattr(function, "__name__", "") in names:
            sys.setprofile(None)
            call()

    sys.setprofile(watch)
    try:
        yield
    finally:
        if sys.getprofile() is watch:
            sys.setprofile(None)
