"""Wrappers of `trace`, `epochs` and `batches`: wrapt proxies that behave like the wrapped function or iterable."""

from __future__ import annotations

import copy
import functools
import importlib
import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import wrapt

from annot.emit import client
from annot.emit.outermost import Outermost
from annot.labels.tag import Tag
from annot.labels.tag import format as format_tag

EventOf = Callable[[tuple[Any, ...], dict[str, Any]], Any]


def wrap(
    function: Any, text: str | None, make_event: Callable[[str], Any], make_event_of_call: Callable[..., Any] | None
) -> Any:
    """Return `function` with a range around its running parts.

    The text is by default the name of the function. `make_event_of_call` makes an event from a text and the arguments
    of a call. If it is None, all calls share the event that `make_event` makes from the text.
    """
    plain = getattr(function, "__func__", function)
    if text is None:
        text = str(getattr(plain, "__qualname__", None) or type(plain).__qualname__)
    event = make_event(text) if make_event_of_call is None else None
    event_of = (lambda *_: event) if make_event_of_call is None else functools.partial(make_event_of_call, text)
    if inspect.isasyncgenfunction(plain):
        return TracedFunction(function, _stepwise(event_of, AsyncSteps))
    if inspect.isgeneratorfunction(plain) or inspect.iscoroutinefunction(plain):
        return TracedFunction(function, _stepwise(event_of, Steps))
    return TracedFunction(function, client.wrapper(event) if event is not None else _wrap_call(event_of))


class TracedMethod(wrapt.BoundFunctionWrapper[..., Any]):
    """Traced function as an attribute of an instance or a class. It pickles and copies like a method."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        if self._self_instance is None:
            return _by_name, (self.__wrapped__.__module__, self.__wrapped__.__qualname__)
        return getattr, (self._self_instance, self.__wrapped__.__name__)

    def __copy__(self) -> TracedMethod:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        instance = self._self_instance
        if instance is None or isinstance(instance, type):
            return self
        return getattr(copy.deepcopy(instance, memo), self.__wrapped__.__name__)


class TracedFunction(wrapt.FunctionWrapper[..., Any]):
    """Traced function. It pickles by name and copies as itself, like any function."""

    __bound_function_wrapper__ = TracedMethod

    def __reduce_ex__(self, protocol: Any) -> str:
        return str(self.__wrapped__.__qualname__)

    def __copy__(self) -> TracedFunction:
        return self

    def __deepcopy__(self, memo: Any) -> TracedFunction:
        return self


class Stepped(wrapt.ObjectProxy[Any]):
    """Proxy with the event of the range around each step."""

    def __init__(self, wrapped: Any, event: Any) -> None:
        super().__init__(wrapped)
        self._self_event = event


class Steps(Stepped):
    """Generator or coroutine with a range around each step."""

    def __iter__(self) -> Iterator[Any]:
        return self

    def __await__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return self.send(None)

    def send(self, value: Any) -> Any:
        """Run to the next suspension inside the range."""
        return self._step(self.__wrapped__.send, value)

    def throw(self, *error: Any) -> Any:
        """Throw an exception in, and run to the next suspension inside the range."""
        return self._step(self.__wrapped__.throw, *error)

    def close(self) -> None:
        """Close it, with its cleanup inside the range."""
        self._step(self.__wrapped__.close)

    def _step(self, run: Callable[..., Any], *args: Any) -> Any:
        return client.inside(self._self_event, run, args, {})


class AsyncSteps(Stepped):
    """Async generator with a range around each step."""

    def __aiter__(self) -> AsyncSteps:
        return self

    def __anext__(self) -> Steps:
        return Steps(self.__wrapped__.__anext__(), self._self_event)

    def asend(self, value: Any) -> Steps:
        """Send a value in; the steps of the awaitable have ranges."""
        return Steps(self.__wrapped__.asend(value), self._self_event)

    def athrow(self, *error: Any) -> Steps:
        """Throw an exception in; the steps of the awaitable have ranges."""
        return Steps(self.__wrapped__.athrow(*error), self._self_event)

    def aclose(self) -> Steps:
        """Close it; the steps of the awaitable have ranges."""
        return Steps(self.__wrapped__.aclose(), self._self_event)


class Ranged(wrapt.ObjectProxy[Any]):
    """Iterable with the range ``range_of(number)`` around the use of each item. It differs only in the iteration.

    With `waits`, the wait for each item has a range too.
    """

    def __init__(
        self, items: Iterable[Any], range_of: Callable[[int], AbstractContextManager[None]], *, waits: bool
    ) -> None:
        super().__init__(items)
        self._self_range_of = range_of
        self._self_waits = waits

    def __iter__(self) -> Iterator[Any]:
        items = iter(self.__wrapped__)
        for number, item in enumerate(_timed_waits(items) if self._self_waits else items):
            with self._self_range_of(number):
                yield item

    def __next__(self) -> Any:
        return next(self.__wrapped__)

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.__wrapped__.__reduce_ex__(protocol)


def _timed_waits(items: Iterator[Any]) -> Iterator[Any]:
    event = client.event(format_tag(Tag(phase="data")), category="data")
    while True:
        try:
            with Outermost("data", event):
                item = next(items)
        except StopIteration:
            return
        yield item


def _by_name(module: str, qualname: str) -> Any:
    return functools.reduce(getattr, qualname.split("."), importlib.import_module(module))


def _wrap_call(event_of: EventOf) -> Any:
    def call_traced(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return client.inside(event_of(args, kwargs), wrapped, args, kwargs)

    return call_traced


def _stepwise(event_of: EventOf, proxy: Callable[[Any, Any], Any]) -> Any:
    def call_traced(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return proxy(wrapped(*args, **kwargs), event_of(args, kwargs))

    return call_traced
