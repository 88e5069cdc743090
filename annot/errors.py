"""Exception for errors outside the program, such as files, tools and machines, and warnings."""

from __future__ import annotations

import contextlib
import sys
import warnings


class AnnotError(Exception):
    """A profile, tool or file cannot be used. The message is one sentence that names it.

    Wrong arguments raise `TypeError` or `ValueError` instead.

    Example:
        >>> raise AnnotError("run.sqlite is empty")
        Traceback (most recent call last):
            ...
        annot.errors.AnnotError: run.sqlite is empty
    """

    def __init__(self, message: str) -> None:
        # The message may contain text from a file. Escape control characters, which could change the terminal.
        super().__init__("".join(char if char.isprintable() else repr(char)[1:-1] for char in message))


class EmptyProfileError(AnnotError):
    """A profile is readable and contains nothing."""


def warn(message: str, *, stacklevel: int = 1) -> None:
    """Issue a `RuntimeWarning` without ever raising it.

    annot warns during the user's training step. If warnings are errors (``-W error``), the message goes to stderr
    instead.

    Args:
        message: text of the warning.
        stacklevel: stack frame that the warning names; 1: the caller of this function.
    """
    try:
        warnings.warn(message, RuntimeWarning, stacklevel=stacklevel + 1)
    except RuntimeWarning:
        with contextlib.suppress(OSError, ValueError):  # stderr may be closed
            print(f"annot: warning: {message}", file=sys.stderr or sys.stdout)
