"""Whether a comparison shows that something became slower: the decision of a gate in CI.

A row is slower if its time relative to the other layers of each run grew by more than the allowed factor, with a
p-value that the procedure of Benjamini and Hochberg accepts at the error level, and with an interval above 1. A busy
machine slows all layers alike: only the time relative to other layers tells a slower layer from a slower machine. If
the other layers became faster, the measured time of the row must grow, too. The times of a step and of everything are
tested as measured. P-values are two-sided and only growth counts, so that rows have one half of the error level, and
the step has the other: of comparisons of equal runs, at most the error level end with "slower".

A single run of a side does not tell slower code from a slower machine: a longer step leaves the decision open. A layer
is slower if it is so relative to the others, in enough steps of the single run. With one run on each side, its change
must stand out from those of the other layers.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeAlias, TypeVar

import polars as pl

from annot.analyze.comparison.compare import Comparison
from annot.analyze.comparison.evidence import Shift
from annot.analyze.comparison.nesting import Times
from annot.analyze.comparison.rows import NAMES
from annot.analyze.comparison.statistics import adjusted

Status: TypeAlias = Literal["same", "slower", "undecided", "incomparable"]
_Name = TypeVar("_Name", bound=Hashable)
_COLUMNS: Final = dict.fromkeys(("regression_ns", "factor", "factor_low", "factor_high", "p"), pl.Float64)
_NAMED: Final = 5
"""Most rows with a sentence."""
_STEPS: Final = 10
"""Fewest steps of a run that is alone on its side: with fewer, two hiccups in a layer are in the time of the run."""
_DOUBTFUL: Final = 5
"""A gate is undecided about changes that have evidence at this multiple of the error level."""
_ONE_PAIR: Final = (
    "one run of each side cannot separate a change from what differs between two runs of the same code; several can: "
    "annot compare --repeat 5 -- COMMAND_A -- COMMAND_B"
)


@dataclass(frozen=True, slots=True)
class Decision:
    """Decision of a gate.

    Args:
        status: "slower": something became slower by more than the allowed factor; "undecided": it may have, as one run
            on each side does not tell or there is evidence at five times the error level only; "incomparable": the runs
            differ in more than time; else "same".
        rows: the slower rows, each change at the innermost row that has it, and new rows, with the columns of
            `Comparison.rows` and factor (b / a of the time that counts to the row: without that of slower rows inside;
            relative to the other rows where these count; null: a new row), factor_low, factor_high, p (null: unknown)
            and regression_ns (growth of this time). The largest regression comes first.
        step_slower: whether the step or the total time became slower.
        above: the allowed factor.
        level: error level of the decision; None: unknown, as there is one run on each side, or no evidence is needed.
        sentences: the reasons, without full stops. B is the second side.
    """

    status: Status
    rows: pl.DataFrame
    step_slower: bool
    above: float
    level: float | None
    sentences: tuple[str, ...]


def decide(
    comparison: Comparison, *, above: float, level: float = 0.01, least_share: float = 0.01, force: bool = False
) -> Decision:
    """Return whether something became slower by more than an allowed factor.

    New rows may replace rows that are gone: they count if they take more than `above` times the time of these.

    Args:
        comparison: the comparison of two sides.
        above: allowed ratio of times b / a, such as 1.05. Below 1, b must be faster, and no evidence is needed.
        level: probability that equal runs are called slower, at most.
        least_share: minimum share of the longer side (0 to 1); shorter rows are ignored.
        force: whether to decide although the sides differ in more than time.

    Raises:
        ValueError: the factor is not above 0, or the level is not between 0 and 1.
    """
    check_limits(above, level)
    gate, reasons = _Gate(comparison, above, level, least_share), comparison.comparability.reasons
    if reasons and not force:
        return Decision("incomparable", gate.table({}), False, above, None, tuple(reason.text for reason in reasons))
    places = gate.places()
    rows, totals = [gate.row_text(row, change) for row, (_, change) in places.items()], gate.slower_totals()
    status: Status = "slower"
    if not (rows or totals):
        rows, totals = gate.doubtful_rows(), gate.doubtful_totals()
        status = "undecided" if rows or totals else "same"
    sentences = [*_shortened(rows), *totals, gate.noise(), gate.error(status)]
    return Decision(
        status,
        gate.table(places),
        status == "slower" and bool(totals),
        above,
        level if comparison.evidence.between_runs and above >= 1 else None,
        tuple(filter(None, sentences)),
    )


def check_limits(above: float, level: float) -> None:
    """Raise ValueError if an allowed factor or an error level is out of range, see `decide`."""
    if not above > 0:
        raise ValueError(f"the allowed factor must be above 0, got {above:g}")
    if not 0 < level < 1:
        raise ValueError(f"the error level must be between 0 and 1, got {level:g}")


def _shortened(texts: Sequence[str]) -> list[str]:
    """The first sentences about rows, and the number of the others."""
    others = len(texts) - _NAMED
    return [*texts[:_NAMED], *([f"{others:,} more row{'s' if others > 1 else ''}"] if others > 0 else [])]


class _Gate:
    """The rows and totals of a comparison before a gate; see `decide`."""

    def __init__(self, comparison: Comparison, above: float, level: float, least_share: float) -> None:
        self.comparison, self.above, self.level = comparison, above, level
        self.least_share = least_share
        rows, shifts, shares = comparison.rows, comparison.evidence.shifts, comparison.evidence.shares
        apart = rows["fused"] if "fused" in rows.columns else pl.repeat(False, rows.height, eager=True)
        tested = [row for row in (~apart).arg_true() if shares[row] >= least_share]
        between_runs = comparison.evidence.between_runs
        lone = [steps for steps, runs in zip(comparison.steps or (1, 1), comparison.runs, strict=True) if runs == 1]
        self._measured_counts = not lone or above < 1
        """Whether measured times tell slower code from a slower machine."""
        self._relative_counts = not between_runs or all(steps >= _STEPS for steps in lone)
        """Whether times relative to other rows tell slower code from hiccups."""
        self.totals = _total_changes(comparison)
        faster = (each for each in self.totals.values() if each.factor < 1)
        self._may_be_faster = not between_runs or any(each.p is None or each.p <= level for each in faster)
        """Whether everything else may have become faster; unknown with one run on each side."""
        self.shifts = {row: change for row in tested if (change := self._own(shifts[row])) is not None}
        self.most = _largest_accepted(self.shifts, level)
        new, gone = (set((~apart & (rows["only_in"] == side).fill_null(False)).arg_true()) for side in "ba")
        self.new = new & set(tested) if self._sums(new)[1] > above * self._sums(gone)[0] else set[int]()

    def _sums(self, rows: Collection[int]) -> tuple[float, float]:
        """The time in any of these rows, of each side (ns)."""
        if self.comparison.nesting is None:
            return self.comparison.rows[sorted(rows)].select(pl.col("a_ns", "b_ns").sum()).row(0)
        times = self.comparison.nesting.at_their_place(rows, self.comparison.own, lambda row, times: True)
        sides = [self.comparison.evidence.means(each) for each in times.values()]
        return sum(a for a, _ in sides), sum(b for _, b in sides)

    def places(self) -> dict[int, tuple[float, Shift | None]]:
        """The slower and the new rows, with the growth (ns) and the change of the time that counts to each."""
        slower = {row: change for row, change in self.shifts.items() if self._is_slower(change, self.most)}
        rows = [*self.new, *slower]
        if self.comparison.nesting is None:
            sides = self.comparison.rows.select(pl.col("a_ns", "b_ns").fill_null(0)).rows()
            changes = {row: (sides[row], slower.get(row)) for row in rows}
        else:
            times = self.comparison.nesting.at_their_place(rows, self.comparison.own, self._is_place)
            evidence = self.comparison.evidence
            changes = {
                row: (evidence.means(each), self._own(evidence.of_row(row, each))) for row, each in times.items()
            }
        places = {row: (_growth(means, change), change) for row, (means, change) in changes.items()}
        return dict(sorted(places.items(), key=lambda place: (-place[1][0], place[0])))

    def _is_place(self, row: int, times: Times) -> bool:
        """Whether a row is slower, or new, without the time of slower rows inside."""
        change = self._own(self.comparison.evidence.of_row(row, times))
        is_slower = row in self.new if change is None else self._is_slower(change, self.most)
        return is_slower and self.comparison.evidence.share(times) >= self.least_share

    def table(self, places: Mapping[int, tuple[float, Shift | None]]) -> pl.DataFrame:
        """The rows of `Decision`."""
        changes = [(growth, *_columns(change)) for growth, change in places.values()]
        table = pl.DataFrame(changes, schema=_COLUMNS, orient="row")
        return self.comparison.rows[[*places]].drop("p").hstack(table)

    def slower_totals(self) -> list[str]:
        """Sentences about the total times that are slower."""
        most = _largest_accepted(self.totals, self.level)
        slower = {name: change for name, change in self.totals.items() if self._is_slower(change, most)}
        return [self._text(name, change) for name, change in slower.items() if self._measured_counts]

    def doubtful_totals(self) -> list[str]:
        """Sentences about the total times that are longer without sufficient evidence."""
        return [self._text(name, change) for name, change in self._doubtful(self.totals).items()]

    def doubtful_rows(self) -> list[str]:
        """Sentences about the rows that are longer without sufficient evidence, the largest factor first."""
        rows = sorted(self._doubtful(self.shifts).items(), key=lambda row: -row[1].factor)
        return [self.row_text(row, change) for row, change in rows]

    def _doubtful(self, changes: Mapping[_Name, Shift]) -> dict[_Name, Shift]:
        between_runs, most = self.comparison.evidence.between_runs, _largest_accepted(changes, _DOUBTFUL * self.level)
        return {
            name: change
            for name, change in changes.items()
            if self._exceeds(change) and (not between_runs or change.p is None or change.p <= most)
        }

    def error(self, status: Status) -> str:
        """A sentence about the error level of a decision."""
        evidence = self.comparison.evidence
        if self.above < 1:
            return ""
        if not evidence.between_runs:
            return _ONE_PAIR
        if status == "same":
            return ""
        text = f"of comparisons of equal runs, at most {100 * self.level:.2g}% end as slower"
        if evidence.is_exact:
            return text
        a, b = self.comparison.runs
        return f"{text}, if times are log-normal: {a} and {b} runs are too few for exact intervals at this level"

    def noise(self) -> str:
        """A sentence about what the runs cannot show; empty: they show a growth by the allowed factor."""
        if not self.comparison.evidence.between_runs or self.above < 1:
            return ""
        for name, change in self.totals.items():
            if change.low is None or change.high is None:
                continue
            visible = math.sqrt(change.high) / math.sqrt(change.low)
            if visible > self.above:
                return f"the runs differ so much that {name} is slower only if it takes {visible:.3g} times as long"
        return ""

    def row_text(self, row: int, change: Shift | None) -> str:
        """A sentence about a row without a full stop."""
        comparison, values = self.comparison, self.comparison.rows.row(row, named=True)
        names = [values[name] for name in NAMES[comparison.by] if name != "module" or comparison.by == "module"]
        if change is None:
            return f"{' '.join(names)} is new and takes {values['share']:.1%} of the time"
        return self._text(" ".join(names), change)

    def _text(self, name: str, change: Shift) -> str:
        notes = []
        if change.low is not None and change.high is not None and self.comparison.level is not None:
            notes.append(f"{100 * (1 - self.comparison.level):.3g}% interval {change.low:.3f} to {change.high:.3f}")
        if change.p is not None:
            notes.append(f"p = {change.p:.1g}")
        return f"{name} takes {change.factor:.3f} times as long in B" + (f" ({', '.join(notes)})" if notes else "")

    def _is_slower(self, change: Shift, most: float) -> bool:
        """Whether a time grew, with evidence.

        The variance behind a p-value is mostly that of other rows. The interval has the noise of this row alone, and
        must show the growth, too.
        """
        if not self._exceeds(change) or self.above < 1:
            return self._exceeds(change)
        return change.p is not None and change.p <= most and (change.low is None or change.low > 1)

    def _exceeds(self, change: Shift) -> bool:
        """Whether a time grew by more than the allowed factor."""
        return change.factor > self.above

    def _own(self, change: Shift | None) -> Shift | None:
        """The change of a row that counts: the relative one, unless others became faster and it grew less as measured.

        It has no p-value if the runs of a side are too few to tell.
        """
        if change is None or self.above < 1:
            return change
        counted, counts = change, self._measured_counts
        if change.relative is not None:
            counts = self._relative_counts
            if not (self._may_be_faster and change.factor < change.relative.factor):
                counted = replace(change.relative, p=change.p)
        return counted if counts else replace(counted, p=None)


def _largest_accepted(changes: Mapping[_Name, Shift], level: float) -> float:
    """The largest p-value that is evidence at an error level; below 0: none is."""
    known = [change.p for change in changes.values() if change.p is not None]
    return max((p for p, least in zip(known, adjusted(known), strict=True) if least <= level), default=-1.0)


def _total_changes(comparison: Comparison) -> dict[str, Shift]:
    """The changes of the step and of everything by name."""
    whole = "all GPU time" if comparison.time == "gpu_ns" else "all host time"
    totals = {"a step": comparison.step_time, whole: comparison.whole}
    return {name: change for name, numbers in totals.items() if (change := _change_of(numbers)) is not None}


def _change_of(numbers: Mapping[str, Any] | None) -> Shift | None:
    """The change of a total time; None: unknown, or one of the sides lacks it."""
    if numbers is None or not numbers["speedup"]:
        return None
    low, high = (numbers[name] and 1 / numbers[name] for name in ("speedup_high", "speedup_low"))
    return Shift(1 / numbers["speedup"], low, high, numbers["p"])


def _columns(change: Shift | None) -> tuple[float | None, ...]:
    return (None,) * 4 if change is None else (change.factor, change.low, change.high, change.p)


def _growth(means: tuple[float, float], change: Shift | None) -> float:
    """The growth of a time (ns): that of a new row is its time."""
    return means[1] - means[0] if change is None else means[0] * (change.factor - 1)
