"""A block that can be paused, resumed, and follow a schedule: what `emit_ranges` of every framework returns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Self

from annot import emit, loop, own
from annot.locks import fork_safe
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
        self._lock = fork_safe()
        self._entered = 0
        self._paused = False
        self._step = 0
        self._by_hand = False
        self._installed = False

    @abstractmethod
    def _install(self) -> None:
        """Install what makes the ranges."""

    @abstractmethod
    def _remove(self) -> None:
        """Take away what `_install` has installed, all or, after an interrupt, a part; this may run again."""

    @abstractmethod
    def _capture(self, on: bool) -> None:
        """Tell a collector that the steps that are to be collected begin or end."""

    def _is_wanted(self) -> bool:
        """Return whether anybody would see what is installed."""
        return emit.enabled()

    def __enter__(self) -> Self:
        done = ["batches", "block"]
        try:
            self._enter(done)
            return self
        except BaseException:  # an interrupt, for one
            own.to_the_end(self._leave, done)
            raise

    __exit__: Callable[..., None] = own.exit_method

    def _exit(
        self,
        done: list[str],
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        unused = self._schedule is not None and not self._step and not self._by_hand and not done
        self._leave(done)
        if unused and error is None and self._is_wanted():
            emit.warn_once(_NO_STEPS)

    def _enter(self, done: list[str]) -> None:
        """Enter, and take out of `done` what `_leave` has to leave.

        CPython handles signals when a function begins and when a call is over, and so between no other two lines.
        """
        with self._lock:
            self._entered += 1
            del done[1:]
            self._update()
        if self._schedule is not None:
            del done[:]
            loop.followers.of_batches.append(self._after_batch)

    def _leave(self, done: list[str]) -> None:
        """Leave what is not in `done`; if this is interrupted, the next call goes on with the rest."""
        followers = loop.followers.of_batches
        follows = self._after_batch in followers
        if "batches" not in done:
            done += ["batches"]
            if follows:
                followers.remove(self._after_batch)
        with self._lock:
            if "block" not in done:
                done += ["block"]
                self._entered -= 1
            self._update()
            if not self._entered:
                self._step, self._by_hand = 0, False

    def pause(self) -> None:
        """Take the ranges away, until `resume`; a block may be paused before it is entered."""
        with self._lock:
            self._paused = True
            own.to_the_end(self._update)

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
            self._put()
        else:
            self._take_away()
        if captures and running and phase == "active":
            self._capture(True)

    def _put(self) -> None:
        if self._installed:
            return
        self._installed = True
        try:
            self._install()
        except BaseException:
            own.to_the_end(self._take_away)
            raise

    def _take_away(self) -> None:
        if self._installed:
            self._remove()
            self._installed = False
