"""Which steps of a training run are annotated: windows, as the schedule of torch.profiler counts them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

__all__ = ["CAPTURE_RANGE", "Schedule", "schedule"]

CAPTURE_RANGE: Final = "capture"
"""Text of the range around every active window, in the domain `annot`, if `capture` is asked for."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """Windows of steps; `schedule` makes and documents one."""

    wait: int = 0
    warmup: int = 0
    active: int = 1
    repeat: int = 0
    skip_first: int = 0
    capture: bool = False

    def phase(self, step: int) -> Literal["wait", "warmup", "active"]:
        """Return what the step with this number is; the first is 0."""
        cycle, place = divmod(step - self.skip_first, self.wait + self.warmup + self.active)
        if cycle < 0 or (self.repeat and cycle >= self.repeat) or place < self.wait:
            return "wait"
        return "warmup" if place < self.wait + self.warmup else "active"


def schedule(
    *, wait: int = 0, warmup: int = 0, active: int, repeat: int = 0, skip_first: int = 0, capture: bool = False
) -> Schedule:
    """Return a schedule for ``emit_ranges(model, schedule=…)``: ranges in some steps only, nothing in the others.

    After `skip_first` steps come cycles of `wait`, `warmup` and `active` steps. Only active steps have ranges; in the
    others nothing is installed, except that with `capture` ranges warm up before the collector looks.

    Args:
        wait: steps at the start of each cycle that have no ranges.
        warmup: steps after those that have none in the profile.
        active: steps with ranges.
        repeat: how many cycles; 0: until the block ends.
        skip_first: steps before the first cycle.
        capture: call ``cudaProfilerStart`` and ``cudaProfilerStop`` around every active window, for ``nsys profile
            --capture-range=cudaProfilerApi --capture-range-end=repeat``, and open the range `CAPTURE_RANGE` there,
            for ``nsys profile --capture-range=nvtx --nvtx-capture=capture@annot``.

    Raises:
        TypeError: a count is no integer.
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
    return Schedule(wait, warmup, active, repeat, skip_first, capture)
