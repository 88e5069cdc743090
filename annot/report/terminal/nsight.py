"""Reports of `nsys stats`, computed by annot, for the terminal and for files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import polars as pl
from rich.console import Console
from rich.text import Text

from annot.attribution import nsight_rule
from annot.errors import AnnotError
from annot.read.nsys.activity import Activity
from annot.report.columns import Formatted
from annot.report.terminal.layout import fitted_table
from annot.report.units import printable

__all__ = ["NsightReport", "nsight_report", "print_nsight"]

OfficialName: TypeAlias = Literal["nvtx_gpu_proj_sum", "nvtx_gpu_proj_trace", "nvtx_kern_sum"]
_SHOWN: Final = 1000
_WIDE: Final = 100
# Columns on the terminal: the label, then the numbers with the minimum width of the terminal.
_COLUMNS: Final[dict[OfficialName, tuple[str, tuple[tuple[str, int], ...]]]] = {
    "nvtx_gpu_proj_sum": (
        "Range",
        (
            ("Total Proj Time (ns)", 0), ("Range Instances", 0), ("Proj Avg (ns)", _WIDE), ("Proj Med (ns)", _WIDE),
            ("Total GPU Ops", _WIDE),
        ),
    ),
    "nvtx_gpu_proj_trace": (
        "Name",
        (
            ("Projected Start (ns)", 0), ("Projected Duration (ns)", 0), ("NumGPUOps", _WIDE), ("Lvl", _WIDE),
            ("TID", _WIDE),
        ),
    ),
    "nvtx_kern_sum": ("NVTX Range", (("Kernel Name", 0), ("Kern Inst", 0), ("Total Time (ns)", 0), ("TID", _WIDE))),
}  # fmt: skip
_NAME_WIDTH: Final = 28


@dataclass(frozen=True, slots=True)
class NsightReport:
    """Report of `nsys stats`, input of the renderers.

    Args:
        name: name of the report in `nsys stats`.
        rows: result of the function of that name in `annot.attribution.nsight_rule`.
        meta: source, rule, report and notes.
    """

    name: OfficialName
    rows: pl.DataFrame
    meta: dict[str, Any]


def nsight_report(activity: Activity, path: Path, name: OfficialName) -> NsightReport:
    """Return a report with the values of `nsys stats --report`, from the ranges, launches and activities of a profile.

    Raises:
        AnnotError: the report is too large.
    """
    meta = {"source": str(path), "rule": "nsight", "report": name, "notes": list(activity.notes)}
    try:
        return NsightReport(name, getattr(nsight_rule, name)(activity), meta)
    except AnnotError as error:
        raise AnnotError(f"{path}: {error}") from None


def print_nsight(report: NsightReport, console: Console) -> None:
    """Print a report; the width of the console selects the columns."""
    first, others = _COLUMNS[report.name]
    rows = report.rows.head(_SHOWN).to_dicts()
    longest = max(_NAME_WIDTH, console.width // 4)
    columns = [Formatted(name, _shown(name, longest), least) for name, least in others]
    labels = [Text(printable(row[first] or "(no range)")) for row in rows]
    heading = Text(f"{report.name}, with the rules of Nsight Systems", style="bold")
    console.print(heading, fitted_table(first, labels, columns, rows, console.width), sep="\n")
    more = report.rows.height - _SHOWN
    for note in [*report.meta["notes"], *([f"{more:,} more rows. Use --format csv for all"] if more > 0 else [])]:
        console.print(Text(f"Note: {printable(note)}", style="yellow"))


def _shown(name: str, longest: int) -> Callable[[dict[str, Any]], str]:
    def show(row: dict[str, Any]) -> str:
        value = row[name]
        if isinstance(value, str):
            text = printable(value)
            return text if len(text) <= longest else f"{text[: longest - 1]}…"
        return "" if value is None else f"{value:,}"

    return show
