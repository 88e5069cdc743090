"""Roofline of a profile: terminal table, and rows for files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import polars as pl
from rich.console import Console, Group
from rich.text import Text

from annot.analyze.roofs import Peaks
from annot.report.terminal.layout import Column, Hanging, fitted_table
from annot.report.units import amount, printable, unit_for

__all__ = ["RooflineReport", "peak_lines", "print_roofline"]


@dataclass(frozen=True, slots=True)
class RooflineReport:
    """Roofline of a profile, input of the renderers.

    Args:
        by: subject of a row.
        rows: result of `annot.analyze.roofline.layer_roofline` or `kernel_roofline`.
        peaks: peaks of the device; None: unknown.
        source: name of the profile.
    """

    by: Literal["layer", "kernel"]
    rows: pl.DataFrame
    peaks: Peaks | None
    source: str

    @property
    def name(self) -> str:
        """Plural of the subject, such as `layers`."""
        return f"{self.by}s"

    @property
    def meta(self) -> dict[str, Any]:
        """Profile, peaks with their source, and notes."""
        peaks = None if self.peaks is None else self.peaks.as_meta()
        return {"source": self.source, "peaks": peaks, "notes": self.notes}

    @property
    def notes(self) -> list[str]:
        """Warnings about implausible rows."""
        above = [share for share in self.rows["roof_share"] if share is not None and share > 1]
        if not above:
            return []
        rows = "1 row is" if len(above) == 1 else f"{len(above):,} rows are"
        return [
            f"{rows} above the roof, up to {100 * max(above):.1f}% of it. Possible reasons: a measured peak comes from "
            "one GEMM and one copy, the data was cached, or the algorithm needs fewer FLOPs than counted"
        ]


def print_roofline(report: RooflineReport, console: Console) -> None:
    """Print a roofline: layers or kernels with known work, and launch-bound or host-bound ones.

    Args:
        report: the roofline.
        console: output; its width selects the columns.
    """
    shown = report.rows.filter(pl.col("flops").is_not_null() | pl.col("bound").is_not_null())
    rows = shown.to_dicts()
    unit = unit_for(shown["time_ns"])
    columns = [
        Column(f"Time {unit.name}", lambda row: unit.show(row["time_ns"])),
        Column("FLOPs", lambda row: amount(row["flops"]), 76),
        Column("Bytes", lambda row: amount(row["bytes"]), 90),
        Column("FLOP/B", lambda row: amount(row["intensity"])),
        Column("FLOP/s", lambda row: amount(row["flops_per_s"])),
        Column("B/s", lambda row: amount(row["bytes_per_s"]), 90),
        Column("Precision", lambda row: row["precision"], 100),
        Column("Roof", lambda row: "" if row["roof_share"] is None else f"{100 * row['roof_share']:.1f}%"),
        Column("Bound", lambda row: row["bound"] or ""),
    ]
    lines: list[Any] = peak_lines(report.peaks)
    if rows:
        lines.append(fitted_table(report.by.capitalize(), [_label(row) for row in rows], columns, rows, console.width))
    else:
        lines.append(Text(_EMPTY[report.by], style="dim"))
    if report.by == "layer" and (missing := report.rows["flops"].null_count()):
        lines.append(Text(f"Note: the work of {missing:,} of {report.rows.height:,} rows is unknown", "yellow"))
    lines += [Hanging("Note: ", note, "yellow") for note in report.notes]
    console.print(Group(*lines))


_EMPTY = {
    "layer": "The work of the layers is unknown. Use emit_ranges(model) with shapes=True.",
    "kernel": "No kernel has counters for FLOPs and bytes. Use ncu --set full --nvtx.",
}


def peak_lines(peaks: Peaks | None) -> list[Text]:
    """Return lines with the peaks of the device and their source.

    Args:
        peaks: peaks of the device (FLOP/s, bytes/s); None: unknown.
    """
    if peaks is None:
        return [Text("Peaks: unknown. Use --measure, or --peak-flops and --peak-bandwidth.", style="yellow")]
    flops = ", ".join(f"{name} {amount(value)}FLOP/s" for name, value in peaks.flops.items())
    bandwidth = "bandwidth unknown" if peaks.bandwidth is None else f"{amount(peaks.bandwidth)}B/s"
    device = f"{printable(peaks.device)}: " if peaks.device else ""
    return [
        Text(f"Peaks of {device}{bandwidth}, {flops}" if device else f"Peaks: {bandwidth}, {flops}", style="bold"),
        Text(f"Source: {printable(peaks.source)}", style="dim"),
    ]


def _label(row: dict[str, Any]) -> Text:
    if "name" in row:
        return Text(printable(row["name"]))
    label = Text(printable(row["layer"] or "(model)"))
    return label.append(f" {printable(row['module'])}", style="cyan").append(f" {row['phase']}", style="dim")
