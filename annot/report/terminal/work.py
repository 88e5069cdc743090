"""Terminal report of expected work: FLOPs, bytes and FLOP/s of each layer."""

from __future__ import annotations

from typing import Any, Final

import polars as pl
from rich.console import RenderableType
from rich.text import Text

from annot.analyze.work import not_counted
from annot.report.layer_tree import MODEL
from annot.report.terminal.layout import Column, fitted_table
from annot.report.units import amount, count, printable, unit_for
from annot.report.views import Report

__all__ = ["work_tables"]

_NARROW, _MEDIUM, _WIDE = 76, 90, 100
_EMPTY: Final = "The work of the layers is unknown. Use emit_ranges(model) with shapes=True."
_PHASES: Final = {"forward": "fwd", "backward": "bwd", "recompute": "re", "optimizer": "opt"}


def work_tables(report: Report, width: int) -> list[RenderableType]:
    """Return the table, its totals, uncounted classes, and explanations of measured values.

    Args:
        report: report by work.
        width: width of the terminal in columns.
    """
    rows = report.rows.to_dicts()
    heading = Text("Work by layer: FLOPs, bytes (each tensor moved once), parameters", style="bold")
    if not any(row["counted"] for row in rows):
        return [heading, Text(_EMPTY, style="dim")]
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
        text = f"Only submodules counted (emit_ranges with ops=True records direct operations): {outer}"
        lines.append(Text(text, style="dim"))
    if "explanation" in rows.columns:
        explained = rows.filter(pl.col("explanation") != "").iter_rows(named=True)
        lines += [Text(printable(f"{row['layer'] or MODEL} {row['phase']}: {row['explanation']}")) for row in explained]
    return [*lines]
