"""Terminal report of several ranks: a row per layer with its slowest rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self, TypeAlias

import polars as pl
from rich.console import Console, Group
from rich.text import Text

from annot.report.columns import ACROSS, ARRIVALS, Formatted, head
from annot.report.table import Table, select
from annot.report.terminal.layout import (
    HOTTEST,
    Sheet,
    left_out,
    notes,
    one_line,
    print_blocks,
    verdict_in_lines,
    verdict_lines,
)
from annot.report.terminal.table import label_text, with_printed_names
from annot.report.units import count, duration, share, unit_for

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


@dataclass(frozen=True, kw_only=True)
class RanksTable(Table):
    """A table of several ranks: a row per layer or other subject, with the differences between the ranks.

    Its `rows` are those of each rank, with rank and the columns of `across`. Its `meta` has totals over all ranks,
    with the keys of `annot.attribution.summarize`, plus ranks, profiles, times and collectives; see
    `annot.runs.gather`.

    Args:
        compared: column whose time is compared.
        across: result of `annot.runs.skew.across_ranks`, the rows to draw.
        ranks: table of each rank, by rank number.
    """

    compared: str
    across: pl.DataFrame
    ranks: Mapping[int, Table]

    @property
    def time(self) -> str:
        """Column whose time is compared."""
        return self.compared

    @property
    def whole(self) -> float | None:
        """Time of the median rank in ns; None: unknown."""
        spread = self.meta["across"]["gpu_ns" if self.time.startswith("gpu") else "host_ns"]
        return spread["median"] if spread else None

    @property
    def column(self) -> str:
        """Column of `rows` and `across` to sort and select by."""
        return "median_ns"

    @property
    def order(self) -> str:
        """Column by which `top` selects."""
        return self.column

    def selected(self, column: str, **how: Any) -> Self:
        """Return the table with rows of `across` selected, and the rows of each rank in the same order."""
        across = select(self.across, column, **how)
        rows = select(self.rows, column, longest=how.get("longest", False))
        rows = rows.join(
            across.select(self.view.keys), on=list(self.view.keys), how="semi", nulls_equal=True, maintain_order="left"
        )
        return replace(self, rows=rows, across=across)


def print_ranks(report: RanksTable, console: Console, *, full_names: bool = False, with_verdict: bool = True) -> None:
    """Print a report, kernels with `full_names` or short ones; the width of the console selects the columns."""
    report = replace(report, across=with_printed_names(report.across, full_names=full_names))
    above = verdict_lines(report.meta) if with_verdict else []
    totals = [Text(f"{name}: {text}") for name, text in ranks_totals(report)]
    console.print(Group(*above, Text(), ranks_sheet(report), Text(), *totals, *notes(report.meta)))


def print_ranks_answer(report: RanksTable, console: Console, *, more: str = "") -> None:
    """Print the verdict, the differences of the ranks and the rows with the most self time, in 15 lines.

    `more` says how to see the rest; empty: the rest follows.
    """
    width = console.width
    totals = [one_line(Text(f"{name}: {text}"), width) for name, text in ranks_totals(report)]
    rows = _hottest(report, HOTTEST)
    table = [_sheet(report, ranks_heading(report), rows)] if rows else []
    below = left_out(report.across.height, len(report.meta["notes"]), more, width)
    print_blocks(console, [[*verdict_in_lines(report.meta, console), *totals], table, below], len(rows))


def _hottest(report: RanksTable, number: int) -> list[dict[str, Any]]:
    """The rows with the most self time, the median over the ranks that have them."""
    own = report.time.replace("_self_ns", "_ns").replace("_ns", "_self_ns")
    if own not in report.rows.columns:
        return select(report.across, report.column, longest=True, number=number).to_dicts()
    keys = list(report.view.keys)
    times = report.rows.group_by(keys).agg(pl.col(own).median().alias("(self)"))
    rows = report.across.join(times.filter(pl.col("(self)") > 0), on=keys, nulls_equal=True, maintain_order="left")
    return select(rows, "(self)", longest=True, number=number).drop("(self)").to_dicts()


def ranks_sheet(report: RanksTable) -> Sheet:
    """Return the comparison of the ranks with its heading."""
    return replace(_sheet(report, report.view.by.capitalize(), report.across.to_dicts()), heading=ranks_heading(report))


def _sheet(report: RanksTable, title: str, rows: Sequence[dict[str, Any]]) -> Sheet:
    hottest = next((row for row in _hottest(report, 1) if row in rows), None)
    return Sheet(
        title=title,
        labels=[label_text(row, report.view.label) for row in rows],
        columns=ranks_columns(report),
        rows=rows,
        hottest=None if hottest is None else rows.index(hottest),
        sizes=[row[report.column] or 0 for row in rows],
    )


def ranks_heading(report: RanksTable) -> str:
    """Return the title of the table, with the unit of its times."""
    what = _TIMES.get(report.time, "Host time")
    ranks = "1 rank" if len(report.ranks) == 1 else f"{len(report.ranks)} ranks"
    per_step = " per step" if "per_step" in report.meta and report.view.sums else ""
    return f"{what} by {report.view.by} over {ranks}, {unit_for(report.across['max_ns']).name}{per_step}"


def ranks_columns(report: RanksTable) -> list[_Column]:
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
    declared = {name: {**ACROSS, **ARRIVALS}[name] for name in shows}
    units = {name: unit.name if column.unit == "ns" else "" for name, column in declared.items()}
    columns: list[_Column] = [head(declared[name], show, unit=units[name]) for name, show in shows.items()]
    if len(report.ranks) > _PER_RANK:
        return columns
    keys = report.across.columns[: report.across.columns.index("ranks")]
    work = {tuple(row[:-1]): row[-1] for row in report.rows.select(*keys, "rank", "work_ns").iter_rows()}

    def of(rank: int) -> Callable[[Mapping[str, Any]], str]:
        return lambda row: unit.show(work.get((*(row[key] for key in keys), rank)))

    least = _ROOM + 10 * len(report.ranks)
    return columns + [Formatted(f"r{rank}", of(rank), least, unit=unit.name) for rank in report.ranks]


def ranks_totals(report: RanksTable) -> Iterator[tuple[str, str]]:
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
