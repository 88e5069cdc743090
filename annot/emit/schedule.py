"""Schedule of the steps that have ranges, with the parameters of `torch.profiler.schedule`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

CAPTURE_RANGE: Final = "capture"
"""Text of the range around each active window, in the domain `annot`, with ``capture=True``."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """Cycle of waiting, warmup and active steps, made by `schedule`."""

    wait: int = 0
    warmup: int = 0
    active: int = 1
    repeat: int = 0
    skip_first: int = 0
    capture: bool = False

    def phase(self, step: int) -> Literal["wait", "warmup", "active"]:
        """Return the phase of a step. The first step is 0."""
        cycle, place = divmod(step - self.skip_first, self.wait + self.warmup + self.active)
        if cycle < 0 or (self.repeat and cycle >= self.repeat) or place < self.wait:
            return "wait"
        return "warmup" if place < self.wait + self.warmup else "active"


def schedule(
    *, wait: int = 0, warmup: int = 0, active: int, repeat: int = 0, skip_first: int = 0, capture: bool = False
) -> Schedule:
    """Return a schedule for ``emit_ranges(model, schedule=…)``: emit ranges in some steps only.

    After `skip_first` steps, cycles of `wait`, `warmup` and `active` steps follow. Only active steps have ranges. In
    other steps nothing is installed, except with `capture`: then the warmup steps emit ranges before the collection
    starts.

    Args:
        wait: number of steps without ranges at the start of each cycle.
        warmup: number of steps after those, also without ranges in the profile.
        active: number of steps with ranges.
        repeat: number of cycles. 0: until the block ends.
        skip_first: number of steps before the first cycle.
        capture: call ``cudaProfilerStart`` and ``cudaProfilerStop`` around every active window, for ``nsys profile
            --capture-range=cudaProfilerApi --capture-range-end=repeat``, and open the range `CAPTURE_RANGE` there,
            for ``nsys profile --capture-range=nvtx --nvtx-capture=capture@annot``.

    Raises:
        TypeError: a count is not an int.
        ValueError: a count is negative, or `active` is 0.

    Example:
        >>> import annot
        >>> [annot.schedule(wait=1, warmup=1, active=2).phase(step) for step in range(5)]
        ['wait', 'warmup', 'active', 'active', 'wait']
    """
    counts = {"wait": wait, "warmup": warmup, "active": active, "repeat": repeat, "skip_first": skip_first}
    for name, count in counts.items():
        if not isinstance(count, int) or isinstance(count, bool):
            raise TypeError(f"{name} must be an int, got {count!r}")
        if count < (name == "active"):
            raise ValueError(f"{name} must be at least {int(name == 'active')}, got {count}")
    return Schedule(wait=wait, warmup=warmup, active=active, repeat=repeat, skip_first=skip_first, capture=capture)
