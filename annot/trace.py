"""`@trace` and `with trace(...)`: a range around the running parts of whatever it is given."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, cast, overload

from annot import emit, own, tag
from annot.shapes import tensor_specs

__all__ = ["Trace", "mark", "trace"]

F = TypeVar("F", bound="Callable[..., Any] | property | staticmethod[..., Any] | classmethod[Any, ..., Any]")


@dataclass(frozen=True, slots=True)
class Options:
    """What the caller of `trace` chose for its ranges."""

    message: str | None = None
    domain: str = emit.DOMAIN
    category: str | None = None
    color: str | int | None = None
    payload: float | None = None
    shapes: bool = False

    def event(self, text: str) -> Any:
        """Return the event that shows `text`."""
        return emit.event(text, domain=self.domain, category=self.category, color=self.color, payload=self.payload)

    def event_of_call(self, text: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the event that shows `text` and the tensors among the arguments of this call."""
        # An argument may not let itself be looked at.
        nothing: tuple[tuple[tag.TensorSpec, ...], int] = (), 0
        specs, omitted = own.attempt(tensor_specs, args, kwargs, otherwise=nothing)
        return self.event(tag.format(tag.Tag(layer=text, tensors=specs, omitted=omitted)))


@overload
def trace(target: F, /) -> F: ...


@overload
def trace(
    target: str | None = None,
    /,
    *,
    domain: str = emit.DOMAIN,
    category: str | None = None,
    color: str | int | None = None,
    payload: float | None = None,
    shapes: bool = False,
) -> Trace: ...


def trace(
    target: Any = None,
    /,
    *,
    domain: str = emit.DOMAIN,
    category: str | None = None,
    color: str | int | None = None,
    payload: float | None = None,
    shapes: bool = False,
) -> Any:
    """Put a range around a function, a method, a class's methods, or a block of code.

    Use it as ``@trace``, ``@trace("name", ...)`` or ``with trace("name", ...):``. Of coroutines, generators and
    async generators the range covers the parts that run, each on the thread it runs on. A class gets a range for
    every public function in its body, and for ``__init__`` and ``__call__``. If `annot.enabled` is false at that
    moment, the very object that was decorated comes back.

    Args:
        target: what to decorate, or the message; by default the qualified name of what is decorated.
        domain: NVTX domain; empty for the default one.
        category: name of an NVTX category.
        color: ``0xAARRGGBB`` or a colour name.
        payload: an integer or float that goes along with the range.
        shapes: say shapes and dtypes of the tensor arguments in the text.

    Raises:
        TypeError: `target` cannot be decorated and is no message, or an option has the wrong type.

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
    domain: str = emit.DOMAIN,
    category: str | None = None,
    color: str | int | None = None,
    payload: float | None = None,
) -> None:
    """Set a mark, a point in time, in the profile.

    Args:
        message: what the tool shows.
        domain: NVTX domain; empty for the default one.
        category: name of an NVTX category.
        color: ``0xAARRGGBB`` or a colour name.
        payload: an integer or float that goes along.

    Example:
        >>> mark("checkpoint saved", payload=1000)
    """
    options = Options(message, domain, category, color, payload)
    _check(options)
    if emit.enabled():
        emit.mark(options.event(message))


class Trace:
    """What ``trace("name", ...)`` returns: a decorator and a context manager, reusable and re-entrant."""

    __slots__ = ("_open", "_options")

    def __init__(self, options: Options) -> None:
        self._options = options
        self._open: dict[int, list[bool]] = {}

    def __call__(self, target: F) -> F:
        """Decorate `target`; if `annot.enabled` is false it comes back as it is."""
        return cast("F", _decorate(target, self._options))

    def __enter__(self) -> None:
        on = emit.enabled()
        mine = self._open.setdefault(threading.get_ident(), [])
        depth, entered = emit.depth(), len(mine)
        try:
            if on:
                emit.push(self._options.event(self._options.message or ""))
            mine.append(on)
        except BaseException:  # an interrupt
            emit.pop_to(depth)
            del mine[entered:]
            raise

    __exit__: Callable[..., None] = own.exit_method

    def _exit(self, done: list[str], *exception: object) -> None:
        ident = threading.get_ident()
        mine = self._open.get(ident)
        if mine is None:  # entered on another thread, where alone the range could be closed
            return
        if not done:
            done += ["popped"]  # CPython handles signals after calls, and so not before `pop`
            on = mine[-1]
            del mine[-1]
            if on:
                emit.pop()
        if not mine:
            self._open.pop(ident, None)


def _check(options: Options) -> None:
    allowed = {"domain": (str,), "category": (str, type(None)), "color": (str, int, type(None))}
    for name, wanted in allowed.items():
        value = getattr(options, name)
        if not isinstance(value, wanted):
            raise TypeError(f"{name} must be {_words(wanted)}, got {value!r}")
    if options.payload is not None and not isinstance(options.payload, (int, float)):
        raise TypeError(f"payload must be an int or a float, got {options.payload!r}")
    if isinstance(options.payload, int) and not -(2**63) <= options.payload < 2**63:
        raise ValueError(f"payload must fit into 64 bits, got {options.payload}")
    if isinstance(options.color, int) and not 0 <= options.color < 2**32:
        raise ValueError(f"color must be 0xAARRGGBB, got {options.color:#x}")
    if "\0" in options.domain + (options.category or ""):
        raise ValueError(f"domain and category must not hold NUL, got {options.domain!r} and {options.category!r}")
    if options.message is not None and not isinstance(options.message, str):
        raise TypeError(f"the message must be a str, got {options.message!r}")


def _words(types: tuple[type, ...]) -> str:
    return " or ".join("None" if kind is type(None) else kind.__name__ for kind in types)


def _decorate(target: Any, options: Options) -> Any:
    if not (callable(target) or isinstance(target, (property, staticmethod, classmethod))):
        raise TypeError(
            f"trace decorates a function, method, class or property, or takes a message, got {type(target).__name__}"
        )
    if not emit.enabled():
        return target
    from annot import traced

    if isinstance(target, type):
        return _decorate_class(target, options)
    if isinstance(target, property):
        getter = target.fget and _decorate(target.fget, options)
        return property(getter, target.fset, target.fdel, target.__doc__)
    return traced.wrap(target, options)


def _decorate_class(cls: type, options: Options) -> type:
    """Decorate the functions of the class body in place, so that the class stays the same object."""
    prefix = options.message or cls.__qualname__
    for name, member in list(vars(cls).items()):
        public = not name.startswith("_") or name in ("__init__", "__call__")
        if public and (inspect.isfunction(member) or isinstance(member, (staticmethod, classmethod, property))):
            named = Options(
                f"{prefix}.{name}",
                options.domain,
                options.category,
                options.color,
                options.payload,
                options.shapes,
            )
            setattr(cls, name, _decorate(member, named))
    return cls
