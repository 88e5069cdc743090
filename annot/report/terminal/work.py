"""Lines below the table of expected work: totals, classes that are not counted, explanations of measured values."""

from __future__ import annotations

import polars as pl
from rich.console import RenderableType
from rich.text import Text

from annot.analyze.work import not_counted
from annot.report.layer_tree import MODEL
from annot.report.units import amount, printable

__all__ = ["work_lines"]


def work_lines(rows: pl.DataFrame) -> list[RenderableType]:
    """Return the lines for the rows of the view ``work``."""
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
