"""Reading and working at the same time."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

__all__ = ["ahead"]

T = TypeVar("T")

_END: Final = object()


def ahead(items: Iterator[T]) -> Iterator[T]:
    """Yield the items, each made on a second thread while the one before is worked on.

    Args:
        items: what takes time to make, and little of that with the GIL; its errors come out here.

    Example:
        >>> list(ahead(iter("abc")))
        ['a', 'b', 'c']
    """
    with ThreadPoolExecutor(1) as thread:
        coming = thread.submit(next, items, _END)
        while (item := coming.result()) is not _END:
            coming = thread.submit(next, items, _END)
            yield item  # type: ignore[misc]  # it is not the end
