"""Roofline of a profile: terminal table, and rows for files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

import polars as pl
from rich.console import Console, Group
from rich.text import Text

from annot.analyze.roofs import Peaks
from annot.report.columns import formatted, of_names
from annot.report.terminal.layout import Hanging
from annot.report.terminal.table import table_of
from annot.report.units import amount, printable, unit_for
from annot.report.views import views

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
    columns = formatted(of_names(_COLUMNS), rows, None)
    lines: list[Any] = peak_lines(report.peaks)
    if rows:
        label = "layer" if report.by == "layer" else "name"
        unit = unit_for(shown["time_ns"])
        lines += [Text(f"Roofline by {report.by}, {unit.name}", style="bold")]
        lines.append(table_of(report.by.capitalize(), rows, columns, console.width, label))
    else:
        lines.append(Text(_EMPTY[report.by], style="dim"))
    if report.by == "layer" and (missing := report.rows["flops"].null_count()):
        lines.append(Text(f"Note: the work of {missing:,} of {report.rows.height:,} rows is unknown", "yellow"))
    lines += [Hanging("Note: ", note, "yellow") for note in report.notes]
    console.print(Group(*lines))


_COLUMNS: Final = (
    "phase", "time_ns", "flops", "bytes", "intensity", "flops_per_s", "bytes_per_s", "precision", "roof_share", "bound",
)  # fmt: skip
_EMPTY: Final = {
    by: next(view.empty for view in views().values() if (view.by, view.group) == (by, group))
    for by, group in (("layer", "work"), ("kernel", "roofline"))
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
