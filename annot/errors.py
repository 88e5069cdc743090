"""The one exception that annot raises for things outside the program: files, tools, machines; and its warnings."""

from __future__ import annotations

import contextlib
import sys
import warnings

__all__ = ["AnnotError", "warn"]


class AnnotError(Exception):
    """A profile, tool or file could not be used; the message is one complete sentence that names it.

    Wrong arguments raise `TypeError` or `ValueError` instead.

    Example:
        >>> raise AnnotError("run.sqlite is empty")
        Traceback (most recent call last):
            ...
        annot.errors.AnnotError: run.sqlite is empty
    """

    def __init__(self, message: str) -> None:
        # A file's own words can be in it, and must not move the cursor of a terminal.
        super().__init__("".join(char if char.isprintable() else repr(char)[1:-1] for char in message))


def warn(message: str, *, stacklevel: int = 1) -> None:
    """Issue a `RuntimeWarning`, and never raise it.

    annot warns in the middle of the user's training step. Where warnings are errors (``-W error``), the message is a
    line on stderr.

    Args:
        message: the text of the warning.
        stacklevel: the frame that the warning names; 1 is the caller of this function.
    """
    try:
        warnings.warn(message, RuntimeWarning, stacklevel=stacklevel + 1)
    except RuntimeWarning:
        with contextlib.suppress(OSError, ValueError):  # stderr is closed
            print(f"annot: warning: {message}", file=sys.stderr or sys.stdout)
