"""Steps of a running program: their times, losses and end, for every framework."""

from __future__ import annotations

import importlib
import math
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar, Final, NoReturn

from annot.emit import guard
from annot.live.environment import leave_environment
from annot.live.request import Request, Result

_NOTE: Final = "annot try stops measuring"


class StepsMeasured(SystemExit):
    """Ends the program after the measured steps, as ``sys.exit(0)`` does."""


class Session:
    """Measurements of the steps of a program. A subclass hooks into a framework and calls the methods below.

    `begin` comes before the first step, `end_step` after each one. The subclass says how to wait for the device, and
    what the framework has counted.
    """

    framework: ClassVar[str] = ""
    """"torch" or "keras"."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.result = Result(warmup=request.warmup)
        self.live = True
        """Whether steps are measured."""
        self.installing = ""
        """Name of the change that `apply` is installing."""
        self.warmup = request.warmup
        """Steps before the measured ones. A change that takes effect later raises it before the first step ends."""
        self.on_end: Callable[[], object] = lambda: None
        """Called when the program is to end, after the measured steps."""
        self._step_calls: list[Callable[[int], object]] = []
        self._changes: defaultdict[str, list[tuple[str, Callable[..., Any]]]] = defaultdict(list)
        self._step_start: int | None = None
        self._window_start: int | None = None
        self._compiled_before = 0
        self._interrupt = _Interrupt()

    # ---------------------------------------------------------------- for changes

    def apply(self) -> None:
        """Install the changes of the request in its order."""
        for name, live in self.request.changes.items():
            self.skipped(name, "the program has not reached the code that it changes")
            self.installing = name
            self.try_change(name, lambda live=live: resolve(live)(self))
        self.installing = ""

    def applied(self, name: str, where: str) -> None:
        """Note that a change is in effect.

        Args:
            name: name of the change.
            where: what it was applied to, such as the class of the model. Several names are joined.
        """
        places = self.result.applied.get(name, "").split(", ")
        if where not in places:
            self.result.applied[name] = ", ".join(filter(None, [*places, where]))

    def skipped(self, name: str, reason: str) -> None:
        """Note why a change is not in effect, a clause. A later reason replaces an earlier one."""
        self.result.skipped[name] = reason

    def withdraw(self, name: str, reason: str) -> None:
        """Note that a change that was applied has no effect, with the reason."""
        self.result.applied.pop(name, None)
        self.skipped(name, reason)

    def on(self, event: str, change: Callable[..., Any], *, first: bool = False) -> None:
        """Call a function at an event: the methods ``on_…`` of a framework.

        Args:
            event: name of the event.
            change: the function. If it fails, its change is skipped.
            first: call it before the functions of other changes.
        """
        changes = self._changes[event]
        changes.insert(0 if first else len(changes), (self.installing, change))

    def after_step(self, call: Callable[[int], object]) -> None:
        """Call a function with the number of counted steps after each step. Its time belongs to no step."""
        self._step_calls.append(call)

    def try_change(self, name: str, work: Callable[..., Any], *args: Any) -> Any:
        """Return the result of code of a change. If it fails, note the reason and return None."""
        try:
            return work(*args)
        except Exception as error:
            self.skipped(name, first_line(error))
            return None

    # ---------------------------------------------------------------- for the hooks of a framework

    def happens(self, event: str, *args: Any) -> None:
        """Call the functions of changes at an event."""
        for name, change in self._changes[event]:
            self.try_change(name, change, *args)

    def begin(self) -> None:
        """Start the first step, if it has not started. Processes that this one starts from now on do not measure."""
        if self.live and self._step_start is None:
            guard.attempt(self._begin, otherwise=None, note=_NOTE)

    def restart(self, start: int | None = None) -> None:
        """Forget all steps: the steps so far were others than those to measure.

        Args:
            start: start of the first step (ns of `time.perf_counter_ns`); None: `begin` starts it.
        """
        self.live = True
        self._step_start = self._window_start = start
        self.result.step_ns.clear()
        self.result.losses.clear()
        self.result.parameters = ""
        self.result.window_ns = None
        self.result.warmup = self.warmup

    def note_loss(self, read: Callable[[], float]) -> None:
        """Keep the loss of the current step, if the request asks for it. Only the first loss of a step counts."""
        losses, steps = self.result.losses, len(self.result.step_ns)
        if self.keeps_loss and len(losses) == steps:
            loss = guard.attempt(read, otherwise=math.nan)
            losses[steps:] = [loss if math.isfinite(loss) else None]

    @property
    def keeps_loss(self) -> bool:
        """Whether the loss of the current step is kept."""
        return self.live and len(self.result.step_ns) < self.request.losses

    def end_step(self, steps: int = 1) -> None:
        """Count a step, or several that the framework ran together.

        After the measured ones, end the program if the request and `may_end` say so.

        Raises:
            StepsMeasured: all steps are measured.
        """
        if self.live:
            now = time.perf_counter_ns()
            self.begin()
            guard.attempt(self._count, len(self.result.step_ns), steps, now, otherwise=None, note=_NOTE)
        if self.result.ended == "steps":
            self._end_program()

    def leave(self) -> None:
        """Stop measuring, as in a forked child."""
        self.live = False
        self.result.ended = ""

    def finish(self) -> Result:
        """Return the result at the end of the program."""
        self.live = False
        self._interrupt.dismiss()
        result = self.result
        result.framework = self.framework if result.step_ns else ""
        result.trains = result.trains and bool(result.step_ns)
        result.ended = result.ended or "program"
        for name in result.applied:
            result.skipped.pop(name, None)
        if not result.peak_bytes:
            self._note_memory()
        return result

    # ---------------------------------------------------------------- what a framework says

    def may_end(self) -> bool:
        """Return whether the program may end after the measured steps: they are not a prelude to others."""
        return True

    def wait(self) -> None:
        """Wait until the device has completed all work."""

    def device(self) -> str:
        """Return ``cpu`` or ``cuda``."""
        return "cpu"

    def peak_bytes(self) -> int:
        """Return the most memory in use since the start."""
        return peak_resident_bytes()

    def compiled_graphs(self) -> int:
        """Return the number of graphs that were compiled since the start."""
        return 0

    def hash_parameters(self) -> str:
        """Return the SHA-256 of all parameters and buffers."""
        return ""

    # ---------------------------------------------------------------- steps

    def _begin(self) -> None:
        leave_environment()
        if not self.request.warmup:
            self._open_window()
        self._step_start = time.perf_counter_ns()

    def _count(self, number: int, steps: int, now: int) -> None:
        """Record `steps` steps from step `number` on, which ended at `now` (ns). A second call changes nothing.

        Steps that ran together are warm-up or measured together, so there may be more of each than requested.
        """
        request, result = self.request, self.result
        done = number + steps
        result.step_ns[number:] = [max(0, now - (self._step_start or now)) // steps] * steps
        if number < request.losses <= done and request.parameters:
            result.parameters, result.hashed_steps = guard.attempt(self.hash_parameters, otherwise=""), done
        for call in self._step_calls:
            call(done)
        if number < self.warmup <= done:
            result.warmup = done
            self._open_window()
        elif number >= self.warmup and done >= result.warmup + request.steps:
            self._close_window()
        self._step_start = time.perf_counter_ns()

    def _open_window(self) -> None:
        self.wait()
        self._compiled_before = self.compiled_graphs()
        self._window_start = time.perf_counter_ns()

    def _close_window(self) -> None:
        self.wait()
        now = time.perf_counter_ns()
        self.result.window_ns = now - (self._window_start or now)
        self.result.recompiled = max(0, self.compiled_graphs() - self._compiled_before)
        self._note_memory()
        self.live = False
        if not self.request.keep_going and self.may_end():
            self.result.ended = "steps"

    def _note_memory(self) -> None:
        self.result.device = guard.attempt(self.device, otherwise="")
        self.result.peak_bytes = guard.attempt(self.peak_bytes, otherwise=0)

    def _end_program(self) -> NoReturn:
        guard.attempt(self.on_end, otherwise=None)
        self._interrupt.send()
        raise StepsMeasured(0)


class _Interrupt:
    """A signal that ends the main thread when another thread has completed the measured steps.

    `signal.pthread_kill` wakes the main thread also where it waits for a lock, unlike an asynchronous exception.
    """

    def __init__(self) -> None:
        self._number: int | None = None
        if threading.current_thread() is threading.main_thread():
            unused = (number for number in range(signal.SIGRTMIN, signal.SIGRTMAX) if _is_unused(number))
            self._number = next(unused, None)
        if self._number is not None:
            signal.signal(self._number, self._arrived)

    def send(self) -> None:
        """Interrupt the main thread, unless this is the main thread."""
        main = threading.main_thread()
        if threading.current_thread() is not main and self._number is not None and main.ident is not None:
            signal.pthread_kill(main.ident, self._number)

    def dismiss(self) -> None:
        """Ignore a signal that arrives after the program has ended."""
        if self._number is not None and threading.current_thread() is threading.main_thread():
            signal.signal(self._number, signal.SIG_IGN)

    def _arrived(self, number: int, frame: FrameType | None) -> NoReturn:
        raise StepsMeasured(0)


def _is_unused(number: int) -> bool:
    return signal.getsignal(number) == signal.SIG_DFL


def resolve(name: str) -> Callable[..., Any]:
    """Return the function ``module:function``."""
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)  # type: ignore[no-any-return]


def peak_resident_bytes() -> int:
    """Return the peak of the resident memory of this process.

    `resource.getrusage` also counts the memory of the program that this process replaced with `exec`.

    Example:
        >>> peak_resident_bytes() > 1_000_000
        True
    """
    lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    peaks = [int(line.split()[1]) for line in lines if line.startswith("VmHWM:")]
    return 1024 * max(peaks, default=0)


def first_line(error: BaseException) -> str:
    """Return type and first line of an exception.

    Example:
        >>> first_line(ValueError("no batch\\nat all"))
        'ValueError: no batch'
    """
    lines = str(error).strip().splitlines()
    name = type(error).__qualname__
    return f"{name}: {lines[0]}" if lines else name
