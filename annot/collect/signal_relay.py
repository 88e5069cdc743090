"""Forwarding of signals from `annot run` to the script, exactly once each."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from types import FrameType
from typing import Any, Self

__all__ = ["Relay"]

_FORWARDED = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


class Relay:
    """Context manager that forwards the signals sent to this process to the script.

    Ctrl-C signals every process of the foreground group, `kill PID` only one. In a shared group, a signal is forwarded
    only if the group did not receive it.

    Args:
        shared_group: whether the script runs in the process group of this process.
    """

    def __init__(self, *, shared_group: bool) -> None:
        self._witness = _Witness() if shared_group else None
        self._send: Callable[[int], object] | None = None
        self._waiting: list[int] = []
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        """Install the handlers. Ignored signals (`nohup`) stay ignored."""
        for number in _FORWARDED:
            if signal.getsignal(number) != signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._arrived)
        return self

    def __exit__(self, *error: object) -> None:
        """Restore the previous handlers."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._witness:
            self._witness.dismiss()

    def to(self, send: Callable[[int], object]) -> None:
        """Set the receiver, a function of a signal number, and send it the signals that arrived earlier."""
        self._send = send
        while self._waiting:
            with contextlib.suppress(ProcessLookupError):
                send(self._waiting.pop(0))

    def _arrived(self, number: int, frame: FrameType | None) -> None:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED)
        try:
            if self._witness and self._witness.has_received(number):
                return
            self._waiting.append(number)
            if self._send is not None:
                self.to(self._send)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Witness:
    """Child process in this group that blocks all signals. Its pending signals show what the group received."""

    def __init__(self) -> None:
        self._start()

    def has_received(self, number: int) -> bool:
        """Return whether the whole group received the signal."""
        with open(f"/proc/{self._pid}/status", encoding="ascii", errors="replace") as file:
            fields = dict(line.split(":", 1) for line in file)
        if not int(fields["ShdPnd"], 16) >> (number - 1) & 1:
            return False
        self.dismiss()
        self._start()
        return True

    def dismiss(self) -> None:
        """End the process."""
        os.close(self._pipe)
        os.waitpid(self._pid, 0)

    def _start(self) -> None:
        end, self._pipe = os.pipe()  # the child exits when this process closes its end or dies
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._pipe)
            os.read(end, 1)
            os._exit(0)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(end)
