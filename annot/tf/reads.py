"""The variables that a piece of the user's code reads, so that their gradients belong to its backward range."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import Any, Final

from tensorflow.python.ops import resource_variable_ops

from annot.tf import ops

__all__ = ["gated"]

_READS: Final = ("_read_variable_op", "sparse_read", "gather_nd")
_HANDLE: Final = "_handle"
_GENERATED: Final = "tensorflow.python.ops.gen_"
"""The start of the names of the modules whose functions give their arguments to the C part of TensorFlow."""
_OWNER: Final = resource_variable_ops.BaseResourceVariable
_PLAIN: Final = {name: vars(_OWNER)[name] for name in _READS if name in vars(_OWNER)}

_lock = threading.Lock()
_thread = threading.local()
_users = 0


@contextlib.contextmanager
def gated(token: ops.Token) -> Iterator[None]:
    """Put every trainable variable that this thread reads in the block through `ops.gate`.

    While a block is open, on any thread, stand-ins take the place of the methods that reads go through; and where an
    operation of eager mode is given a variable as it is, its C part, which would read it by itself, finds no handle in
    it and has Python do it. Where a release of TensorFlow has no such methods, nothing is gated.
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


def _reading(name: str) -> Any:
    def read(variable: Any, *args: Any, **kwargs: Any) -> Any:
        value = _PLAIN[name](variable, *args, **kwargs)
        if variable.trainable:
            for token in _tokens():
                value = ops.gate(value, token)
        return value

    return read


def _get_handle(variable: Any) -> Any:
    try:
        handle = vars(variable)[_HANDLE]
    except KeyError:
        raise AttributeError(_HANDLE) from None
    if not _tokens() or not variable.trainable:
        return handle
    return None if sys._getframe(1).f_globals.get("__name__", "").startswith(_GENERATED) else handle


def _set_handle(variable: Any, handle: Any) -> None:
    vars(variable)[_HANDLE] = handle


_STAND_INS: Final = {**{name: _reading(name) for name in _PLAIN}, _HANDLE: property(_get_handle, _set_handle)}


def _install() -> None:
    """Put the stand-ins into their places, where nobody else has put anything meanwhile."""
    global _users
    with _lock:
        _users += 1
        if _users == 1:
            for name, stand_in in _STAND_INS.items():
                if vars(_OWNER).get(name) is _PLAIN.get(name):
                    setattr(_OWNER, name, stand_in)


def _remove() -> None:
    global _users
    with _lock:
        _users -= 1
        if _users == 0:
            for name, stand_in in _STAND_INS.items():
                if vars(_OWNER).get(name) is not stand_in:
                    continue
                if name in _PLAIN:
                    setattr(_OWNER, name, _PLAIN[name])
                else:
                    delattr(_OWNER, name)
