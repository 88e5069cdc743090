"""Terminal report: a table that fits the width, followed by totals and notes."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final

from rich.console import Console, Group, RenderableType
from rich.text import Text

from annot.report.layer_tree import LAYER_PHASES, Line, layer_lines, other_lines
from annot.report.terminal.advice import advice_line, advice_lines, bottleneck_lines
from annot.report.terminal.layout import FULL, MEDIUM, NARROW, WIDE, Column, Hanging, fitted_table, kernel_text, notes
from annot.report.terminal.work import work_tables
from annot.report.units import Unit, count, duration, printable, share, unit_for
from annot.report.views import Report

__all__ = ["print_table"]


def print_table(report: Report, console: Console) -> None:
    """Print a report.

    Args:
        report: the report.
        console: output; its width selects the columns.
    """
    console.print(Group(*_tables(report, console.width), *_totals(report.meta)))


def _tables(report: Report, width: int) -> list[RenderableType]:
    if report.by == "work":
        return work_tables(report, width)
    if report.by == "advice":
        return advice_lines(report.rows.to_dicts())
    if report.by == "bottleneck":
        return bottleneck_lines(report.rows.to_dicts(), width)
    return _layers(report, width) if report.by == "layer" else _flat(report, width)


def _layers(report: Report, width: int) -> list[RenderableType]:
    lines, others = layer_lines(report.rows), other_lines(report.rows)
    time = report.time
    unit = unit_for(report.rows[time])
    phases = set().union(*(line.phases for line in lines))
    columns = _layer_columns(report, unit, phases)
    titles = {"gpu_ns": "GPU time", "host_ns": "Host time"}
    heading = Text(f"{titles[time]} by layer, {unit.name}", style="bold")
    gap = [None] if lines and others else []
    rows = [*lines, *gap, *others]
    shapes = [_shapes(line) if line else Text() for line in rows] if width >= FULL else []
    return [heading, fitted_table("Layer", [_label(line) for line in rows], columns, rows, width, shapes)]


def _layer_columns(report: Report, unit: Unit, phases: Collection[str]) -> list[Column]:
    """Columns of the layer table. Phases without rows get no column."""
    time, whole = report.time, report.meta[report.time]
    host = unit_for(report.rows["host_ns"])

    def timed(*phases: str) -> Callable[[Line], str]:
        return lambda line: unit.show(line.get(time, *phases))

    self_ns = time.replace("_ns", "_self_ns")
    columns = [Column(phase.capitalize(), timed(phase)) for phase in LAYER_PHASES if phase in phases]
    columns += [
        Column("Total", timed(), NARROW if phases else 0),
        Column("Self", lambda line: unit.show(line.get(self_ns)), WIDE),
        Column("Share", lambda line: share(line.get(time), whole)),
        Column("Calls", lambda line: count(_calls(line))),
    ]
    if time == "gpu_ns":
        columns += [
            Column("Busy", lambda line: unit.show(line.get("gpu_busy_ns")), MEDIUM),
            Column("Kernels", lambda line: count(line.get("kernels") or None), WIDE),
        ]
    if (report.rows["gpu_by_time_ns"] > 0).any():
        columns.append(Column("By time", lambda line: unit.show(line.get("gpu_by_time_ns") or None), MEDIUM))
    if time == "gpu_ns" and report.meta["host_ns"] is not None:
        columns.append(Column(f"Host {host.name}", lambda line: host.show(line.get("host_ns")), NARROW))
    return columns


def _calls(line: Line) -> int | None:
    """Number of forward calls of a layer, or of all calls without forward rows."""
    return line.get("calls", "forward") if "forward" in line.phases else line.get("calls")


def _label(line: Line | None) -> Text:
    if line is None:
        return Text()
    label = Text("  " * line.depth + printable(line.label))
    return label.append(f" {printable(line.module)}", style="cyan") if line.module else label


def _shapes(line: Line) -> Text:
    more = f" (+{len(line.shapes) - 1})" if len(line.shapes) > 1 else ""
    return Text(printable(line.shapes[0]) + more if line.shapes else "", style="dim")


_NUMBERS: Final[dict[str, tuple[tuple[str, str, int], ...]]] = {
    "module": (
        ("Phase", "phase", 0), ("Layers", "layers", NARROW), ("Calls", "calls", 0), ("Total", "time", 0),
        ("Self", "self", NARROW), ("Share", "share", 0), ("Kernels", "kernels", WIDE),
    ),
    "phase": (
        ("Calls", "calls", 0), ("Host", "host_ns", 0), ("GPU", "gpu_ns", 0), ("Share", "share", 0),
        ("Kernels", "kernels", NARROW), ("Copies", "copies", WIDE),
    ),
    "kernel": (
        ("Calls", "calls", 0), ("Total", "gpu_ns", 0), ("Share", "share", 0), ("Mean", "mean_ns", NARROW),
        ("Min", "min_ns", WIDE), ("Max", "max_ns", WIDE), ("Layers", "layers", NARROW), ("Kind", "kind", WIDE),
    ),
    "op": (
        ("Phase", "phase", 0), ("Calls", "calls", 0), ("Self", "self", 0), ("Share", "share", 0),
        ("Kernels", "kernels", NARROW), ("Host", "host_self_ns", NARROW),
    ),
    "step": (
        ("Batch", "batch", WIDE), ("Time", "host_ns", 0), ("Data", "data_ns", 0),
        ("Forward", "forward_ns", 0), ("Backward", "backward_ns", 0), ("Optimizer", "optimizer_ns", NARROW),
        ("GPU", "gpu_ns", NARROW),
    ),
}  # fmt: skip
_NAMES: Final = {"module": "module", "phase": "phase", "op": "op", "kernel": "name", "step": "step"}


def _flat(report: Report, width: int) -> list[RenderableType]:
    """A table with one line per row and the columns of `_NUMBERS`."""
    times = [name for name in report.rows.columns if name.endswith("_ns") and name not in _OTHER_UNIT]
    unit = unit_for(time for name in times for time in report.rows[name])
    columns = [
        _column(report, title, name, least, unit)
        for title, name, least in _NUMBERS[report.by]
        if _is_shown(name, report)
    ]
    heading = Text(f"Time by {report.by}, {unit.name}", style="bold")
    if report.rows.is_empty():
        return [heading, Text(_EMPTY[report.by], style="dim")]
    warm = report.rows["warmup"] if report.by == "step" else [False] * report.rows.height
    names = zip(report.rows[_NAMES[report.by]], warm, strict=True)
    label = kernel_text if report.by == "kernel" else Text
    labels = [label(printable(str(name))).append(" warm-up" if mark else "", style="dim") for name, mark in names]
    return [heading, fitted_table(report.by.capitalize(), labels, columns, report.rows.to_dicts(), width)]


_EMPTY: Final = {
    "module": "No module classes were recorded. Use emit_ranges(model).",
    "phase": "No ranges were recorded.",
    "op": "No operations were recorded. Use torch.profiler or emit_nvtx.",
    "kernel": "No GPU activity was recorded.",
    "step": "No steps were recorded. Use `for … in batches(loader)`.",
}


_OTHER_UNIT: Final = ("start_ns", "mean_ns", "min_ns", "max_ns")


def _is_shown(name: str, report: Report) -> bool:
    """Whether the profile has data for a column."""
    if name in ("gpu_ns", "kernels", "copies"):
        return report.time == "gpu_ns"
    return not name.startswith("host_") or report.meta["host_ns"] is not None


def _column(report: Report, title: str, name: str, least: int, unit: Unit) -> Column:
    time, whole = report.column, report.meta[report.time]
    if name == "share":
        return Column(title, lambda row: share(row[time], whole), least)
    column = {"time": time, "self": report.time.replace("_ns", "_self_ns")}.get(name, name)
    if column in _OTHER_UNIT:  # much smaller than the totals: needs its own unit
        unit = unit_for(report.rows[column])
        title = f"{title} {unit.name}"
    if column.endswith("_ns"):
        return Column(title, lambda row: unit.show(row[column]), least)
    if column in ("phase", "kind"):
        return Column(title, lambda row: str(row[column]), least)
    return Column(title, lambda row: count(row[column]), least)


def _totals(meta: dict[str, Any]) -> list[RenderableType]:
    lines: list[RenderableType] = [Text()]
    if meta["kernels"] or meta["copies"]:
        lines.append(Text(_device_line(meta)))
    lines.append(Text(_host_line(meta)))
    if meta["steps"]:
        lines.append(Hanging("Steps: ", _step_line(meta)))
    if meta.get("advice"):
        lines.append(advice_line(meta["advice"]))
    return [*lines, *notes(meta)]


def _device_line(meta: dict[str, Any]) -> str:
    whole = meta["gpu_ns"]
    parts = [
        f"{duration(meta[key])} {word} ({share(meta[key], whole) or '0.0%'})"
        for key, word in (("attributed_gpu_ns", "in ranges"), ("unattributed_gpu_ns", "unattributed"))
    ]
    warmup = f", {duration(meta['warmup_gpu_ns'])} of it in warm-up" if meta.get("warmup_gpu_ns") else ""
    return f"GPU: {duration(whole)} = {parts[0]} + {parts[1]}{warmup}"


def _host_line(meta: dict[str, Any]) -> str:
    threads = "1 thread" if meta["threads"] == 1 else f"{meta['threads']} threads"
    ranges = f"{'1 range' if meta['ranges'] == 1 else format(meta['ranges'], ',') + ' ranges'} on {threads}"
    times = meta["host_ns"]
    return f"Host: times unknown, {ranges}" if times is None else f"Host: {duration(times)} in {ranges}"


def _step_line(meta: dict[str, Any]) -> str:
    """Number of steps, how they were found, and their time without the warm-up."""
    times, warmup = meta["step_ns"], ""
    steps = f"{meta['steps']:,} ({meta['steps_found_by']})"
    if times is None:
        return steps
    if times["warmup"]:
        warmup = f", excluding {times['warmup']:,} warm-up step{'' if times['warmup'] == 1 else 's'}"
    if meta["steps"] - times["warmup"] == 1:
        return f"{steps}, {duration(times['median'])}{warmup}"
    median, iqr, least, most = (duration(times[name]) for name in ("median", "iqr", "min", "max"))
    if least.split()[1:] == most.split()[1:]:  # same unit: show it once
        least = least.split()[0]
    return f"{steps}, median {median}, IQR {iqr}, {least} to {most}{warmup}"
