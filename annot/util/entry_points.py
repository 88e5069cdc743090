"""Objects of other packages that register with an entry point: readers, views, advice, formulas.

An error in such an object ends neither a report nor a page: annot leaves the object out and warns once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final, TypeVar

from annot.errors import AnnotError, warn

T = TypeVar("T")
_FAILURES: Final = (Exception, SystemExit)


@dataclass(frozen=True, slots=True)
class Extension:
    """An object of another package.

    Args:
        name: name of the entry point.
        title: kind, place and package of the object, for messages.
        target: the object.
    """

    name: str
    title: str
    target: Any

    def call(self, function: Callable[..., T], *args: Any, default: T, passed: tuple[type[Exception], ...] = ()) -> T:
        """Return the result of a function of the object; after an error `default`, with a warning.

        `passed` are exceptions that the caller expects.
        """
        try:
            return function(*args)
        except passed:
            raise
        except _FAILURES as error:
            self.leave_out(self.failure(error))
            return default

    def isolated(self, kind: type[T], passed: tuple[type[Exception], ...] = ()) -> Callable[..., T | None]:
        """Return the object as a function, whose result is None after an error, or for a result of another type.

        Args:
            kind: the type of its results other than None.
            passed: exceptions that its caller expects.
        """

        def isolated(*args: Any) -> T | None:
            result = self.call(self.target, *args, default=None, passed=passed)
            if result is None or isinstance(result, kind):
                return result
            self.leave_out(f"returned {type(result).__name__} instead of {kind.__name__}")
            return None

        return isolated

    def require(self, function: Callable[..., T], *args: Any) -> T:
        """Return the result of a function of the object, or raise AnnotError."""
        try:
            return function(*args)
        except AnnotError:
            raise
        except _FAILURES as error:
            raise AnnotError(f"{self.title} {self.failure(error)}") from error

    def leave_out(self, reason: str) -> None:
        """Warn that the object is left out."""
        warn(f"{self.title} is left out: it {reason}")

    @staticmethod
    def failure(error: BaseException) -> str:
        """Return what an error of the object was, in one line: ``failed with ValueError: ...``."""
        text = "".join(letter if letter.isprintable() else " " for letter in str(error))
        return f"failed with {type(error).__name__}: {text}"


@cache
def loaded(group: str, kind: type | tuple[str, ...]) -> tuple[Extension, ...]:
    """Return the objects of all entry points in a group. Objects of another kind are left out, with a warning.

    Args:
        group: group of the entry points, such as ``annot.readers``.
        kind: the type of the objects, or the attributes that they must have.
    """
    extensions = (_loaded(point, kind) for point in entry_points(group=group))
    return tuple(extension for extension in extensions if extension is not None)


def _loaded(point: EntryPoint, kind: type | tuple[str, ...]) -> Extension | None:
    what = point.group.removeprefix("annot.").removesuffix("s")
    title = f"the {what} {point.value} of the package {point.dist.name if point.dist else point.name}"
    extension = Extension(point.name, title, None)
    target = extension.call(point.load, default=extension)
    if target is extension:
        return None
    if isinstance(kind, type):
        lacks = "" if isinstance(target, kind) else f"is a {type(target).__name__}, not a {kind.__name__}"
    else:
        missing = [name for name in kind if not hasattr(target, name)]
        lacks = f"lacks {', '.join(missing)}" if missing else ""
    if lacks:
        extension.leave_out(f"{lacks} (`annot guide extending`)")
        return None
    return Extension(point.name, title, target)
