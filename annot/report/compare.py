"""A comparison of two profiles on the terminal and in files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import polars as pl
from rich.console import Console, Group, RenderableType
from rich.text import Text

from annot.analyze.compare import Comparison
from annot.report.table import Column, Hanging, fitted_table, kernel_text
from annot.report.units import duration, printable, unit_for

__all__ = ["ComparisonReport", "print_comparison"]

_NARROW, _WIDE = 76, 100
_SHORT: Final = {"forward": "fwd", "backward": "bwd", "recompute": "re", "optimizer": "opt"}
_SHOWN: Final = 2  # names of kernels on a line


@dataclass(frozen=True, slots=True)
class ComparisonReport:
    """What a renderer needs.

    Args:
        comparison: of the two profiles.
        a, b: their names.
    """

    comparison: Comparison
    a: str
    b: str

    @property
    def name(self) -> str:
        """What the rows are, such as `layers`."""
        return {"class": "classes"}.get(self.comparison.by, f"{self.comparison.by}s")

    @property
    def rows(self) -> pl.DataFrame:
        """The rows."""
        return self.comparison.rows

    @property
    def meta(self) -> dict[str, Any]:
        """The names of the profiles, the time, the steps, the numbers of all of it, and whether it means something."""
        one = self.comparison
        names = {"a": self.a, "b": self.b, "devices": one.devices}
        found = one.comparability
        reasons = [{"kind": reason.kind, "reason": reason.text} for reason in found.reasons]
        said = {"comparable": found.comparable, "reasons": reasons, "notes": list(found.notes)}
        return names | {"time": one.time, "steps": one.steps, "whole": one.whole} | said


def print_comparison(report: ComparisonReport, console: Console) -> None:
    """Print a comparison, what became slower first.

    Args:
        report: what to show.
        console: where to; its width decides how many columns there are.
    """
    rows = report.rows.to_dicts()
    unit = unit_for(round(row[side] or 0) for row in rows for side in ("a_ns", "b_ns"))
    sides = 0 if report.comparison.by in ("phase", "class") else _NARROW  # names that are short leave room
    columns = [
        Column("Phase", lambda row: _phase(row, console.width)),
        Column("A", lambda row: _time(row["a_ns"], unit.show), sides),
        Column("B", lambda row: _time(row["b_ns"], unit.show), sides),
        Column("B − A", lambda row: _time(row["difference_ns"], unit.show)),
        Column("Speed-up", _speedup),
        Column("±", _uncertainty),
        Column("Share", lambda row: f"{100 * row['share']:.1f}%"),
    ]
    what = "GPU" if report.comparison.time == "gpu_ns" else "Host"
    per = "of all" if report.comparison.steps is None else "per step"
    heading = Text(f"{what} time {per} by {report.comparison.by}, {unit.name}", style="bold")
    ends = [_changes(row) for row in rows] if console.width >= _WIDE else []
    title = report.comparison.by.capitalize()
    table = fitted_table(title, [_label(row) for row in rows], columns, rows, console.width, ends)
    console.print(Group(heading, table, *_totals(report)))


def _phase(row: dict[str, Any], width: int) -> str:
    """The phase of a layer or a class, in short on narrow terminals; in a table by phase it is the label."""
    if "phase" not in row or not _named(row):
        return ""
    return str(row["phase"]) if width >= _NARROW else _SHORT.get(row["phase"], str(row["phase"]))


def _named(row: dict[str, Any]) -> bool:
    return "layer" in row or "module" in row


def _time(ns: float | None, show: Any) -> str:
    return "" if ns is None else str(show(round(ns)))


def _speedup(row: dict[str, Any]) -> str:
    if row["only_in"]:
        return f"only {row['only_in'].upper()}"
    return f"{row['speedup']:.3f}"


def _uncertainty(row: dict[str, Any]) -> str:
    """Half of the interval; it is not quite in the middle, which three digits seldom show."""
    low, high = row["speedup_low"], row["speedup_high"]
    if low is None or high is None:
        return ""
    half = (high - low) / 2
    return f"{half:.3f}" if half < 100 else "?"


def _label(row: dict[str, Any]) -> Text:
    if "name" in row:
        return kernel_text(printable(row["name"]))
    names = [name for name in ("layer", "class") if name in row]
    label = Text(printable(row[names[0]] or "(model)") if names else "")
    for name, style in (("module", "cyan"), ("phase", "dim")):
        if row.get(name) and (name == "module" or not _named(row)):
            label.append(f"{' ' if label else ''}{printable(row[name])}", style=style)
    return label


def _changes(row: dict[str, Any]) -> Text:
    """Which kernels are gone and new; the title of the column is that of the layer table's shapes."""
    parts = [
        f"{sign}{printable(name)}"
        for sign, names in (("−", row.get("kernels_gone")), ("+", row.get("kernels_new")))
        for name in (names or [])[:_SHOWN]
    ]
    return Text(" ".join(parts), style="dim")


def _side(letter: str, path: str, devices: str) -> str:
    return f"{letter}: {printable(path)}" + (f" ({printable(devices)})" if devices else "")


def _totals(report: ComparisonReport) -> list[RenderableType]:
    whole, steps = report.comparison.whole, report.comparison.steps
    a, b = (duration(round(whole[side] or 0)) for side in ("a_ns", "b_ns"))
    found = report.comparison.comparability
    if not found.same_program:
        said = "two runs that cannot be compared"
    elif whole["speedup"] is None:
        said = "nothing to compare"
    else:
        said = f"speed-up {whole['speedup']:.3f}"
        if (spread := _uncertainty(whole)) != "":
            said += f" ± {spread}"
    counted = "" if steps is None else f" ({steps[0]:,} and {steps[1]:,} steps)"
    return [
        Text(),
        *(Text(_side(*side)) for side in zip("AB", (report.a, report.b), report.comparison.devices, strict=True)),
        *(Hanging("Not comparable: ", f"{printable(reason.text)}.", "yellow") for reason in found.reasons),
        *(Hanging("Note: ", f"{printable(note)}.", "yellow") for note in found.notes),
        Text(f"All: {a} → {b}, {said}{counted}"),
    ]
