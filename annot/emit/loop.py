"""Ranges of the training loop: epochs, batches, and the wait for data."""

from __future__ import annotations

import operator
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from annot.emit import client
from annot.labels.tag import Phase, Tag
from annot.labels.tag import format as format_tag

T = TypeVar("T")


class Followers(threading.local):
    """Callbacks that this thread runs after each batch."""

    def __init__(self) -> None:
        self.of_batches: list[Callable[[], None]] = []


followers = Followers()


def epochs(count: int | Iterable[T], *, stage: str = "") -> Iterable[Any]:
    """Iterate over epochs, each inside a range ``Epoch e``.

    Args:
        count: number of epochs, or an iterable whose items are passed through.
        stage: name of a stage other than training, such as ``validate``. The ranges are then ``Epoch validate e``.

    Returns:
        An iterable over ``0 … count - 1``, or over the items. If `annot.enabled` is false: ``range(count)``, or the
        iterable itself.

    Raises:
        TypeError: `count` is neither an int nor iterable.

    Example:
        >>> for e in epochs(2):
        ...     for x in batches(["a", "b"]):
        ...         pass
    """
    items = range(count) if isinstance(count, int) else count
    _check_iterable("epochs expects an int or an iterable", items)
    return _ranged(items, "epoch", stage, waits=False) if client.enabled() else items


def batches(loader: Iterable[T], *, stage: str = "") -> Iterable[T]:
    """Iterate over batches, each inside a range ``Batch i``. The wait for each batch is a range ``Data``.

    Args:
        loader: iterable of batches, such as a `torch.utils.data.DataLoader`.
        stage: name of a stage other than training, such as ``validate``. The ranges are then ``Batch validate i``. In
            a profile with training batches, only those count as steps.

    Returns:
        An iterable over the same batches. It has the length and the attributes of the loader. If `annot.enabled` is
        false: the loader itself.

    Raises:
        TypeError: `loader` is not iterable.

    Example:
        >>> for x in batches(["a", "b"], stage="validate"):
        ...     pass
    """
    _check_iterable("batches expects an iterable", loader)
    return _ranged(loader, "step", stage, waits=True) if client.enabled() else loader


def _ranged(items: Iterable[T], phase: Phase, stage: str, *, waits: bool) -> Iterable[T]:
    from annot.emit.wrappers import Ranged

    return Ranged(items, lambda number: NumberedRange(phase, number, stage), waits=waits)


def epoch(number: int, *, stage: str = "") -> NumberedRange:
    """Return a context manager that puts a range ``Epoch number`` around its block.

    Args:
        number: number of the epoch, 0 or more.
        stage: name of a stage other than training, as in `epochs`.

    Raises:
        TypeError: `number` is not an int.
        ValueError: `number` is negative.

    Example:
        >>> with epoch(0), batch(7):
        ...     pass
    """
    return NumberedRange("epoch", number, stage)


def batch(number: int, *, stage: str = "") -> NumberedRange:
    """Return a context manager that puts a range ``Batch number`` around its block.

    Args:
        number: number of the batch, 0 or more.
        stage: name of a stage other than training, as in `batches`.

    Raises:
        TypeError: `number` is not an int.
        ValueError: `number` is negative.
    """
    return NumberedRange("step", number, stage)


class NumberedRange:
    """Context manager with the range of one epoch or batch.

    It is a start/end range. After a `break`, the generator of a loop, and with it the range, stays open until the
    last reference to the iterator is gone. A push/pop range would then close the wrong range.
    """

    __slots__ = ("_number", "_phase", "_stage", "_started")

    def __init__(self, phase: Phase, number: int, stage: str = "") -> None:
        try:
            number = operator.index(number)
        except TypeError:
            raise TypeError(f"the number of an epoch or batch must be an int, got {number!r}") from None
        if number < 0:
            raise ValueError(f"the number of an epoch or batch must not be negative, got {number}")
        self._phase = phase
        self._number = number
        self._stage = stage
        self._started: list[Any] = []

    def __enter__(self) -> None:
        if not client.enabled():
            self._started.append(None)
            return
        event = client.event(
            format_tag(Tag(module=self._stage, phase=self._phase, step=self._number)),
            category="loop",
            payload=self._number if self._number < 2**63 else None,
            transient=True,
            general=format_tag(Tag(module=self._stage, phase=self._phase)),
        )
        self._started.append(client.start(event))

    def __exit__(self, *exception: object) -> None:
        started = self._started.pop()
        if started is not None:
            client.end(started)
        if self._phase == "step":
            for follow in tuple(followers.of_batches):
                follow()


class OpenRanges:
    """Epoch and batch ranges that open in one callback of a trainer and close in another.

    They close when this object is deleted or the process exits, at the latest.
    """

    def __init__(self) -> None:
        self._open: dict[Any, Any] = {}
        weakref.finalize(self, _close, self._open)

    def begin(self, phase: Phase, number: int, stage: str = "") -> None:
        """Open the range of an epoch or batch. An open one of the same stage closes first."""
        self.end(phase, stage)
        self._enter((phase, stage), NumberedRange(phase, number, stage))

    def end(self, phase: Phase, stage: str = "") -> None:
        """Close the range of the epoch or batch of a stage, if it is open."""
        opened = self._open.pop((phase, stage), None)
        if opened is not None:
            opened.__exit__(None, None, None)

    def close(self) -> None:
        """Close all open ranges, the innermost first."""
        _close(self._open)

    def _enter(self, key: Any, block: Any) -> None:
        block.__enter__()
        self._open[key] = block


def _close(opened: dict[Any, Any]) -> None:
    while opened:
        opened.popitem()[1].__exit__(None, None, None)


def _check_iterable(expected: str, items: object) -> None:
    # iter() is not called here: iter(DataLoader) starts its workers and draws a seed.
    if not any(hasattr(type(items), name) for name in ("__iter__", "__getitem__")):
        raise TypeError(f"{expected}, got {type(items).__name__}")
