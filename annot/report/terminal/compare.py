"""Comparison of two profiles: terminal table, and rows for files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self

import polars as pl
from rich.console import Console, Group, RenderableType
from rich.text import Text

from annot.analyze.comparison.causes import Cause
from annot.analyze.comparison.comparable import Comparability
from annot.analyze.comparison.compare import Comparison
from annot.analyze.kernel_names import short_names
from annot.report.columns import COMPARED, head
from annot.report.table import Options, Table, select, top
from annot.report.terminal.layout import (
    HOTTEST,
    NARROW,
    WIDE,
    Ends,
    Hanging,
    Sheet,
    kernel_text,
    left_out,
    one_line,
    print_blocks,
)
from annot.report.terminal.table import label_text
from annot.report.units import Unit, duration, printable, unit_for
from annot.report.views import find_view

_SHORT: Final = {"forward": "fwd", "backward": "bwd", "recompute": "re", "optimizer": "opt"}
_SHOWN: Final = 2  # kernel names per line
_CAUSES: Final = 2  # causes in an answer
_REASONS: Final = 2  # reasons in an answer why profiles are not comparable


@dataclass(frozen=True, kw_only=True)
class ComparisonTable(Table):
    """A table of two profiles; it draws repeated layers as one row, without those whose change other rows explain.

    Args:
        comparison: the comparison.
        causes: causes of longer times.
    """

    comparison: Comparison
    causes: Sequence[Cause] = ()

    @property
    def is_tree(self) -> bool:
        """Rows stand alone."""
        return False

    @property
    def whole(self) -> float:
        """The column to select by holds shares."""
        return 1.0

    @property
    def column(self) -> str:
        """Column with the share of the longer run, to select by."""
        return "share"

    @property
    def order(self) -> str:
        """Column by whose size, up or down, `top` selects."""
        return "difference_ns"

    def selected(self, column: str, **how: Any) -> Self:
        """Return the table with rows selected by the size of a column."""
        return self.changed(lambda rows: select(rows, pl.col(column).abs(), **how))


def comparison_table(comparison: Comparison, a: str, b: str, causes: Sequence[Cause] = ()) -> ComparisonTable:
    """Return the table of a comparison of two profiles with the names `a` and `b`.

    Its meta has names and devices of the profiles, compared time, steps, totals, comparability and causes.
    """
    comparability = comparison.comparability
    every = _folded(comparison)
    return ComparisonTable(
        view=find_view(comparison.by),
        rows=comparison.rows,
        drawn=every.filter(~pl.col("explained")) if "explained" in every.columns else every,
        meta={
            "a": a,
            "b": b,
            "devices": comparison.devices,
            "time": comparison.time,
            "runs": comparison.runs,
            "steps": comparison.steps,
            "level": comparison.level,
            "whole": comparison.whole,
            "step_time": comparison.step_time,
            "comparable": comparability.comparable,
            "reasons": [{"kind": reason.kind, "reason": reason.text} for reason in comparability.reasons],
            "notes": list(comparison.notes),
            "reservations": list(comparability.reservations),
            "causes": [{"kind": cause.kind, "row": cause.row, "cause": cause.text} for cause in causes],
        },
        comparison=comparison,
        causes=causes,
    )


def _folded(comparison: Comparison) -> pl.DataFrame:
    """The rows with repeated layers as one."""
    return comparison.rows if comparison.folded is None else comparison.folded


def print_comparison(table: ComparisonTable, console: Console, *, full_names: bool = False) -> None:
    """Print a comparison, largest slowdown first; the width of the console selects the columns.

    `full_names` prints kernels with their full names.
    """
    drawn = comparison_sheet(table, console.width, full_names=full_names)
    console.print(Group(drawn, *_hidden(table.comparison), *_totals(table)))


def print_comparison_answer(table: ComparisonTable, console: Console, *, more: str) -> None:
    """Print the totals and the rows that change most, in 15 lines. `more` says how to see the rest."""
    changed, width, comparison = top(table, Options(top=HOTTEST)), console.width, table.comparison
    reasons = [f"Not comparable: {printable(reason.text)}." for reason in comparison.comparability.reasons][:_REASONS]
    why = [f"{printable(cause.sentence)}." for cause in table.causes][:_CAUSES]
    texts = [*totals_of(comparison), *why, *sides_of(table), *reasons]
    rows = changed.shown.height
    drawn = [_sheet(changed, _heading(changed), width)] if rows else []
    below = left_out(table.shown.height, len(comparison.notes), more, width)
    print_blocks(console, [[one_line(Text(text), width) for text in texts], drawn, below], rows)


def _unit(table: ComparisonTable) -> Unit:
    """The unit of the times of both profiles."""
    return unit_for(round(ns or 0) for side in ("a_ns", "b_ns") for ns in table.shown[side])


def _heading(table: ComparisonTable) -> str:
    comparison = table.comparison
    what = "GPU" if comparison.time == "gpu_ns" else "Host"
    per_step = "" if comparison.steps is None else " per step"
    return f"{what} time{per_step} by {comparison.by}, {_unit(table).name}"


def comparison_sheet(table: ComparisonTable, width: int, *, full_names: bool = False) -> Sheet:
    """Return the table with its heading; the width of the terminal selects the words."""
    sheet = _sheet(table, table.comparison.by.capitalize(), width, full_names=full_names)
    return replace(sheet, heading=_heading(table))


def _sheet(table: ComparisonTable, title: str, width: int, *, full_names: bool = False) -> Sheet:
    rows, unit = table.shown.to_dicts(), _unit(table)
    names = {} if full_names else short_names(table.comparison.kernels)
    shows: dict[str, Callable[[dict[str, Any]], str]] = {
        "phase": lambda row: _phase(row, width),
        "a_ns": lambda row: _time(row["a_ns"], unit.show),
        "b_ns": lambda row: _time(row["b_ns"], unit.show),
        "difference_ns": lambda row: _time(row["difference_ns"], unit.show),
        "speedup": _speedup,
        "uncertainty": uncertainty,
        "share": lambda row: f"{100 * row['share']:.1f}%",
    }
    always = {"a_ns": 0, "b_ns": 0} if table.comparison.by in ("phase", "kind") else {}  # short names leave room
    kept = ("difference_ns", "speedup")
    columns = [
        head(column, show, always.get(name), keep=name in kept, unit=unit.name if column.unit == "ns" else "")
        for name, show in shows.items()
        for column in [COMPARED[name]]
    ]
    ends = [_changes(row, names) for row in rows] if width >= WIDE else []
    changes = [abs(row["difference_ns"]) for row in rows]
    return Sheet(
        title=title,
        labels=[_label(row, names) for row in rows],
        columns=columns,
        rows=rows,
        ends=Ends(ends, COMPARED["kernels_gone"].title),
        hottest=changes.index(max(changes)) if any(changes) else None,
        sizes=changes,
    )


def _hidden(comparison: Comparison) -> list[Text]:
    """The sentences about the rows that the table lacks; some are layers of fused kernels."""
    every = _folded(comparison)
    rows, fused = (int(every[name].sum()) if name in every.columns else 0 for name in ("explained", "fused"))
    sentences = []
    for count, why, of_one in (
        (rows - fused, "rows inside them explain their changes", "rows inside it explain its change"),
        (
            fused,
            "their kernels are fused, so that the layers around them have their changes",
            "its kernels are fused, so that the layer around it has its change",
        ),
    ):
        if count:
            sentences.append(f"1 layer is hidden: {of_one}." if count == 1 else f"{count:,} layers are hidden: {why}.")
    return [Text(" ".join([*sentences, "Files contain all rows."]), style="dim")] if sentences else []


def _phase(row: dict[str, Any], width: int) -> str:
    """Phase of a layer or module class, abbreviated on narrow terminals. A table by phase has it as label."""
    if "phase" not in row or not _named(row):
        return ""
    return str(row["phase"]) if width >= NARROW else _SHORT.get(row["phase"], str(row["phase"]))


def _named(row: dict[str, Any]) -> bool:
    return "layer" in row or "module" in row


def _time(ns: float | None, show: Any) -> str:
    return "" if ns is None else str(show(round(ns)))


def _speedup(row: dict[str, Any]) -> str:
    if row["only_in"]:
        return f"only {row['only_in'].upper()}"
    return f"{row['speedup']:.3f}"


def uncertainty(row: Mapping[str, Any]) -> str:
    """Return half the width of the confidence interval. The interval is nearly symmetric: it comes from a logarithm."""
    low, high = row["speedup_low"], row["speedup_high"]
    if low is None or high is None:
        return ""
    half = (high - low) / 2
    return f"{half:.3f}" if half < 100 else "?"


def _label(row: dict[str, Any], names: Mapping[str, str]) -> Text:
    if "name" in row:
        return kernel_text(printable(names.get(row["name"], row["name"])))
    if "layer" in row:
        return label_text(row)
    label = Text(printable(row.get("kind", "")))
    for name, style in (("module", "cyan"), ("phase", "dim")):
        if row.get(name) and (name == "module" or not _named(row)):
            label.append(f"{' ' if label else ''}{printable(row[name])}", style=style)
    return label


def _changes(row: dict[str, Any], names: Mapping[str, str]) -> Text:
    """Kernels that only A (−) or only B (+) has."""
    texts = [
        f"{sign}{printable(names.get(name, name))}"
        for sign, kernels in (("−", row.get("kernels_gone")), ("+", row.get("kernels_new")))
        for name in (kernels or [])[:_SHOWN]
    ]
    return Text(" ".join(texts), style="dim")


def _totals(table: ComparisonTable) -> list[RenderableType]:
    comparison = table.comparison
    comparability = comparison.comparability
    return [
        Text(),
        *map(Text, sides_of(table)),
        *(Hanging("Not comparable: ", f"{printable(reason.text)}.", "yellow") for reason in comparability.reasons),
        *(Hanging("Not known: ", f"{printable(text)}.", "yellow") for text in comparability.reservations),
        *(Hanging("Note: ", f"{printable(note)}.", "yellow") for note in comparison.notes),
        *(Hanging("Cause: ", printable(cause.text)) for cause in table.causes),
        *map(Text, totals_of(comparison)),
    ]


def sides_of(table: ComparisonTable) -> list[str]:
    """Return the profiles with their devices, a line each."""
    sides = zip("AB", (table.meta["a"], table.meta["b"]), table.comparison.devices, strict=True)
    return [f"{side}: {printable(path)}{device and f' ({printable(device)})'}" for side, path, device in sides]


def totals_of(comparison: Comparison) -> list[str]:
    """Return the changes of the step time, if it is known, and of the total, a line each."""
    counts = [f"{comparison.steps[0]:,} and {comparison.steps[1]:,} steps"] if comparison.steps else []
    if max(comparison.runs) > 1:
        counts.insert(0, f"{comparison.runs[0]:,} and {comparison.runs[1]:,} runs")
    covered = f" ({', '.join(counts)})" if counts else ""
    total = f"Total: {_change(comparison.whole, comparison.comparability)}{covered}"
    if comparison.step_time is None:
        return [total]
    return [f"Step (wall clock): {_change(comparison.step_time, comparison.comparability)}", total]


def _change(numbers: dict[str, Any], comparability: Comparability) -> str:
    a, b = (duration(round(numbers[side] or 0)) for side in ("a_ns", "b_ns"))
    if not comparability.same_program:
        return f"{a} → {b}, the runs are not comparable"
    if numbers["speedup"] is None:
        return f"{a} → {b}, speedup unknown"
    half = uncertainty(numbers)
    return f"{a} → {b}, speedup {numbers['speedup']:.3f}" + (f" ± {half}" if half else "")
