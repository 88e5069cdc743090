"""Context manager with pause, resume and a schedule: the base of `emit_ranges` in every framework."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Final, Self

from annot.emit import client, guard, loop
from annot.emit.schedule import CAPTURE_RANGE, Schedule
from annot.util.locks import fork_safe

_NO_STEPS: Final = (
    "emit_ranges counted no step for its schedule: call step() on the block after each batch, or loop over "
    "annot.batches"
)
NO_CUDA: Final = "capture=True: CUDA is not available. Only the range 'capture' marks the active steps"
"""Warning for machines without CUDA."""


class _Capture:
    """Collection window of a profiler, with an NVTX range around it. It can open and close any number of times.

    `tell_cuda` calls the CUDA profiler API of the framework with ``start`` or ``stop``. It reports a failure as one
    warning.
    """

    def __init__(self, tell_cuda: Callable[[str], None]) -> None:
        self._tell_cuda = tell_cuda
        self._opened: Any = None

    def set(self, on: bool) -> None:
        """Start (True) or stop (False) collection. Repeated calls have no effect."""
        if on and self._opened is None:
            self._tell_cuda("start")
            self._opened = client.start(client.event(CAPTURE_RANGE, category="loop", few=True))
            client.repeat_facts()  # those of the warm-up are not in the window
        elif not on and self._opened is not None:
            client.end(self._opened)
            self._opened = None
            self._tell_cuda("stop")


class SwitchedBlock(ABC):
    """Context manager that installs patches on entry and removes them on exit.

    `pause` removes all patches, so a paused block costs nothing. `resume` installs them again. Both may be called any
    number of times, on any thread. A subclass defines the patches. Without a `schedule`, all steps have ranges.
    `tell_cuda` calls the CUDA profiler API with ``start`` or ``stop``, for schedules with `capture`.
    """

    __slots__ = ("_by_hand", "_collector", "_entered", "_installed", "_lock", "_loops", "_paused", "_schedule", "_step")

    def __init__(self, tell_cuda: Callable[[str], None], schedule: Schedule | None = None) -> None:
        if schedule is not None and not isinstance(schedule, Schedule):
            raise TypeError(f"schedule must come from annot.schedule, got {type(schedule).__qualname__}")
        self._schedule = schedule
        self._collector = _Capture(tell_cuda)
        self._loops: list[Any] = []
        self._lock = fork_safe()
        self._entered = 0
        self._paused = False
        self._step = 0
        self._by_hand = False
        self._installed = False

    @abstractmethod
    def _install(self) -> None:
        """Install the patches."""

    @abstractmethod
    def _remove(self) -> None:
        """Remove the patches of `_install`. After an interrupt some may be missing, and this may run again."""

    def _fit_loops(self) -> Any:
        """Return the wrappers of the training loops of the model, `Patches` with `install`, or None."""
        return None

    def _is_wanted(self) -> bool:
        """Return whether a tool would see the ranges."""
        return client.enabled()

    def __enter__(self) -> Self:
        done = ["batches", "block"]
        try:
            self._enter(done)
            return self
        except BaseException:  # e.g. KeyboardInterrupt from a signal handler
            guard.to_the_end(self._leave, done)
            raise

    __exit__: Callable[..., None] = guard.exit_method

    def _exit(self, done: list[str], kind: object, error: object, where: object) -> None:
        unused = self._schedule is not None and not self._step and not self._by_hand and not done
        self._leave(done)
        if unused and error is None and self._is_wanted():
            client.warn_once(_NO_STEPS)

    def _enter(self, done: list[str]) -> None:
        """Enter, and remove from `done` the parts that `_leave` must undo.

        CPython handles signals on function entry and after calls, so not between the other lines here.
        """
        with self._lock:
            self._entered += 1
            del done[1:]
            self._update()
        if self._schedule is not None:
            del done[:]
            loop.followers.of_batches.append(self._count_batch)
        if (loops := self._fit_loops()) is not None:
            self._loops.append(loops)
            if client.enabled():  # even while paused, because a schedule counts the batches
                loops.install()

    def _leave(self, done: list[str]) -> None:
        """Leave the parts that are not in `done`. After an interrupt, the next call continues with the rest."""
        if "block" not in done and len(self._loops) >= self._entered > 0:
            self._loops[-1].undo()
            del self._loops[-1]
        followers = loop.followers.of_batches
        follows = self._count_batch in followers
        if "batches" not in done:
            done += ["batches"]
            if follows:
                followers.remove(self._count_batch)
        with self._lock:
            if "block" not in done:
                done += ["block"]
                self._entered -= 1
            self._update()
            if not self._entered:
                self._step, self._by_hand = 0, False

    def pause(self) -> None:
        """Stop emitting ranges until `resume`. A block may be paused before it is entered."""
        with self._lock:
            self._paused = True
            guard.to_the_end(self._update)

    def resume(self) -> None:
        """Emit ranges again if `annot.enabled` is true, for example because a tool has attached since."""
        with self._lock:
            self._paused = False
            self._update()

    def step(self) -> None:
        """Advance the schedule by one step.

        Without this call, each batch of `annot.batches`, `annot.batch` and Keras' `fit` is a step, if it runs on the
        thread that entered the block.
        """
        if not self._by_hand:
            self._by_hand, self._step = True, 0  # discard the steps counted from batches
        self._next_step()

    def _count_batch(self) -> None:
        if not self._by_hand:
            self._next_step()

    def _next_step(self) -> None:
        with self._lock:
            self._step += self._entered > 0
            self._update()

    def _update(self) -> None:
        """Install or remove the patches for the current step."""
        phase = "active" if self._schedule is None else self._schedule.phase(self._step)
        captures = self._schedule is not None and self._schedule.capture
        running = self._entered > 0 and not self._paused and self._is_wanted()
        if captures and not (running and phase == "active"):
            self._collector.set(False)
        if running and (phase == "active" or (phase == "warmup" and captures)):
            self._put()
        else:
            self._take_away()
        if captures and running and phase == "active":
            self._collector.set(True)

    def _put(self) -> None:
        if self._installed:
            return
        self._installed = True
        try:
            self._install()
        except BaseException:
            guard.to_the_end(self._take_away)
            raise

    def _take_away(self) -> None:
        if self._installed:
            self._remove()
            self._installed = False
