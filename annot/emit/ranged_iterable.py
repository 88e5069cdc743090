"""Proxy for the iterables of `epochs` and `batches`. It differs from the original only in the iteration."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import wrapt

from annot.emit import client
from annot.emit.outermost import Outermost
from annot.labels.tag import Tag
from annot.labels.tag import format as format_tag

__all__ = ["Ranged"]

T = TypeVar("T")


class Ranged(wrapt.ObjectProxy[Any]):
    """Iterable with a range around the use of each item.

    Args:
        items: the wrapped iterable. Length, indexing and attributes are forwarded to it.
        range_of: returns the range of the item with a given number.
        waits: also put a range around the wait for each item.
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


def _timed_waits(items: Iterator[T]) -> Iterator[T]:
    event = client.event(format_tag(Tag(phase="data")), category="data")
    while True:
        try:
            with Outermost("data", event):
                item = next(items)
        except StopIteration:
            return
        yield item
