"""Exception for errors outside the program, such as files, tools and machines, and warnings."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterator


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


class PlatformError(AnnotError):
    """This operating system is not supported."""


def require_linux(task: str) -> None:
    """Raise PlatformError if this system is not Linux.

    Args:
        task: what needs Linux, the beginning of the message.

    Example:
        >>> require_linux("annot run")
    """
    if sys.platform != "linux":
        raise PlatformError(f"{task} needs Linux: on {system_name()}, annot only reads profiles")


def system_name() -> str:
    """Return the name of this operating system for messages.

    Example:
        >>> system_name()
        'Linux'
    """
    return {"linux": "Linux", "darwin": "macOS", "win32": "Windows"}.get(sys.platform, sys.platform)


@contextlib.contextmanager
def writing(path: object) -> Iterator[None]:
    """Raise AnnotError for an OSError in the block, in which files are written.

    Args:
        path: the file or folder, for the message.

    Example:
        >>> with writing("run.sqlite"):
        ...     raise FileExistsError(17, "File exists")
        Traceback (most recent call last):
            ...
        annot.errors.AnnotError: run.sqlite cannot be written: File exists
    """
    try:
        yield
    except OSError as error:
        raise AnnotError(f"{path} cannot be written: {error.strerror}") from None


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
