"""The report of expected work on the terminal: what each layer has to compute and move, and how fast it did."""

from __future__ import annotations

from typing import Any, Final

import polars as pl
from rich.console import RenderableType
from rich.text import Text

from annot.analyze.work import not_counted
from annot.report import Report
from annot.report.table import Column, fitted_table
from annot.report.tree import MODEL
from annot.report.units import amount, count, printable, unit_for

__all__ = ["work_tables"]

_NARROW, _MEDIUM, _WIDE = 76, 90, 100
_PHASES: Final = {"forward": "fwd", "backward": "bwd", "recompute": "re", "optimizer": "opt"}


def work_tables(report: Report, width: int) -> list[RenderableType]:
    """Return the table, what it adds up to, what was not counted, and what explains measured numbers."""
    rows = report.rows.to_dicts()
    heading = Text("Work by layer: operations, bytes (each tensor moved once), parameters", style="bold")
    if not any(row["counted"] for row in rows):
        return [heading, Text("no layer's work is known: use emit_ranges(model) with shapes", style="dim")]
    labels = [_label(row) for row in rows]
    return [heading, fitted_table("Layer", labels, _columns(report), rows, width), *_below(report.rows)]


def _columns(report: Report) -> list[Column]:
    time = "gpu_self_ns" if report.time == "gpu_ns" else "host_self_ns"
    unit = unit_for(report.rows[time])
    columns = [
        Column("Phase", lambda row: _PHASES[row["phase"]]),
        Column("Calls", lambda row: count(row["calls"]), _WIDE),
        Column(f"Self {unit.name}", lambda row: unit.show(row[time]), _NARROW),
        Column("FLOP", lambda row: amount(row["flops"])),
        Column("Bytes", lambda row: amount(row["bytes"]), _NARROW),
        Column("Params", lambda row: amount(row["params"]), _MEDIUM),
        Column("FLOP/s", lambda row: amount(row["flops_per_s"])),
    ]
    if "flops_measured" in report.rows.columns:
        columns += [
            Column("Measured", lambda row: amount(row["flops_measured"])),
            Column("Ratio", lambda row: "" if row["ratio"] is None else f"{row['ratio']:.3f}"),
        ]
    return columns


def _label(row: dict[str, Any]) -> Text:
    root = "Optimizer" if row["phase"] == "optimizer" else MODEL
    return Text(printable(row["layer"] or root)).append(f" {printable(row['module'])}", style="cyan")


def _below(rows: pl.DataFrame) -> list[RenderableType]:
    sums = rows.group_by("phase", maintain_order=True).agg(pl.col("flops", "bytes").sum())
    parts = [f"{amount(flops)}FLOP and {amount(moved)}B {phase}" for phase, flops, moved in sums.iter_rows()]
    lines = [Text(), Text(f"Work: {', '.join(parts)}")]
    unknown, outer = (", ".join(map(printable, classes)) for classes in not_counted(rows))
    if unknown:
        lines.append(Text(f"Not counted: {unknown}", style="yellow"))
    if outer:
        lines.append(Text(f"Counted by the layers inside alone (ops=True shows what they call): {outer}", style="dim"))
    if "explanation" in rows.columns:
        explained = rows.filter(pl.col("explanation") != "").iter_rows(named=True)
        lines += [Text(printable(f"{row['layer'] or MODEL} {row['phase']}: {row['explanation']}")) for row in explained]
    return [*lines]
