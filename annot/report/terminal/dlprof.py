"""Terminal tables of the analyses, such as the reports known from DLProf."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from rich.console import Console, Group, RenderableType
from rich.text import Text

from annot.labels import layer_path
from annot.report.layer_tree import title
from annot.report.terminal.layout import Column, fitted_table, kernel_text, notes
from annot.report.units import Unit, count, duration, printable, share, unit_for
from annot.report.views import Analysis, Report

__all__ = ["LAYOUTS", "print_analysis"]

_MEDIUM, _WIDE, _FULL = 76, 100, 140
_SHOWN: Final = 200
"""Number of kernels to print; files contain all."""


@dataclass(frozen=True, slots=True)
class _Look:
    """Layout of an analysis.

    Columns whose name ends in ``_ns`` share one unit of time; the prefix ``=`` gives a column its own unit. Columns
    whose name ends in ``_share`` are percentages.

    Args:
        heading: title of the table.
        columns: title, name in the rows, and minimum width of the terminal.
        empty: text of a table without rows.
        end: name of the text column at the end of each line.
    """

    heading: str
    columns: tuple[tuple[str, str, int], ...]
    empty: str
    end: str = ""


_KERNELS: Final = "No GPU activity was recorded."
_LAYERS: Final = "No layers were recorded. Use emit_ranges(model)."
LAYOUTS: Final[dict[Analysis, _Look]] = {
    "detail": _Look(
        "All metrics by layer",
        (
            ("Phase", "phase", 0), ("Calls", "calls", 0), ("TC", "tc_used", 0), ("GPU", "gpu_ns", 0),
            ("Self", "gpu_self_ns", 0), ("TC time", "tc_ns", _WIDE), ("Outside", "outside_ns", _MEDIUM),
            ("Mean", "=gpu_mean_ns", _WIDE), ("Min", "=gpu_min_ns", _FULL), ("Max", "=gpu_max_ns", _FULL),
            ("Host", "=host_ns", _MEDIUM),
            ("Launch", "=launch_ns", _FULL),
        ),
        "No ranges were recorded.", "reason",
    ),
    "iteration": _Look(
        "Kernels and copies in order of execution",
        (
            ("Step", "step", 0), ("Phase", "phase", _WIDE), ("Kind", "kind", _MEDIUM), ("TC", "tensor_cores", 0),
            ("Device", "device", _FULL), ("Stream", "stream", _FULL), ("Time", "gpu_ns", 0),
            ("Launch", "=launch_ns", _WIDE),
        ),
        _KERNELS, "name",
    ),
    "tensor_core": _Look(
        "Tensor Cores by layer",
        (
            ("Phase", "phase", 0), ("Eligible", "tc_eligible", 0), ("Used", "tc_used", 0), ("Self", "gpu_self_ns", 0),
            ("On TC", "tc_ns", _MEDIUM), ("Share", "tc_share", 0), ("Kernels", "kernels", _WIDE),
            ("On TC", "tc_kernels", _WIDE),
        ),
        _LAYERS, "reason",
    ),
    "op_type": _Look(
        "Self time by module class",
        (
            ("Layers", "layers", 0), ("Eligible", "tc_eligible", _MEDIUM), ("Use TC", "tc_used", 0),
            ("Calls", "calls", 0), ("GPU", "gpu_ns", 0), ("Forward", "forward_ns", _MEDIUM),
            ("Backward", "backward_ns", _MEDIUM), ("Mean", "=gpu_mean_ns", _WIDE), ("Host", "=host_ns", _WIDE),
        ),
        _LAYERS,
    ),
    "group": _Look(
        "Total time by path, submodules included",
        (
            ("Layers", "layers", 0), ("Eligible", "tc_eligible", _WIDE), ("Use TC", "tc_used", _MEDIUM),
            ("GPU", "gpu_ns", 0), ("TC", "tc_share", 0), ("Forward", "forward_ns", _MEDIUM),
            ("Backward", "backward_ns", _MEDIUM), ("Host", "=host_ns", _WIDE),
        ),
        _LAYERS,
    ),
    "class": _Look(
        "GPU time by kind of kernel",
        (
            ("Library", "library", 0), ("TC", "tensor_cores", 0), ("Time", "gpu_ns", 0), ("Share", "share", 0),
            ("Calls", "calls", 0), ("Names", "names", _MEDIUM), ("Layers", "layers", _MEDIUM),
        ),
        _KERNELS,
    ),
    "summary": _Look(
        "Summary of the run",
        (("Count", "count", 0), ("Time", "ns", 0), ("Share", "whole_share", 0), ("Overlapped", "hidden_ns", _MEDIUM)),
        "", "text",
    ),
}  # fmt: skip


def print_analysis(report: Report, console: Console) -> None:
    """Print a report of `annot.report.views.ANALYSES`.

    Args:
        report: the report.
        console: output; its width selects the columns.
    """
    console.print(Group(*_tables(report, console.width), Text(), *notes(report.meta)))


def _tables(report: Report, width: int) -> list[RenderableType]:
    look = LAYOUTS[report.by]  # type: ignore[index]
    rows = report.rows.head(_SHOWN if report.by == "iteration" else report.rows.height).to_dicts()
    heading = Text(look.heading.replace("Tensor Cores", report.meta.get("matrix_units", "Tensor Cores")), style="bold")
    if not rows:
        empty = look.empty if report.meta["kernels"] or report.by != "tensor_core" else _KERNELS
        return [heading, Text(empty, style="dim")]
    known = [one for one in look.columns if _is_known(report, one[1])]
    if not report.meta["kernels"] and not report.meta["copies"]:  # host time is the main time
        known = [(called, name, 0 if name == "=host_ns" else least) for called, name, least in known]
    shared = [name for _, name, _ in known if name.endswith("_ns") and not name.startswith("=")]
    unit = unit_for(row[name] for name in shared for row in rows)
    if any(name in report.rows.columns for name in shared) and report.by != "summary":
        heading.append(f", {unit.name}")
    columns = [_column(report, name, called, least, unit) for called, name, least in known]
    labels = [_label(report, row) for row in rows]
    room = look.end and width >= _END_FROM.get(report.by, _WIDE)
    ends = [_end(report.by, row[look.end] or "") for row in rows] if room else []
    most = width // 3 if report.by == "iteration" else None  # leave room for the name of the kernel
    first, last = _first(report), look.end.capitalize()
    tables = [heading, fitted_table(first, labels, columns, rows, width, ends, last, most)]
    if len(rows) < report.rows.height:
        tables.append(Text(f"… and {report.rows.height - len(rows):,} more. Use --format csv for all.", style="dim"))
    return tables


_END_FROM: Final = {"iteration": 0, "summary": _MEDIUM}
"""Minimum width of the terminal for the text column at the end, where it differs from `_WIDE`."""


def _is_known(report: Report, name: str) -> bool:
    """Whether a column has a value in any row. GPU columns are null in profiles without GPU activity."""
    column = name.removeprefix("=")
    return column not in report.rows.columns or report.rows[column].null_count() < report.rows.height


def _end(by: str, text: str) -> Text:
    end = kernel_text(printable(text)) if by == "iteration" else Text(printable(text))
    end.stylize("dim")
    return end


def _column(report: Report, name: str, called: str, least: int, unit: Unit) -> Column:
    if report.by == "summary":
        return Column(called, _SUMMARY[name], least)
    if name.startswith("="):
        name = name[1:]
        own = unit_for(report.rows[name])
        return Column(f"{called} {own.name}", lambda row: own.show(row[name]), least)
    if name.endswith("_ns"):
        return Column(called, lambda row: unit.show(row[name]), least)
    if name == "share":
        return Column(called, lambda row: share(row["gpu_ns"], report.meta["gpu_ns"]), least)
    return Column(called, _shown(name), least)


_SUMMARY: Final[dict[str, Callable[[dict[str, Any]], str]]] = {
    "count": lambda row: count(row["count"]),
    "ns": lambda row: "" if row["ns"] is None else duration(row["ns"]),
    "whole_share": lambda row: "" if row["share"] is None else f"{100 * row['share']:.1f}%",
    "hidden_ns": lambda row: duration(row["hidden_ns"]) if row["hidden_ns"] else "",
}


def _shown(name: str) -> Callable[[dict[str, Any]], str]:
    def show(row: dict[str, Any]) -> str:
        value = row[name]
        if value is None:
            return ""
        if isinstance(value, bool):
            return "yes" if value else "no"
        if isinstance(value, float):
            return f"{100 * value:.1f}%"
        return count(value) if isinstance(value, int) else printable(value)

    return show


def _first(report: Report) -> str:
    return {"op_type": "Class", "group": "Path", "class": "Kind", "summary": "Item"}.get(report.by, "Layer")


def _label(report: Report, row: dict[str, Any]) -> Text:
    """Label of a row: layer, path, class or item."""
    if report.by == "group":
        return Text("  " * row["depth"] + printable(layer_path.last(row["group"])))
    if report.by == "summary":
        return Text(f"{row['section']}: ", style="dim").append(row["item"].replace("_", " "))
    name = {"op_type": "module", "class": "kind"}.get(report.by)
    if name is not None:
        return Text(printable(row[name]))
    label, beside = (row["layer"], row["module"]) if row["layer"] else title(row)
    text = Text(printable(label))
    return text.append(f" {printable(beside)}", style="cyan") if beside else text
