"""The whole backward of eager mode: a range around `tf.GradientTape.gradient`, while a block is open."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf
from keras import tree

from annot import emit

__all__ = ["install"]


def install(event_for: Callable[[Iterable[Any]], Any]) -> Callable[[], None]:
    """Have each call open a range; return what undoes it.

    In graphs the range of the model's own operations does the same.

    Args:
        event_for: returns the event of the model that these sources belong to; None: they belong to none.
    """
    cls: Any = tf.GradientTape
    original = vars(cls)["gradient"]
    on = True

    @functools.wraps(original)
    def gradient(self: Any, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
        event = event_for(tree.flatten(sources)) if on and tf.executing_eagerly() else None
        if event is None:
            return original(self, target, sources, *args, **kwargs)
        emit.push(event)
        try:
            return original(self, target, sources, *args, **kwargs)
        finally:
            emit.pop()

    cls.gradient = gradient

    def undo() -> None:
        nonlocal on
        on = False  # somebody else may have wrapped it meanwhile
        if vars(cls)["gradient"] is gradient:
            cls.gradient = original

    return undo
