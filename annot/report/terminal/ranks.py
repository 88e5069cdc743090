"""Terminal report of several ranks: a row per layer with its slowest rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self, TypeAlias

import polars as pl
from rich.console import Console, Group, RenderableType
from rich.text import Text

from annot.report.columns import Formatted
from annot.report.report import Order, Report
from annot.report.tables import ACROSS, ARRIVALS, head
from annot.report.terminal.answer import HOTTEST, above_answer, one_line, print_lines, what_is_left
from annot.report.terminal.layout import fitted_table, marked, notes, verdict_lines
from annot.report.terminal.table import label_text, with_printed_names
from annot.report.units import count, duration, share, unit_for
from annot.report.views import View

__all__ = [
    "RanksReport",
    "print_ranks",
    "print_ranks_answer",
    "ranks_columns",
    "ranks_heading",
    "ranks_totals",
]

_Column: TypeAlias = Formatted[Mapping[str, Any]]

_PER_RANK: Final = 8  # maximum number of ranks with a column each
_ROOM: Final = 100
_TIMES: Final = {
    "gpu_ns": "GPU time",
    "gpu_self_ns": "GPU time",
    "exposed_ns": "Exposed communication",
    "bubble_ns": "Bubble",
}
_UNEQUAL: Final = 0.1  # difference between ranks that counts as waiting, as share of the longest collective time


@dataclass(frozen=True, slots=True)
class RanksReport:
    """Report of several ranks, input of the renderers.

    Args:
        view: the view.
        time: column that is compared.
        rows: rank and rows of each rank, with the columns of `across_ranks`.
        across: result of `annot.runs.skew.across_ranks`.
        ranks: report of each rank, by rank number.
        meta: totals over all ranks, with the keys of `annot.attribution.summarize`, plus ranks, profiles, times and
            collectives; see `annot.runs.gather`.
    """

    view: View
    time: str
    rows: pl.DataFrame
    across: pl.DataFrame
    ranks: dict[int, Report]
    meta: dict[str, Any]

    @property
    def name(self) -> str:
        """Plural of the subject, such as `layers`."""
        return self.view.name

    def at_least(self, share: float) -> Self:
        """Return the report without the rows whose median time is below a share (0 to 1) of the median rank's time."""
        whole = self.meta["across"]["gpu_ns" if self.time.startswith("gpu") else "host_ns"]
        if not share or not whole:
            return self
        return self._kept(self.across.filter(pl.col("median_ns").fill_null(0) >= share * whole["median"]))

    def top(self, number: int) -> Self:
        """Return the report with the rows of the longest median times only, longest first."""
        report = self.sorted("time")
        return report._kept(report.across.head(number))

    def _kept(self, across: pl.DataFrame) -> Self:
        keys = list(self.view.keys)
        rows = self.rows.join(across.select(keys), on=keys, how="semi", nulls_equal=True, maintain_order="left")
        return replace(self, rows=rows, across=across)

    def sorted(self, sort: Order) -> Self:
        """Return the report sorted by median time, longest first, if `sort` is "time"."""
        if sort == "order":
            return self
        across = self.across.sort("median_ns", descending=True, nulls_last=True, maintain_order=True)
        rows = self.rows.sort("median_ns", descending=True, nulls_last=True, maintain_order=True)
        return replace(self, rows=rows, across=across)


def print_ranks(report: RanksReport, console: Console, *, full_names: bool = False, with_verdict: bool = True) -> None:
    """Print a report, kernels with `full_names` or short ones; the width of the console selects the columns."""
    report = replace(report, across=with_printed_names(report.across, full_names=full_names))
    above = verdict_lines(report.meta) if with_verdict else []
    totals = [Text(f"{name}: {text}") for name, text in ranks_totals(report)]
    heading = Text(ranks_heading(report), style="bold")
    table = _table(report, report.view.by.capitalize(), report.across.to_dicts(), console.width)
    console.print(Group(*above, Text(), heading, table, Text(), *totals, *notes(report.meta)))


def print_ranks_answer(report: RanksReport, console: Console, *, more: str = "") -> None:
    """Print the verdict, the differences of the ranks and the rows with the most self time, in 15 lines.

    `more` says how to see the rest; empty: the rest follows.
    """
    width = console.width
    totals = [one_line(Text(f"{name}: {text}"), width) for name, text in ranks_totals(report)]
    above = [*above_answer(report.meta, console), *totals]
    rows = _hottest(report, HOTTEST)
    table = [_table(report, ranks_heading(report), rows, width)] if rows else []
    left = what_is_left(report.across.height, len(report.meta["notes"]))
    below = [one_line(Text(f"{left}: {more}", style="dim"), width)] if more else []
    print_lines(console, [above, table, below], len(rows))


def _hottest(report: RanksReport, number: int) -> list[dict[str, Any]]:
    """The rows with the most self time, the median over the ranks that have them."""
    own = report.time.replace("_self_ns", "_ns").replace("_ns", "_self_ns")
    if own not in report.rows.columns:
        return report.across.sort("median_ns", descending=True, nulls_last=True).head(number).to_dicts()
    keys = list(report.view.keys)
    times = report.rows.group_by(keys).agg(pl.col(own).median().alias("(self)"))
    rows = report.across.join(times.filter(pl.col("(self)") > 0), on=keys, nulls_equal=True, maintain_order="left")
    rows = rows.sort("(self)", descending=True, maintain_order=True)
    return rows.drop("(self)").head(number).to_dicts()


def _table(report: RanksReport, title: str, rows: Sequence[dict[str, Any]], width: int) -> RenderableType:
    hottest = next((row for row in _hottest(report, 1) if row in rows), None)
    labels = [label_text(row, report.view.label) for row in rows]
    labels = marked(labels, None if hottest is None else rows.index(hottest))
    return fitted_table(title, labels, ranks_columns(report), rows, width)


def ranks_heading(report: RanksReport) -> str:
    """Return the title of the table, with the unit of its times."""
    what = _TIMES.get(report.time, "Host time")
    ranks = "1 rank" if len(report.ranks) == 1 else f"{len(report.ranks)} ranks"
    per_step = " per step" if "per_step" in report.meta and report.view.sums else ""
    return f"{what} by {report.view.by} over {ranks}, {unit_for(report.across['max_ns']).name}{per_step}"


def ranks_columns(report: RanksReport) -> list[_Column]:
    """Return the columns of the comparison, and one per rank if there are few."""
    unit = unit_for(report.across["max_ns"])
    shows: dict[str, Callable[[Mapping[str, Any]], str]] = {}
    if "phase" in report.across.columns and report.view.key != "phase":
        shows["phase"] = lambda row: row["phase"]
    shows |= {
        "median_ns": lambda row: unit.show(row["median_ns"]),
        "max_ns": lambda row: unit.show(row["max_ns"]),
        "slowest": lambda row: "" if row["slowest"] is None else str(row["slowest"]),
        "spread_ns": lambda row: unit.show(row["spread_ns"]),
        "spread_share": lambda row: share(row["spread_ns"], row["median_ns"] or 0),
    }
    if (report.across["ranks"] < len(report.ranks)).any():
        shows["ranks"] = lambda row: count(row["ranks"])
    if (report.across["collective_median_ns"] > 0).any():
        shows["collective_median_ns"] = lambda row: unit.show(row["collective_median_ns"] or None)
    if "late" in report.across.columns:
        shows["skew_median_ns"] = lambda row: unit.show(row["skew_median_ns"])
        shows["transfer_median_ns"] = lambda row: unit.show(row["transfer_median_ns"])
        shows["late"] = lambda row: "" if row["late"] is None else str(row["late"])
    columns: list[_Column] = [head({**ACROSS, **ARRIVALS}[name], show) for name, show in shows.items()]
    if len(report.ranks) > _PER_RANK:
        return columns
    keys = report.across.columns[: report.across.columns.index("ranks")]
    work = {tuple(row[:-1]): row[-1] for row in report.rows.select(*keys, "rank", "work_ns").iter_rows()}

    def of(rank: int) -> Callable[[Mapping[str, Any]], str]:
        return lambda row: unit.show(work.get((*(row[key] for key in keys), rank)))

    least = _ROOM + 10 * len(report.ranks)
    return columns + [Formatted(f"r{rank}", of(rank), least) for rank in report.ranks]


def ranks_totals(report: RanksReport) -> Iterator[tuple[str, str]]:
    """Yield the head and the text of each line below the table."""
    meta = report.meta
    profiles = f"{meta['profiles'] - meta['failed']} of {meta['profiles']} profiles"
    yield "Ranks", f"{len(report.ranks)}, read from {profiles}"
    words = {"gpu_ns": "GPU", "host_ns": "Host", "step_ns": "Step", "collective_ns": "Collectives"}
    for name, word in words.items():
        if spread := meta["across"][name]:
            yield word, f"{_spread(spread)}{_wait(spread) if name == 'collective_ns' else ''}"


def _spread(spread: dict[str, int]) -> str:
    if spread["ranks"] == 1:
        return f"{duration(spread['median'])} on rank {spread['fastest']}"
    ends = (("min", "fastest"), ("max", "slowest"))
    least, most = (f"{duration(spread[end])} (rank {spread[who]})" for end, who in ends)
    return f"median {duration(spread['median'])}, {least} to {most}"


def _wait(spread: dict[str, int]) -> str:
    """Name the rank that the others wait for: the last one to enter a collective spends the least time in it."""
    if spread["max"] - spread["min"] <= _UNEQUAL * spread["max"]:
        return ""
    return f"; the others wait for rank {spread['fastest']}, the last to arrive"
