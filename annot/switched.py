"""A block that can be paused, resumed, and follow a schedule: what `emit_ranges` of every framework returns."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Final, Self

from annot import emit, loop
from annot.schedule import Schedule

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["SwitchedBlock"]

_NO_STEPS: Final = (
    "the schedule of emit_ranges saw no step: call step() of the block after each batch, or loop over annot.batches"
)


class SwitchedBlock(ABC):
    """A context manager that installs something on entry, and takes it away on exit and while it is paused.

    `pause` takes everything away that the block has installed, so that nothing is left to cost anything, and `resume`
    puts it back: any number of times, on any thread. A subclass says what is installed.

    Args:
        schedule: which steps have ranges; None: all.
    """

    __slots__ = ("_by_hand", "_entered", "_installed", "_lock", "_paused", "_schedule", "_step")

    def __init__(self, schedule: Schedule | None = None) -> None:
        self._schedule = schedule
        self._lock = threading.Lock()
        self._entered = 0
        self._paused = False
        self._step = 0
        self._by_hand = False
        self._installed: Any = None

    @abstractmethod
    def _install(self) -> Any:
        """Install what makes the ranges; return what `_remove` needs, which is not None."""

    @abstractmethod
    def _remove(self, installed: Any) -> None:
        """Take away what `_install` has returned."""

    @abstractmethod
    def _capture(self, on: bool) -> None:
        """Tell a collector that the steps that are to be collected begin or end."""

    def _is_wanted(self) -> bool:
        """Return whether anybody would see what is installed."""
        return emit.enabled()

    def __enter__(self) -> Self:
        with self._lock:
            self._entered += 1
            try:
                self._update()
            except BaseException:
                self._entered -= 1
                raise
        if self._schedule is not None:
            loop.followers.of_batches.append(self._after_batch)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if self._after_batch in loop.followers.of_batches:
            loop.followers.of_batches.remove(self._after_batch)
        with self._lock:
            self._entered -= 1
            unused = self._schedule is not None and not self._step and not self._by_hand
            self._update()
            if not self._entered:
                self._step, self._by_hand = 0, False
        if unused and error is None and self._is_wanted():
            emit.warn_once(_NO_STEPS)

    def pause(self) -> None:
        """Take the ranges away, until `resume`; a block may be paused before it is entered."""
        with self._lock:
            self._paused = True
            self._update()

    def resume(self) -> None:
        """Put the ranges back, if `annot.enabled` is true: for a tool that has come since, too."""
        with self._lock:
            self._paused = False
            self._update()

    def step(self) -> None:
        """Say that a step of the schedule is over.

        Without this call the batches of `annot.batches`, `annot.batch` and Keras' `fit` are the steps, if they run on
        the thread that entered the block.
        """
        if not self._by_hand:
            self._by_hand, self._step = True, 0  # what batches have counted so far counts no more
        self._next_step()

    def _after_batch(self) -> None:
        if not self._by_hand:
            self._next_step()

    def _next_step(self) -> None:
        with self._lock:
            self._step += self._entered > 0
            self._update()

    def _update(self) -> None:
        """Install what this step is to have, or take it away."""
        phase = "active" if self._schedule is None else self._schedule.phase(self._step)
        captures = self._schedule is not None and self._schedule.capture
        running = self._entered > 0 and not self._paused and self._is_wanted()
        if captures and not (running and phase == "active"):
            self._capture(False)
        if running and (phase == "active" or (phase == "warmup" and captures)):
            if self._installed is None:
                self._installed = self._install()
        elif self._installed is not None:
            installed, self._installed = self._installed, None
            self._remove(installed)
        if captures and running and phase == "active":
            self._capture(True)
