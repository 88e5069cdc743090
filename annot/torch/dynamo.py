"""Frames of annot that torch.compile skips.

While a thread runs compiled code, torch.compile tries to compile each Python function that the thread calls. It must
not compile functions of annot: it would compile them again for new arguments, raise where it cannot trace them, and
name the inputs of exported programs after their parameters.

PyTorch's public way, `torch.compiler.disable`, costs some tenths of a microsecond per call. Its private way marks code
objects once, and calls of a marked function cost nothing. annot uses the marks if they pass a test.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FunctionType
from typing import Any, Final, TypeVar, cast

import torch

from annot.emit import client, guard
from annot.torch.internals import internal

F = TypeVar("F", bound=Callable[..., Any])

_frames: Any = internal("torch._C._dynamo.eval_frame")

set_callback: Callable[[Any], Any] = internal("torch._C._dynamo.eval_frame.set_eval_frame")
"""Set the function that torch.compile calls for each new frame of this thread, or None. Returns the previous one."""

_OWN: Final = ("annot.dispatch.", "annot.emit.", "annot.keras.", "annot.labels.", "annot.torch.", "annot.util.")
_NO_MARKS: Final = (
    "PyTorch {} differs from the releases that annot supports: torch.compile also compiles functions of annot, "
    "and compiled modules may run without ranges"
)
_with_callees: Final[set[int]] = set()
"""Ids of the code objects that `skip_all` has marked. Code of modules lives as long as the process."""


def skip(function: Callable[..., Any]) -> None:
    """Make torch.compile skip `function`, unless it inlines it. What the function calls is compiled as before."""
    _skip_code(function.__code__)


def skip_all(function: F) -> F:
    """Return `function`, such that torch.compile skips it and all functions that it calls."""
    mark = _marker(inside=True)
    if mark is not None:
        _with_callees.add(id(function.__code__))
        mark(function.__code__, inside=True)
        return function
    disable: Callable[[F], F] = torch.compiler.disable
    disabled = functools.cache(lambda: disable(function))

    def call(*args: Any) -> Any:
        return disabled()(*args) if "torch._dynamo" in sys.modules else function(*args)

    _skip_code(call.__code__)
    return cast("F", functools.wraps(function)(call))


@functools.cache
def skip_own_code() -> None:
    """Make torch.compile skip the functions of annot that are loaded and may run inside compiled code."""
    skip_modules(name for name in list(sys.modules) if f"{name}.".startswith(_OWN))


def skip_modules(names: Iterable[str]) -> None:
    """Make torch.compile skip the functions of modules of annot, if they are loaded."""
    skip_all(guard.attempt)  # it calls only functions of annot
    for name in names:
        module = sys.modules.get(name)
        for code in _codes_of(vars(module).values(), name) if module is not None else ():
            if id(code) not in _with_callees:
                _skip_code(code)


def _codes_of(values: Iterable[Any], module: str) -> Iterator[CodeType]:
    """Yield the code of the functions, methods and nested functions that a module defines."""
    for value in values:
        if isinstance(value, type):
            yield from _codes_of(vars(value).values() if value.__module__ == module else (), module)
        elif isinstance(value, _DECORATED):
            yield from _codes_of([getattr(value, name, None) for name in _FUNCTION_IN], module)
        elif isinstance(value, FunctionType) and value.__module__ == module:
            yield from _nested(value.__code__)
            yield from _codes_of([getattr(value, "__wrapped__", None)], module)


_DECORATED: Final = (property, classmethod, staticmethod, functools.cached_property, type(functools.cache(len)))
_FUNCTION_IN: Final = ("fget", "fset", "__func__", "func", "__wrapped__")


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)


def _skip_code(code: CodeType) -> None:
    mark = _marker(inside=False)
    if mark is None:
        client.warn_once(_NO_MARKS.format(torch.__version__))
    else:
        mark(code, inside=False)


# ---------------------------------------------------------------- marks of code objects


def _mark_since_2_7(code: CodeType, *, inside: bool) -> None:
    action = _frames._FrameAction
    strategy = _frames._FrameExecStrategy(action.SKIP, action.SKIP if inside else action.DEFAULT)
    _frames.set_code_exec_strategy(code, strategy)


def _mark_before_2_7(code: CodeType, *, inside: bool) -> None:
    _frames.skip_code(code)


@functools.cache
def _marker(*, inside: bool) -> Callable[..., None] | None:
    """Return the function that marks a code object, or None if none passes the test in this release of PyTorch.

    With `inside`, the mark includes all functions that are called from there.
    """
    return next((mark for mark in (_mark_since_2_7, _mark_before_2_7) if _works(mark, inside=inside)), None)


def _works(mark: Callable[..., None], *, inside: bool) -> bool:
    """Return whether torch.compile skips a marked function, restores its callback, and loses no reference to it."""

    def callback(*_: Any) -> None:
        raise RuntimeError("torch.compile does not skip the marked function")

    def marked() -> Any:
        current = set_callback(None)
        set_callback(current)
        return current

    def call_marked() -> bool:
        before, seen = set_callback(callback), None
        try:
            for _ in range(100):
                seen = marked()
        finally:
            after = set_callback(before)
        return seen is (None if inside else callback) and after is callback

    def test() -> None:
        try:
            mark(marked.__code__, inside=inside)
            references = sys.getrefcount(callback)
            works.append(call_marked() and sys.getrefcount(callback) == references)
        except Exception:
            works.append(False)

    works: list[bool] = []
    marked.__code__ = marked.__code__.replace()  # a copy without the mark of an earlier test
    thread = threading.Thread(target=test)  # it has no callback, and runs no signal handlers
    thread.start()
    thread.join()
    return works == [True]
