"""Whether a changed program trains as before: the losses and parameters of its first steps, against those of the base.

Two runs of the base with the same seed tell how far the program repeats its own losses. A run with parameters that
differ in their last bit tells how far rounding grows in the program: a network with batch normalization and a large
learning rate multiplies it by ten in each step. A change cannot be told from them within these differences.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final, Literal, TypeAlias

from annot.changes.change import Numbers
from annot.live.request import Result

Verdict: TypeAlias = Literal["equal", "rounding", "changed", "diverged", "unknown"]
"""equal: the same losses, and the same parameters where the change promises them; rounding: losses within the
tolerance; changed: losses or parameters beyond it; diverged: a loss becomes NaN or infinite; unknown: the runs cannot
be compared."""
_SPREADS: Final = 3.0
"""A difference of losses up to this many times that of two runs of the base is one of the program itself."""
_GROWTHS: Final = 10.0
"""A difference up to this many times that by rounding of parameters is rounding. One rounding is one random sample:
others grow to several times as much, or less, within the first steps."""
_LARGE: Final = 0.3
"""Relative difference of losses that says nothing about a change, if the program itself may cause it."""
_AS_PERCENT: Final = 1e-4
"""Least ratio that is a percentage in words."""


@dataclass(frozen=True, slots=True)
class Training:
    """Result of a check.

    Args:
        verdict: see `Verdict`.
        text: the verdict in words, without full stop.
        difference: largest relative difference of a loss; None: unknown.
    """

    verdict: Verdict
    text: str
    difference: float | None = None

    @property
    def is_same(self) -> bool:
        """Whether nothing speaks against the change."""
        return self.verdict in ("equal", "rounding", "unknown")


def same_training(
    base: Result,
    again: Result | None,
    changed: Result,
    *,
    numbers: Numbers,
    tolerance: float,
    other_random: str = "",
    rounded: Result | None = None,
) -> Training:
    """Compare the first steps of a changed run with those of the base.

    Args:
        base: a run of the base.
        again: another run of the base with the same seed; None: there is none.
        changed: a run with the change.
        numbers: what the change may do to losses and parameters.
        tolerance: largest relative difference of losses that counts as rounding.
        other_random: why the runs may draw different random numbers, a clause; empty: they draw the same ones.
        rounded: a run of the base whose parameters differ in their last bit; None: there is none.

    Example:
        >>> base = Result(losses=[2.0, 1.5])
        >>> same_training(base, base, Result(losses=[2.0, 1.8]), numbers="rounding", tolerance=0.01).text
        'changes training from step 2 on: losses differ by 17%'
    """
    finite = _finite(base.losses)
    if not finite:
        return Training("unknown", "the loss of the program is NaN or infinite" if base.losses else "no loss was seen")
    compared = changed.losses[: len(finite)]
    if None in compared:
        step = compared.index(None) + 1
        return Training("diverged", f"loss is NaN or infinite from step {step} on")
    losses = _finite(compared)
    if len(losses) < len(finite):
        return Training("changed", f"{len(losses)} steps instead of {len(finite)}")
    spread = _spread(finite, again)
    growth = 0.0 if numbers == "same bits" else _spread(finite, rounded)
    differences = _differences(finite, losses)
    largest, limit = _largest(differences), max(tolerance, _SPREADS * spread, _GROWTHS * growth)
    if largest > tolerance and _SPREADS * spread > _LARGE:
        return Training("unknown", f"losses of two runs without it differ by {percent(spread)}, too", largest)
    if largest > limit and other_random:
        return Training("unknown", f"{other_random}, and losses differ by {percent(largest)}", largest)
    if largest > limit:
        step = next(place for place, difference in enumerate(differences, 1) if difference > limit)
        words = f"changes training from step {step} on: losses differ by {percent(largest)}"
        return Training("changed", words, largest)
    if largest > tolerance and limit > _LARGE:
        return Training("unknown", f"rounding of parameters alone changes losses by {percent(growth)}", largest)
    if largest > tolerance:
        alike = "in two runs without it" if largest <= _SPREADS * spread else "by rounding of parameters alone"
        return Training("rounding", f"losses differ by {percent(largest)}, as {alike}", largest)
    if largest:
        return Training("rounding", f"losses within {percent(largest)}", largest)
    return _equal_losses(base, again, changed, promised=numbers == "same bits")


def _equal_losses(base: Result, again: Result | None, changed: Result, *, promised: bool) -> Training:
    """Compare parameters, if equal ones are promised and the base repeats its own."""
    repeats = again is None or again.parameters == base.parameters
    hashed = base.parameters and changed.parameters and base.hashed_steps == changed.hashed_steps
    if not (promised and hashed and repeats):
        return Training("equal", "same losses", 0.0)
    if base.parameters == changed.parameters:
        return Training("equal", "same losses and parameters", 0.0)
    return Training("changed", f"other parameters after step {base.hashed_steps}, although losses are equal", 0.0)


def repeats_losses(base: Result, again: Result, rounded: Result | None = None) -> str:
    """Return in words how far runs of the base with the same seed have the same losses.

    Args:
        base, again, rounded: as for `same_training`.

    Example:
        >>> repeats_losses(*(Result(losses=losses) for losses in ([2.0, 1.5], [2.0, 1.5], [2.0, 1.53])))
        'two runs have the same losses; rounding of parameters changes losses by 2%'
    """
    finite = _finite(base.losses)
    if len(finite) < len(base.losses):
        return f"the loss of the program is NaN or infinite from step {len(finite) + 1} on"
    if not finite:
        return "no loss was seen: whether training stays the same is unknown"
    largest = _spread(finite, again)
    growth = _spread(finite, rounded)
    grown = f"; rounding of parameters changes losses by {percent(growth)}" if growth else ""
    if not largest:
        return f"two runs have the same losses{grown}"
    proves = ": too much to compare changes by" if _SPREADS * largest > _LARGE else ""
    return f"losses of two runs with the same seed differ by {percent(largest)}{proves}{grown}"


def _spread(finite: Sequence[float], other: Result | None) -> float:
    """The largest difference of the losses of another run of the base; 0: there is none; infinite: so are losses."""
    if other is None:
        return 0.0
    losses = _finite(other.losses)
    return math.inf if len(losses) < len(finite) else _largest(_differences(finite, losses))


def _finite(losses: Sequence[float | None]) -> list[float]:
    """The losses before the first that is NaN or infinite."""
    end = losses.index(None) if None in losses else len(losses)
    return [loss for loss in losses[:end] if loss is not None]


def _differences(a: Sequence[float], b: Sequence[float]) -> list[float]:
    """The differences of losses relative to their size, or to that of a mean loss where a loss is nearly 0."""
    mean = fmean(map(abs, a))
    return [
        abs(second - first) / scale if (scale := max(abs(first), mean)) else float(second != first)
        for first, second in zip(a, b, strict=False)
    ]


def _largest(differences: Sequence[float]) -> float:
    return max(differences, default=0.0)


def percent(ratio: float) -> str:
    """Return a ratio as a percentage, or a small one as a power of ten.

    Example:
        >>> percent(0.0123), percent(2e-7)
        ('1.2%', '2e-07')
    """
    if math.isinf(ratio):
        return "an infinite amount"
    return f"{100 * ratio:.2g}%" if ratio >= _AS_PERCENT else f"{ratio:.0e}"
