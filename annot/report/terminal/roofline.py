"""Roofline of a profile: a report, and its terminal table."""

from __future__ import annotations

from typing import Any, Final

import polars as pl
from rich.console import Console, Group
from rich.text import Text

from annot.analyze.peaks import Peaks
from annot.analyze.tensor_cores import matrix_units
from annot.report.columns import formatted, in_units, of_names
from annot.report.report import Report
from annot.report.terminal.layout import Hanging, notes
from annot.report.terminal.table import table_of, with_printed_names
from annot.report.totals import peaks_text
from annot.report.units import printable, unit_for
from annot.report.views import ROOFLINE_COLUMNS, find_view

__all__ = ["print_roofline", "roofline_report"]

_COLUMNS: Final = {"layer": "work", "kernel": "roofline"}
"""Views with the same rows and the same text for an empty table."""


def roofline_report(by: str, rows: pl.DataFrame, peaks: Peaks, source: str) -> Report:
    """Return the roofline of a profile; meta holds the profile, the peaks with their source, and notes.

    Args:
        by: subject of a row: layer or kernel.
        rows: result of `annot.analyze.roofline.layer_roofline` or `kernel_roofline`.
        peaks: peaks of the device.
        source: name of the profile.
    """
    remarks = []
    if above := [share for share in rows["roof_share"] if share is not None and share > 1]:
        subject = "1 row is" if len(above) == 1 else f"{len(above):,} rows are"
        remarks = [
            f"{subject} above the roof, up to {100 * max(above):.1f}% of it. Possible reasons: a measured peak comes "
            "from one GEMM and one copy, the data was cached, or the algorithm needs fewer FLOPs than counted"
        ]
    meta = {"source": source, "peaks": peaks.as_meta(), "notes": remarks}
    return Report(find_view(by, _COLUMNS[by]), rows, meta)


def print_roofline(report: Report, console: Console, *, full_names: bool = False) -> None:
    """Print layers or kernels with known work, and launch-bound or host-bound ones; the width selects the columns."""
    view = report.view
    shown = with_printed_names(report.rows, full_names=full_names).filter(
        pl.col("flops").is_not_null() | pl.col("bound").is_not_null()
    )
    rows = shown.to_dicts()
    lines: list[Any] = [Hanging("Peaks: ", printable(peaks_text(report.meta["peaks"])))]
    if rows:
        units = matrix_units({"devices": [{"name": report.meta["peaks"]["device"]}]})
        columns = in_units(formatted(of_names(ROOFLINE_COLUMNS), rows, None), units)
        steps = f" per step, mean of {report.meta['per_step']:,}" if "per_step" in report.meta else ""
        lines.append(Text(f"Roofline by {view.by}, {unit_for(shown['time_ns']).name}{steps}", style="bold"))
        lines.append(table_of(view.by.capitalize(), rows, columns, console.width, view.label))
    else:
        lines.append(Text(view.empty, style="dim"))
    if view.by == "layer" and (missing := report.rows["flops"].null_count()):
        lines.append(Text(f"Note: the work of {missing:,} of {report.rows.height:,} rows is unknown", "yellow"))
    console.print(Group(*lines, *notes(report.meta)))
