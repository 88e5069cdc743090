"""Comparison of two profiles: terminal table, and rows for files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import polars as pl
from rich.console import Console, Group, RenderableType
from rich.text import Text

from annot.analyze.comparable import Comparability
from annot.analyze.compare import Comparison
from annot.analyze.kernel_names import short_names
from annot.report.tables import COMPARED, head
from annot.report.terminal.answer import HOTTEST, one_line, print_lines, what_is_left
from annot.report.terminal.layout import NARROW, WIDE, Hanging, fitted_table, kernel_text, marked
from annot.report.terminal.table import label_text
from annot.report.units import duration, printable, unit_for

__all__ = ["ComparisonReport", "print_comparison", "print_comparison_answer"]

_SHORT: Final = {"forward": "fwd", "backward": "bwd", "recompute": "re", "optimizer": "opt"}
_SHOWN: Final = 2  # kernel names per line
_REASONS: Final = 2  # reasons in an answer why profiles are not comparable


@dataclass(frozen=True, slots=True)
class ComparisonReport:
    """Comparison of two profiles, input of the renderers.

    Args:
        comparison: the comparison.
        a, b: names of the profiles.
        top: number of rows to keep, those whose time changes most; None: all.
        least: share of the longer run (0 to 1) below which rows are left out.
    """

    comparison: Comparison
    a: str
    b: str
    top: int | None = None
    least: float = 0.0

    @property
    def name(self) -> str:
        """Plural of the subject, such as `layers`."""
        return f"{self.comparison.by}s"

    @property
    def rows(self) -> pl.DataFrame:
        """Rows of the comparison, for files."""
        return self.selected(self.comparison.rows)

    def selected(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return rows without those that `top` and `least` leave out; with `top`, those that change most come first."""
        kept = rows.filter(pl.col("share") >= self.least) if self.least else rows
        if self.top is None:
            return kept
        return kept.sort(pl.col("difference_ns").abs(), descending=True, maintain_order=True).head(self.top)

    @property
    def meta(self) -> dict[str, Any]:
        """Names of the profiles, compared time, steps, totals and comparability."""
        comparison = self.comparison
        names = {"a": self.a, "b": self.b, "devices": comparison.devices}
        comparability = comparison.comparability
        reasons = [{"kind": reason.kind, "reason": reason.text} for reason in comparability.reasons]
        comparable = {"comparable": comparability.comparable, "reasons": reasons, "notes": list(comparability.notes)}
        times = {"time": comparison.time, "steps": comparison.steps, "whole": comparison.whole}
        return names | times | {"step_time": comparison.step_time} | comparable


def print_comparison(report: ComparisonReport, console: Console, *, full_names: bool = False) -> None:
    """Print a comparison, largest slowdown first; the width of the console selects the columns.

    Layers whose change other rows explain are left out. Repeated layers are one row. `full_names` prints kernels with
    their full names.
    """
    changed, left_out, fused = _changed(report)
    rows, comparison = report.selected(changed), report.comparison
    unit = unit_for(round(row[side] or 0) for row in rows.to_dicts() for side in ("a_ns", "b_ns"))
    heading = Text(_heading(comparison, unit.name), style="bold")
    table = _table(report, rows, comparison.by.capitalize(), console.width, full_names=full_names)
    console.print(Group(heading, table, *_left_out(left_out, fused), *_totals(report)))


def print_comparison_answer(report: ComparisonReport, console: Console, *, more: str) -> None:
    """Print the totals and the rows that change most, in 15 lines. `more` says how to see the rest."""
    changed, *_ = _changed(report)
    rows, width, comparison = replace(report, top=HOTTEST).selected(changed), console.width, report.comparison
    unit = unit_for(round(row[side] or 0) for row in rows.to_dicts() for side in ("a_ns", "b_ns"))
    comparability = comparison.comparability
    reasons = [f"Not comparable: {printable(reason.text)}." for reason in comparability.reasons][:_REASONS]
    texts = [*_step_lines(comparison), _total_line(comparison), *_sides(report), *reasons]
    table = [_table(report, rows, _heading(comparison, unit.name), width)] if rows.height else []
    left = what_is_left(changed.height, len(comparability.notes))
    below = [one_line(Text(f"{left}: {more}", style="dim"), width)]
    print_lines(console, [[one_line(Text(text), width) for text in texts], table, below], rows.height)


def _changed(report: ComparisonReport) -> tuple[pl.DataFrame, int, int]:
    """The rows to print, with folds, the number of others, and how many of these are layers of fused kernels."""
    comparison = report.comparison
    every = comparison.rows if comparison.folded is None else comparison.folded
    changed = every.filter(~pl.col("explained")) if "explained" in every.columns else every
    fused = int(every["fused"].sum()) if "fused" in every.columns else 0
    return changed, every.height - changed.height, fused


def _heading(comparison: Comparison, unit: str) -> str:
    what = "GPU" if comparison.time == "gpu_ns" else "Host"
    return f"{what} time{'' if comparison.steps is None else ' per step'} by {comparison.by}, {unit}"


def _table(
    report: ComparisonReport, table: pl.DataFrame, title: str, width: int, *, full_names: bool = False
) -> RenderableType:
    rows = table.to_dicts()
    names = {} if full_names else short_names(report.comparison.kernels)
    unit = unit_for(round(row[side] or 0) for row in rows for side in ("a_ns", "b_ns"))
    shows: dict[str, Callable[[dict[str, Any]], str]] = {
        "phase": lambda row: _phase(row, width),
        "a_ns": lambda row: _time(row["a_ns"], unit.show),
        "b_ns": lambda row: _time(row["b_ns"], unit.show),
        "difference_ns": lambda row: _time(row["difference_ns"], unit.show),
        "speedup": _speedup,
        "uncertainty": _uncertainty,
        "share": lambda row: f"{100 * row['share']:.1f}%",
    }
    always = {"a_ns": 0, "b_ns": 0} if report.comparison.by in ("phase", "kind") else {}  # short names leave room
    kept = ("difference_ns", "speedup")
    columns = [head(COMPARED[name], show, always.get(name), keep=name in kept) for name, show in shows.items()]
    ends = [_changes(row, names) for row in rows] if width >= WIDE else []
    changes = [abs(row["difference_ns"]) for row in rows]
    labels = marked([_label(row, names) for row in rows], changes.index(max(changes)) if any(changes) else None)
    return fitted_table(title, labels, columns, rows, width, ends, COMPARED["kernels_gone"].title)


def _left_out(rows: int, fused: int) -> list[Text]:
    """Return sentences about the rows that the table lacks; `fused` of them are layers of fused kernels."""
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


def _uncertainty(row: dict[str, Any]) -> str:
    """Half the width of the confidence interval. The interval is nearly symmetric: it comes from a logarithm."""
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


def _totals(report: ComparisonReport) -> list[RenderableType]:
    comparison = report.comparison
    comparability = comparison.comparability
    return [
        Text(),
        *map(Text, _sides(report)),
        *(Hanging("Not comparable: ", f"{printable(reason.text)}.", "yellow") for reason in comparability.reasons),
        *(Hanging("Note: ", f"{printable(note)}.", "yellow") for note in comparability.notes),
        *map(Text, _step_lines(comparison)),
        Text(_total_line(comparison)),
    ]


def _sides(report: ComparisonReport) -> list[str]:
    """The profiles with their devices, a line each."""
    sides = zip("AB", (report.a, report.b), report.comparison.devices, strict=True)
    return [f"{side}: {printable(path)}{device and f' ({printable(device)})'}" for side, path, device in sides]


def _step_lines(comparison: Comparison) -> list[str]:
    if comparison.step_time is None:
        return []
    return [f"Step (wall clock): {_change(comparison.step_time, comparison.comparability)}"]


def _total_line(comparison: Comparison) -> str:
    steps = "" if comparison.steps is None else f" ({comparison.steps[0]:,} and {comparison.steps[1]:,} steps)"
    return f"Total: {_change(comparison.whole, comparison.comparability)}{steps}"


def _change(numbers: dict[str, Any], comparability: Comparability) -> str:
    a, b = (duration(round(numbers[side] or 0)) for side in ("a_ns", "b_ns"))
    if not comparability.same_program:
        return f"{a} → {b}, the runs are not comparable"
    if numbers["speedup"] is None:
        return f"{a} → {b}, speedup unknown"
    uncertainty = _uncertainty(numbers)
    return f"{a} → {b}, speedup {numbers['speedup']:.3f}" + (f" ± {uncertainty}" if uncertainty else "")
