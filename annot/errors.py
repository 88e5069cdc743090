"""The one exception that annot raises for things outside the program: files, tools, machines."""

from __future__ import annotations


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
