"""Whether a comparison shows that something became slower: the decision of a gate in CI.

A row is slower if its time grew by more than the allowed factor, most of it relative to the other layers of each run,
with a p-value that the procedure of Benjamini and Hochberg accepts at the error level. The times of a step and of
everything are tested as measured. P-values are two-sided and only growth counts, so that rows have one half of the
error level, and the step has the other: of comparisons of equal runs, at most the error level end with "slower".

One run on each side does not show what differs between two runs of the same code. A layer is then slower if its change
stands out from those of the other layers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import polars as pl

from annot.analyze.comparison.compare import Comparison
from annot.analyze.comparison.evidence import Shift
from annot.analyze.comparison.nesting import Times
from annot.analyze.comparison.rows import NAMES
from annot.analyze.comparison.statistics import adjusted

Status: TypeAlias = Literal["same", "slower", "undecided", "incomparable"]
_COLUMNS: Final = dict.fromkeys(("regression_ns", "factor", "factor_low", "factor_high", "p"), pl.Float64)
_NAMED: Final = 5
"""Most rows with a sentence."""
_ERROR: Final = "of comparisons of equal runs, at most {:.2g} end so"
_ONE_PAIR: Final = (
    "one run of each side cannot separate a change from what differs between two runs of the same code; several can: "
    "annot compare --repeat 5 -- COMMAND_A -- COMMAND_B"
)


@dataclass(frozen=True, slots=True)
class Decision:
    """Decision of a gate.

    Args:
        status: "slower": something became slower by more than the allowed factor; "undecided": it may have, and more
            runs would tell; "incomparable": the runs differ in more than time; else "same".
        rows: the slower rows, each change at the innermost row that has it, and new rows, with the columns of
            `Comparison.rows` and factor (b / a of the time that counts to the row: without that of slower rows inside;
            null: a new row), factor_low, factor_high, p (null: unknown) and regression_ns (growth of this time). The
            largest regression comes first.
        step_slower: whether the step or the total time became slower.
        level: error level of the decision; None: unknown, as there is one run on each side.
        sentences: the reasons, without full stops. B is the second side.
    """

    status: Status
    rows: pl.DataFrame
    step_slower: bool
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
    if not above > 0:
        raise ValueError(f"the allowed factor must be above 0, got {above:g}")
    if not 0 < level < 1:
        raise ValueError(f"the error level must be between 0 and 1, got {level:g}")
    reasons = comparison.comparability.reasons
    if reasons and not force:
        nothing = _Gate(comparison, above, level, least_share).table({})
        return Decision("incomparable", nothing, False, None, tuple(reason.text for reason in reasons))
    gate = _Gate(comparison, above, level, least_share)
    places = gate.places()
    totals, doubtful_totals = gate.totals()
    slower = [gate.row_text(row, change) for row, (_, change) in places.items()]
    doubtful = [gate.row_text(row, change) for row, change in gate.doubtful_rows()]
    status: Status = "slower" if slower or totals else "undecided" if doubtful or doubtful_totals else "same"
    sentences = {
        "slower": [*_shortened(slower), *totals],
        "undecided": [*_shortened(doubtful), *doubtful_totals],
        "same": [],
    }[status]
    between_runs = comparison.evidence.between_runs
    if status != "same":
        sentences.append(_ERROR.format(level) if between_runs else _ONE_PAIR)
    return Decision(status, gate.table(places), bool(totals), level if between_runs else None, tuple(sentences))


def _shortened(texts: Sequence[str]) -> list[str]:
    """The first sentences about rows, and the number of the others."""
    others = len(texts) - _NAMED
    return [*texts[:_NAMED], *([f"{others:,} more row{'s' if others > 1 else ''}"] if others > 0 else [])]


class _Gate:
    """The rows and totals of a comparison before a gate; see `decide`."""

    def __init__(self, comparison: Comparison, above: float, level: float, least_share: float) -> None:
        self.comparison, self.above, self.level = comparison, above, level
        self.least_ns = least_share * max(comparison.whole[side] or 0 for side in ("a_ns", "b_ns"))
        rows, shifts = comparison.rows, comparison.evidence.shifts
        apart = rows["fused"] if "fused" in rows.columns else pl.repeat(False, rows.height, eager=True)
        tested = (~apart & (rows["share"] >= least_share)).arg_true().to_list()
        self.shifts = {row: change for row in tested if (change := shifts[row]) is not None}
        self.most = _largest_accepted([change.p for change in self.shifts.values()], level)
        new, gone = (~apart & (rows["only_in"] == side).fill_null(False) for side in "ba")
        grown = rows.select(pl.col("b_ns").filter(new).sum() > above * pl.col("a_ns").filter(gone).sum()).item()
        self.new = {row for row in tested if new[row]} if grown else set[int]()

    def places(self) -> dict[int, tuple[float, Shift | None]]:
        """The slower and the new rows, with the growth (ns) and the change of the time that counts to each."""
        slower = {row: change for row, change in self.shifts.items() if self._is_slower(change, self.most)}
        rows = [*self.new, *slower]
        if self.comparison.nesting is None:
            growth = self.comparison.rows["difference_ns"].to_list()
            places = {row: (growth[row], slower.get(row)) for row in rows}
        else:
            times = self.comparison.nesting.at_their_place(rows, self.comparison.own, self._is_place)
            evidence = self.comparison.evidence
            places = {row: (_growth(evidence.means(each)), evidence.of_row(row, each)) for row, each in times.items()}
        return dict(sorted(places.items(), key=lambda place: (-place[1][0], place[0])))

    def _is_place(self, row: int, times: Times) -> bool:
        """Whether a row is slower, or new, without the time of slower rows inside."""
        change = self.comparison.evidence.of_row(row, times)
        is_slower = row in self.new if change is None else self._is_slower(change, self.most)
        return is_slower and max(self.comparison.evidence.means(times)) >= self.least_ns

    def table(self, places: Mapping[int, tuple[float, Shift | None]]) -> pl.DataFrame:
        """The rows of `Decision`."""
        changes = [(growth, *_columns(change)) for growth, change in places.values()]
        table = pl.DataFrame(changes, schema=_COLUMNS, orient="row")
        return self.comparison.rows[[*places]].drop("p").hstack(table)

    def doubtful_rows(self) -> list[tuple[int, Shift]]:
        """The rows that are longer without sufficient evidence, the largest factor first."""
        one_pair = not self.comparison.evidence.between_runs
        doubtful = [
            (row, change)
            for row, change in self.shifts.items()
            if self._exceeds(change) and (one_pair or change.p is None or change.p <= self.level)
        ]
        return sorted(doubtful, key=lambda row: -row[1].factor)

    def totals(self) -> tuple[list[str], list[str]]:
        """Sentences about the total times that are slower, and about those that are longer without evidence."""
        whole = "all GPU time" if self.comparison.time == "gpu_ns" else "all host time"
        named = {"a step": self.comparison.step_time, whole: self.comparison.whole}
        totals = {name: change for name, numbers in named.items() if (change := _change_of(numbers)) is not None}
        most = _largest_accepted([change.p for change in totals.values()], self.level)
        slower, doubtful = list[str](), list[str]()
        for name, change in totals.items():
            if self._exceeds(change):
                (slower if self._is_slower(change, most) else doubtful).append(self._text(name, change))
        return slower, doubtful

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
        if change.relative is not None:
            notes.append(f"{change.relative:.3f} relative to other rows")
        if change.p is not None:
            notes.append(f"p = {change.p:.1g}")
        return f"{name} takes {change.factor:.3f} times as long in B" + (f" ({', '.join(notes)})" if notes else "")

    def _is_slower(self, change: Shift, most: float) -> bool:
        return self._exceeds(change) and (self.above < 1 or (change.p is not None and change.p <= most))

    def _exceeds(self, change: Shift) -> bool:
        """Whether a time grew by more than the allowed factor, at least half of it relative to other rows."""
        is_own = change.relative is None or self.above < 1 or change.relative**2 >= change.factor
        return change.factor > self.above and is_own


def _largest_accepted(p_values: Iterable[float | None], level: float) -> float:
    """The largest p-value that is evidence at an error level; below 0: none is."""
    known = [p for p in p_values if p is not None]
    return max((p for p, least in zip(known, adjusted(known), strict=True) if least <= level), default=-1.0)


def _change_of(numbers: Mapping[str, Any] | None) -> Shift | None:
    """The change of a total time; None: unknown, or one of the sides lacks it."""
    if numbers is None or not numbers["speedup"]:
        return None
    low, high = (numbers[name] and 1 / numbers[name] for name in ("speedup_high", "speedup_low"))
    return Shift(1 / numbers["speedup"], low, high, numbers["p"])


def _columns(change: Shift | None) -> tuple[float | None, ...]:
    return (None,) * 4 if change is None else (change.factor, change.low, change.high, change.p)


def _growth(means: tuple[float, float]) -> float:
    return means[1] - means[0]
