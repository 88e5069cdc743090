"""What `trace` puts in the place of a function: wrapt proxies that look like the function in every way."""

from __future__ import annotations

import copy
import functools
import importlib
import inspect
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import wrapt

from annot import emit

if TYPE_CHECKING:
    from annot.trace import Options

__all__ = ["wrap"]

EventOf = Callable[[tuple[Any, ...], dict[str, Any]], Any]


def wrap(function: Any, options: Options) -> Any:
    """Return `function` with a range around its running parts."""
    plain = getattr(function, "__func__", function)
    text = options.message if options.message is not None else _name(plain)
    if inspect.isasyncgenfunction(plain):
        return TracedFunction(function, _stepwise(_event_of(text, options), AsyncSteps))
    if inspect.isgeneratorfunction(plain) or inspect.iscoroutinefunction(plain):
        return TracedFunction(function, _stepwise(_event_of(text, options), Steps))
    if options.shapes:
        return TracedFunction(function, _around(_event_of(text, options)))
    return TracedFunction(function, emit.wrapper(options.event(text)))


class TracedMethod(wrapt.BoundFunctionWrapper[..., Any]):
    """A traced function as an attribute of an instance or a class; pickled and copied as Python does methods."""

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
    """A traced function; pickled and copied as Python does functions, by name."""

    __bound_function_wrapper__ = TracedMethod

    def __reduce_ex__(self, protocol: Any) -> str:
        return str(self.__wrapped__.__qualname__)

    def __copy__(self) -> TracedFunction:
        return self

    def __deepcopy__(self, memo: Any) -> TracedFunction:
        return self


class Steps(wrapt.ObjectProxy[Any]):
    """A generator or coroutine whose every step runs inside the range."""

    def __init__(self, wrapped: Any, event: Any) -> None:
        super().__init__(wrapped)
        self._self_event = event

    def __iter__(self) -> Iterator[Any]:
        return self

    def __await__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return self.send(None)

    def send(self, value: Any) -> Any:
        """Run to the next yield or await, inside the range."""
        return self._step(self.__wrapped__.send, value)

    def throw(self, *error: Any) -> Any:
        """Raise inside, and run to the next yield or await, inside the range."""
        return self._step(self.__wrapped__.throw, *error)

    def close(self) -> None:
        """Run what is left to clean up, inside the range."""
        self._step(self.__wrapped__.close)

    def _step(self, run: Callable[..., Any], *args: Any) -> Any:
        return emit.inside(self._self_event, run, args, {})


class AsyncSteps(wrapt.ObjectProxy[Any]):
    """An async generator whose every step runs inside the range."""

    def __init__(self, wrapped: Any, event: Any) -> None:
        super().__init__(wrapped)
        self._self_event = event

    def __aiter__(self) -> AsyncSteps:
        return self

    def __anext__(self) -> Steps:
        return Steps(self.__wrapped__.__anext__(), self._self_event)

    def asend(self, value: Any) -> Steps:
        """Send a value in."""
        return Steps(self.__wrapped__.asend(value), self._self_event)

    def athrow(self, *error: Any) -> Steps:
        """Raise inside."""
        return Steps(self.__wrapped__.athrow(*error), self._self_event)

    def aclose(self) -> Steps:
        """Finish."""
        return Steps(self.__wrapped__.aclose(), self._self_event)


def _by_name(module: str, qualname: str) -> Any:
    return functools.reduce(getattr, qualname.split("."), importlib.import_module(module))


def _name(function: Any) -> str:
    return str(getattr(function, "__qualname__", None) or type(function).__qualname__)


def _event_of(text: str, options: Options) -> EventOf:
    if options.shapes:
        return lambda args, kwargs: options.event_of_call(text, args, kwargs)
    event = options.event(text)
    return lambda args, kwargs: event


def _around(event_of: EventOf) -> Any:
    def call_traced(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return emit.inside(event_of(args, kwargs), wrapped, args, kwargs)

    return call_traced


def _stepwise(event_of: EventOf, proxy: Callable[[Any, Any], Any]) -> Any:
    def call_traced(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return proxy(wrapped(*args, **kwargs), event_of(args, kwargs))

    return call_traced
