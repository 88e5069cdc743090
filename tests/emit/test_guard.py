"""Cleanups that signals interrupt, and failures of annot's own code."""

from __future__ import annotations

from typing import Any

import pytest

from annot.emit import class_sources, client, guard, machine


@pytest.mark.parametrize("to_the_end", [guard.to_the_end, guard._to_the_end], ids=["used", "python"])
def test_cleanup_completes_after_two_interrupts(to_the_end: Any) -> None:
    """A cleanup that two signals interrupt continues, and the first exception reaches the caller."""
    steps, signals = [3, 2, 1], [KeyboardInterrupt("second"), KeyboardInterrupt("first")]

    def clean_up(step: list[int]) -> None:
        while step:
            del step[-1]
            if signals:
                raise signals.pop()

    with pytest.raises(KeyboardInterrupt, match="first"):
        to_the_end(clean_up, steps)
    assert (steps, signals) == ([], [])


def test_only_errors_of_the_work_are_dropped() -> None:
    """An error that comes again is the work's own. One that comes once is a timeout, and reaches the user."""
    timeouts = [TimeoutError("of the user")]

    def work(number: int) -> int:
        if timeouts:
            raise timeouts.pop()
        return 1 // number

    with pytest.raises(TimeoutError, match="of the user"):
        guard.attempt(work, 1, otherwise=7)
    assert guard.attempt(work, 1, otherwise=7) == 1
    assert guard.attempt(work, 0, otherwise=7) == 7


def test_marks_that_fail_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a failing client nor a class with an odd module reaches the user."""

    def fail(*_: Any) -> None:
        raise OSError("no memory")

    monkeypatch.setattr(client, "mark", fail)
    machine.say_machine("PyTorch", "2")
    class_sources.note([("Odd", type("Odd", (), {"__module__": 5}))])
    with pytest.raises(OSError, match="no memory"):
        client.mark(client.event("x"))
