"""Weights that pass through the operation at the start of a layer, so that their gradients end inside its range.

While a layer computes, `keras.Variable.value` gives what came out of that operation instead of the variable, on the
thread that computes only: replicas and other threads that call the same layer see their own, and the variable itself
is never touched. An assignment goes to the variable; from then on the layer reads that.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import keras
import tensorflow as tf

from annot.tf.paths import sublayers

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["Gate", "read", "remove", "weights_of"]


class _Gated(threading.local):
    def __init__(self) -> None:
        self.by_id: dict[int, tf.Tensor] = {}


_GATED = _Gated()


class Gate:
    """A block in which variables have the values of other tensors on this thread.

    Args:
        variables: the variables.
        values: one tensor for each, of its shape and dtype.
    """

    __slots__ = ("_before", "_values")

    def __init__(self, variables: Iterable[keras.Variable], values: Iterable[tf.Tensor]) -> None:
        self._values = {id(variable): value for variable, value in zip(variables, values, strict=True)}
        self._before: dict[int, tf.Tensor] = {}

    def __enter__(self) -> None:
        self._before = _GATED.by_id
        if self._values:
            _install()
            _GATED.by_id = {**self._before, **self._values}

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        _GATED.by_id = self._before


def weights_of(layer: keras.Layer, has_ranges: Callable[[keras.Layer], bool]) -> list[keras.Variable]:
    """Return the trainable variables of a layer and of those inside it that have no ranges of their own."""
    found: dict[int, keras.Variable] = {}
    pending = [layer]
    while pending:
        here = pending.pop()
        found.update((id(variable), variable) for variable in here._trainable_variables if variable.trainable)
        pending.extend(child for child in sublayers(here) if not has_ranges(child))
    return list(found.values())


def read(variables: Sequence[keras.Variable]) -> list[tf.Tensor]:
    """Return the present values, as this replica and this thread see them."""
    gated = _GATED.by_id
    return [gated[id(one)] if id(one) in gated else tf.convert_to_tensor(one._value) for one in variables]


_lock: Final = threading.Lock()
_undo: list[Callable[[], None]] = []


def remove() -> None:
    """Let Keras's variables be as they were before the first gate."""
    with _lock:
        while _undo:
            _undo.pop()()


def _install() -> None:
    """Have all variables of Keras look for their gated value, once; not before, for each look costs a little."""
    with _lock:
        if not _undo:
            _undo.append(_patch())


def _patch() -> Callable[[], None]:
    cls: Any = keras.Variable
    plain_value, plain_handle, plain_assign = cls.value, cls.handle, cls._direct_assign
    own = {name: vars(cls)[name] for name in ("value", "handle", "_direct_assign") if name in vars(cls)}

    def value(self: Any) -> Any:
        gated = _GATED.by_id.get(id(self)) if _GATED.by_id else None
        return plain_value.fget(self) if gated is None else self._maybe_autocast(gated)

    def handle(self: Any) -> Any:
        with _Ungated():
            return plain_handle.fget(self)

    def assign(self: Any, to: Any) -> Any:
        if id(self) in _GATED.by_id:
            _GATED.by_id = {ident: tensor for ident, tensor in _GATED.by_id.items() if ident != id(self)}
        return plain_assign(self, to)

    stand_ins = {"value": property(value), "handle": property(handle), "_direct_assign": assign}
    for name, stand_in in stand_ins.items():
        setattr(cls, name, stand_in)

    def undo() -> None:
        for name, stand_in in reversed(stand_ins.items()):
            if vars(cls).get(name) is not stand_in:
                continue  # somebody else has put theirs on top: ours does nothing without a gate
            if name in own:
                setattr(cls, name, own[name])
            else:
                delattr(cls, name)

    return undo


class _Ungated:
    def __enter__(self) -> None:
        self._before, _GATED.by_id = _GATED.by_id, {}

    def __exit__(self, *_: object) -> None:
        _GATED.by_id = self._before
