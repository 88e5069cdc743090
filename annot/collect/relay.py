"""Signals on their way from `annot run` to the script: each one arrives there, and arrives once."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from types import FrameType
from typing import Any, Self

__all__ = ["Relay"]

_PASSED_ON = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


class Relay:
    """A context in which the signals sent to this process go to the script instead.

    Ctrl-C reaches every process of the foreground group, `kill PID` only one: in a shared group a signal is
    passed on only if the group did not get it.
    """

    def __init__(self, *, shared_group: bool) -> None:
        """Prepare.

        Args:
            shared_group: the script runs in the process group of this process.
        """
        self._witness = _Witness() if shared_group else None
        self._send: Callable[[int], object] | None = None
        self._waiting: list[int] = []
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        """Take over the signals; what was ignored (`nohup`) stays so."""
        for number in _PASSED_ON:
            if signal.getsignal(number) != signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._arrived)
        return self

    def __exit__(self, *error: object) -> None:
        """Give the signals back."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._witness:
            self._witness.dismiss()

    def to(self, send: Callable[[int], object]) -> None:
        """Name the receiver, which also gets what arrived before it was known.

        Args:
            send: called with the signal's number.
        """
        self._send = send
        while self._waiting:
            with contextlib.suppress(ProcessLookupError):
                send(self._waiting.pop(0))

    def _arrived(self, number: int, frame: FrameType | None) -> None:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)
        try:
            if self._witness and self._witness.got(number):
                return
            self._waiting.append(number)
            if self._send is not None:
                self.to(self._send)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Witness:
    """A process of our own group that leaves every signal pending, which shows what the group was sent."""

    def __init__(self) -> None:
        self._start()

    def got(self, number: int) -> bool:
        """Return whether the whole group was sent the signal."""
        with open(f"/proc/{self._pid}/status", encoding="ascii", errors="replace") as file:
            fields = dict(line.split(":", 1) for line in file)
        if not int(fields["ShdPnd"], 16) >> (number - 1) & 1:
            return False
        self.dismiss()
        self._start()
        return True

    def dismiss(self) -> None:
        """End the process."""
        os.close(self._leash)
        os.waitpid(self._pid, 0)

    def _start(self) -> None:
        end, self._leash = os.pipe()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._leash)
            os.read(end, 1)
            os._exit(0)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(end)
