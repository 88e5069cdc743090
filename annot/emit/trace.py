"""`@trace` and `with trace(...)`: ranges around functions, classes and blocks of code."""

from __future__ import annotations

import dataclasses
import inspect
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, cast, overload

from annot.emit import client, guard
from annot.emit.shapes import tensor_specs
from annot.labels import tag


@dataclass(frozen=True, slots=True)
class Options:
    """Arguments of `trace`."""

    message: str | None = None
    domain: str = tag.DOMAIN
    category: str | None = None
    color: str | int | None = None
    payload: float | None = None
    shapes: bool = False

    def event(self, text: str) -> Any:
        """Return the event with this text."""
        return client.event(text, domain=self.domain, category=self.category, color=self.color, payload=self.payload)

    def event_of_call(self, text: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the event with `text` and the tensor arguments of a call."""
        # Reading the shape of an argument may raise.
        nothing: tuple[tuple[tag.TensorSpec, ...], int] = (), 0
        specs, omitted = guard.attempt(tensor_specs, args, kwargs, otherwise=nothing)
        return self.event(tag.format(tag.Tag(layer=text, tensors=specs, omitted=omitted)))


F = TypeVar("F", bound="Callable[..., Any] | property | staticmethod[..., Any] | classmethod[Any, ..., Any]")


@overload
def trace(target: F, /) -> F: ...


@overload
def trace(
    target: str | None = None,
    /,
    *,
    domain: str = tag.DOMAIN,
    category: str | None = None,
    color: str | int | None = None,
    payload: float | None = None,
    shapes: bool = False,
) -> Trace: ...


def trace(
    target: Any = None,
    /,
    *,
    domain: str = tag.DOMAIN,
    category: str | None = None,
    color: str | int | None = None,
    payload: float | None = None,
    shapes: bool = False,
) -> Any:
    """Put a range around a function, a method, a class's methods, or a block of code.

    Use it as ``@trace``, ``@trace("name", ...)`` or ``with trace("name", ...):``. In a coroutine, generator or async
    generator, each step between two suspensions has a range, on the thread where it runs. A decorated class has ranges
    around every public function in its body, and around ``__init__`` and ``__call__``. If `annot.enabled` is false at
    decoration, the decorated object is returned unchanged.

    Args:
        target: the object to decorate, or the message. Default message: the qualified name of the decorated object.
        domain: NVTX domain. Empty: the default domain.
        category: name of an NVTX category.
        color: ``0xAARRGGBB`` or a color name.
        payload: integer or float payload of the range.
        shapes: show shapes and dtypes of the tensor arguments in the message.

    Raises:
        TypeError: `target` can neither be decorated nor is it a message, or an option has the wrong type.
        ValueError: `payload` or `color` is out of range, the color has an unknown name, or `domain` or `category`
            contains a NUL character.

    Example:
        >>> @trace
        ... def augment(image): return image
        >>> with trace("load", payload=3):
        ...     image = augment("cat.png")
    """
    named = target is None or isinstance(target, str)
    options = Options(target if named else None, domain, category, color, payload, shapes)
    _check(options)
    return Trace(options) if named else _decorate(target, options)


def mark(
    message: str,
    /,
    *,
    domain: str = tag.DOMAIN,
    category: str | None = None,
    color: str | int | None = None,
    payload: float | None = None,
) -> None:
    """Mark a point in time in the profile.

    Args:
        message: message that the tool shows.
        domain: NVTX domain. Empty: the default domain.
        category: name of an NVTX category.
        color: ``0xAARRGGBB`` or a color name.
        payload: integer or float payload of the mark.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: `payload` or `color` is out of range, the color has an unknown name, or `domain` or `category`
            contains a NUL character.

    Example:
        >>> mark("checkpoint saved", payload=1000)
    """
    options = Options(message, domain, category, color, payload)
    _check(options)
    if client.enabled():
        client.mark(options.event(message))


class Trace:
    """Decorator and context manager that ``trace("name", ...)`` returns. It is reusable and reentrant."""

    __slots__ = ("_open", "_options")

    def __init__(self, options: Options) -> None:
        self._options = options
        self._open: dict[int, list[bool]] = {}

    def __call__(self, target: F) -> F:
        """Decorate `target`, or return it unchanged if `annot.enabled` is false."""
        return cast("F", _decorate(target, self._options))

    def __enter__(self) -> None:
        on = client.enabled()
        entries = self._open.setdefault(threading.get_ident(), [])
        depth, entered = client.depth(), len(entries)
        try:
            if on:
                client.push(self._options.event(self._options.message or ""))
            entries.append(on)
        except BaseException:  # e.g. KeyboardInterrupt from a signal handler
            client.pop_to(depth)
            del entries[entered:]
            raise

    __exit__: Callable[..., None] = guard.exit_method

    def _exit(self, done: list[str], *exception: object) -> None:
        ident = threading.get_ident()
        entries = self._open.get(ident)
        if entries is None:  # entered on another thread: only that thread could close the range
            return
        if not done:
            done += ["popped"]  # CPython handles signals after calls, so not between here and `pop`
            on = entries[-1]
            del entries[-1]
            if on:
                client.pop()
        if not entries:
            self._open.pop(ident, None)


def _check(options: Options) -> None:
    allowed = (
        ("domain", str, "str"),
        ("category", str | None, "str or None"),
        ("color", str | int | None, "str or int or None"),
        ("payload", int | float | None, "an int or a float"),
        ("message", str | None, "a str"),
    )
    for name, types, expected in allowed:
        value = getattr(options, name)
        if not isinstance(value, types):
            raise TypeError(f"{'the message' if name == 'message' else name} must be {expected}, got {value!r}")
    if isinstance(options.payload, int) and not -(2**63) <= options.payload < 2**63:
        raise ValueError(f"payload must fit into 64 bits, got {options.payload}")
    if isinstance(options.color, int) and not 0 <= options.color < 2**32:
        raise ValueError(f"color must be 0xAARRGGBB, got {options.color:#x}")
    if isinstance(options.color, str):
        client.color_number(options.color)
    if "\0" in options.domain + (options.category or ""):
        raise ValueError(f"domain and category must not contain NUL, got {options.domain!r} and {options.category!r}")


def _decorate(target: Any, options: Options) -> Any:
    if not (callable(target) or isinstance(target, (property, staticmethod, classmethod))):
        raise TypeError(
            f"trace decorates a function, method, class or property, or takes a message, got {type(target).__name__}"
        )
    if not client.enabled():
        return target
    from annot.emit import wrappers

    if isinstance(target, type):
        return _decorate_class(target, options)
    if isinstance(target, property):
        getter = target.fget and _decorate(target.fget, options)
        return property(getter, target.fset, target.fdel, target.__doc__)
    of_call = options.event_of_call if options.shapes else None
    return wrappers.wrap(target, options.message, options.event, of_call)


def _decorate_class(cls: type, options: Options) -> type:
    """Decorate the functions of the class body in place: the class stays the same object."""
    prefix = options.message or cls.__qualname__
    for name, member in list(vars(cls).items()):
        public = not name.startswith("_") or name in ("__init__", "__call__")
        if public and (inspect.isfunction(member) or isinstance(member, (staticmethod, classmethod, property))):
            setattr(cls, name, _decorate(member, dataclasses.replace(options, message=f"{prefix}.{name}")))
    return cls
