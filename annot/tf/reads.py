"""The variables that a piece of the user's code reads, so that their gradients belong to its backward range."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any, Final

from tensorflow.python.ops import resource_variable_ops

from annot.tf import ops

__all__ = ["gated"]

_METHOD: Final = "_read_variable_op"
_lock = threading.Lock()
_thread = threading.local()
_users = 0
_original: Any = None


@contextlib.contextmanager
def gated(token: ops.Token) -> Iterator[None]:
    """Put every trainable variable that this thread reads in the block through `ops.gate`.

    While a block is open, on any thread, a stand-in takes the place of the method that all reads go through. Where a
    release of TensorFlow has no such method, nothing is gated.
    """
    tokens = _tokens()
    _install()
    tokens.append(token)
    try:
        yield
    finally:
        tokens.pop()
        _remove()


def _tokens() -> list[ops.Token]:
    try:
        return _thread.tokens  # type: ignore[no-any-return]
    except AttributeError:
        _thread.tokens = []
        return _thread.tokens  # type: ignore[no-any-return]


def _read(variable: Any, *args: Any, **kwargs: Any) -> Any:
    value = _original(variable, *args, **kwargs)
    if variable.trainable:
        for token in _tokens():
            value = ops.gate(value, token)
    return value


def _install() -> None:
    global _users, _original
    with _lock:
        _users += 1
        owner = resource_variable_ops.BaseResourceVariable
        if _users == 1 and _METHOD in vars(owner):
            _original = vars(owner)[_METHOD]
            setattr(owner, _METHOD, _read)


def _remove() -> None:
    global _users
    with _lock:
        _users -= 1
        owner = resource_variable_ops.BaseResourceVariable
        if _users == 0 and vars(owner).get(_METHOD) is _read:
            setattr(owner, _METHOD, _original)
