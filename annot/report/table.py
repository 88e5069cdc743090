"""A report on the terminal: a table that fits its width, and below it the totals and what is missing."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.segment import Segment
from rich.text import Text

from annot.report import Report
from annot.report.tree import LAYER_PHASES, Line, layer_lines, other_lines
from annot.report.units import Unit, count, duration, printable, share, unit_for

__all__ = ["Column", "Hanging", "fitted_table", "kernel_text", "notes", "print_table"]

_NARROW, _MEDIUM, _WIDE, _FULL = 76, 90, 100, 120
_LABEL: Final = 12  # columns left for names, at least


@dataclass(frozen=True, slots=True)
class Column:
    """A column of numbers: how to read it, and the width of the terminal from which it is shown."""

    title: str
    show: Callable[[Any], str]
    least: int = 0


def print_table(report: Report, console: Console) -> None:
    """Print a report.

    Args:
        report: what to show.
        console: where to; its width decides how many columns there are.
    """
    console.print(Group(*_tables(report, console.width), *_totals(report.meta)))


def _tables(report: Report, width: int) -> list[RenderableType]:
    # These tables are made of what stands in this module.
    from annot.report.advice import advice_lines, bottleneck_lines
    from annot.report.work import work_tables

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
    shapes = [_shapes(line) if line else Text() for line in rows] if width >= _FULL else []
    return [heading, fitted_table("Layer", [_label(line) for line in rows], columns, rows, width, shapes)]


def _layer_columns(report: Report, unit: Unit, phases: Collection[str]) -> list[Column]:
    """The columns of the layer table; without layers there is no forward and backward."""
    time, whole = report.time, report.meta[report.time]
    host = unit_for(report.rows["host_ns"])

    def timed(*phases: str) -> Callable[[Line], str]:
        return lambda line: unit.show(line.get(time, *phases))

    self_ns = time.replace("_ns", "_self_ns")
    columns = [Column(phase.capitalize(), timed(phase)) for phase in LAYER_PHASES if phase in phases]
    columns += [
        Column("Total", timed(), _NARROW if phases else 0),
        Column("Self", lambda line: unit.show(line.get(self_ns)), _WIDE),
        Column("Share", lambda line: share(line.get(time), whole)),
        Column("Calls", lambda line: count(_calls(line))),
    ]
    if time == "gpu_ns":
        columns += [
            Column("Busy", lambda line: unit.show(line.get("gpu_busy_ns")), _MEDIUM),
            Column("Kernels", lambda line: count(line.get("kernels") or None), _WIDE),
        ]
    if (report.rows["gpu_by_time_ns"] > 0).any():
        columns.append(Column("By time", lambda line: unit.show(line.get("gpu_by_time_ns") or None), _MEDIUM))
    if time == "gpu_ns" and report.meta["host_ns"] is not None:
        columns.append(Column(f"Host {host.name}", lambda line: host.show(line.get("host_ns")), _NARROW))
    return columns


def _calls(line: Line) -> int | None:
    """How often a layer ran: its forward calls, if there are any."""
    return line.get("calls", "forward") if "forward" in line.phases else line.get("calls")


def _label(line: Line | None) -> Text:
    if line is None:
        return Text()
    label = Text("  " * line.depth + printable(line.label))
    return label.append(f" {printable(line.module)}", style="cyan") if line.module else label


def _shapes(line: Line) -> Text:
    more = f" (+{len(line.shapes) - 1})" if len(line.shapes) > 1 else ""
    return Text(printable(line.shapes[0]) + more if line.shapes else "", style="dim")


def fitted_table(
    title: str,
    labels: Sequence[Text],
    columns: Sequence[Column],
    rows: Sequence[Any],
    width: int,
    shapes: Sequence[Text] = (),
    last: str = "Input",
    most: int | None = None,
) -> RenderableType:
    """Return a table in which every number is whole, whatever is left for labels and shapes; a row of None is a gap.

    Args:
        title: what the labels are.
        labels: the beginning of each row.
        columns: the numbers; only those are shown that the width allows and that are known of any row.
        rows: what the columns show.
        width: of the terminal.
        shapes: the end of each row; empty: none has one.
        last: what the ends are.
        most: how wide the labels may be where there are ends; None: as wide as they need.
    """
    shown = [column for column in columns if width >= column.least]
    cells = [[column.show(row) if row is not None else "" for column in shown] for row in rows]
    known = [place for place in range(len(shown)) if any(row[place] for row in cells)]
    shown, cells = [shown[place] for place in known], [[row[place] for place in known] for row in cells]
    gap = 2 if width >= _NARROW else 1
    widths = [max([len(column.title), *(len(row[place]) for row in cells)]) for place, column in enumerate(shown)]
    left = width - sum(widths) - gap * len(shown)
    label = max(_LABEL, min(left, most or left, max((label.cell_len for label in labels), default=0)))
    heads = [column.title for column in shown]
    ends: Sequence[Text | None] = [None] * len(cells)
    input_ = (
        max(len(last), min(max((text.cell_len for text in shapes), default=0), left - label - gap))
        if any(shapes)
        else 0
    )
    if input_:
        ends = shapes
    lines = [_Line(Text(title, "bold"), heads, Text(last, "bold") if input_ else None, "bold")]
    lines += [_Line(labels[number], row, ends[number]) for number, row in enumerate(cells)]
    return _Table(lines, label, widths, input_, gap)


@dataclass(frozen=True, slots=True)
class _Line:
    label: Text
    numbers: Sequence[str]
    end: Text | None
    style: str = ""


@dataclass(frozen=True, slots=True)
class _Table:
    """Lines whose widths are known. A table of rich measures every cell anew: 0.3 s for 700 lines, this takes 0.03."""

    lines: Sequence[_Line]
    label: int
    widths: Sequence[int]
    end: int
    gap: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        space = " " * self.gap
        for line in self.lines:
            yield from _drawn(_cut(line.label, self.label, pad=True), console)
            numbers = (space + number.rjust(wide) for number, wide in zip(line.numbers, self.widths, strict=True))
            yield Segment("".join(numbers), console.get_style(line.style) if line.style else None)
            if line.end is not None:
                yield Segment(space)
                yield from _drawn(_cut(line.end, self.end), console)
            yield Segment.line()


def _drawn(text: Text, console: Console) -> Iterable[Segment]:
    """The segments of a text; without spans, `Text.render` forgets the style of the whole."""
    return Segment.apply_style(text.render(console), console.get_style(text.style))


def _cut(text: Text, width: int, *, pad: bool = False) -> Text:
    """Shorten a text in its middle, for paths begin alike, or at its end, if its `overflow` is said to be ellipsis."""
    if text.cell_len <= width:
        text = text.copy()
        text.pad_right(width - text.cell_len if pad else 0)
        return text
    if text.overflow == "ellipsis":
        text = text.copy()
        text.truncate(width, overflow="ellipsis", pad=pad)
        return text
    begin, end = text.copy(), text.copy()
    begin.truncate((width - 1) // 2)
    while end.cell_len > width - 1 - begin.cell_len:
        end = end[max(1, len(end) - (width - 1 - begin.cell_len)) :]
    short = begin.append("…").append(end)
    short.pad_right(width - short.cell_len)
    return short


_NUMBERS: Final[dict[str, tuple[tuple[str, str, int], ...]]] = {
    "module": (
        ("Phase", "phase", 0), ("Layers", "layers", _NARROW), ("Calls", "calls", 0), ("Total", "time", 0),
        ("Self", "self", _NARROW), ("Share", "share", 0), ("Kernels", "kernels", _WIDE),
    ),
    "phase": (
        ("Calls", "calls", 0), ("Host", "host_ns", 0), ("GPU", "gpu_ns", 0), ("Share", "share", 0),
        ("Kernels", "kernels", _NARROW), ("Copies", "copies", _WIDE),
    ),
    "kernel": (
        ("Calls", "calls", 0), ("Total", "gpu_ns", 0), ("Share", "share", 0), ("Mean", "mean_ns", _NARROW),
        ("Min", "min_ns", _WIDE), ("Max", "max_ns", _WIDE), ("Layers", "layers", _NARROW), ("Kind", "kind", _WIDE),
    ),
    "op": (
        ("Phase", "phase", 0), ("Calls", "calls", 0), ("Self", "self", 0), ("Share", "share", 0),
        ("Kernels", "kernels", _NARROW), ("Host", "host_self_ns", _NARROW),
    ),
    "step": (
        ("Batch", "batch", _WIDE), ("Time", "host_ns", 0), ("Data", "data_ns", 0),
        ("Forward", "forward_ns", 0), ("Backward", "backward_ns", 0), ("Optimizer", "optimizer_ns", _NARROW),
        ("GPU", "gpu_ns", _NARROW),
    ),
}  # fmt: skip
_NAMES: Final = {"module": "module", "phase": "phase", "op": "op", "kernel": "name", "step": "step"}


def _flat(report: Report, width: int) -> list[RenderableType]:
    """A table with a line per row; which numbers it has stands in `_NUMBERS`."""
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


def kernel_text(name: str) -> Text:
    """Return a kernel without what half of them begin with; what is too long loses its arguments."""
    return Text(_NAMESPACES.sub("", name), overflow="ellipsis")


_NAMESPACES: Final = re.compile(r"^void |\bat::native::|\(anonymous namespace\)::")

_EMPTY: Final = {
    "module": "no range names a module class: use emit_ranges(model)",
    "phase": "no ranges",
    "op": "no range is an operation: record with torch.profiler or emit_nvtx",
    "kernel": "the profile has no device work",
    "step": "no steps: use `for … in batches(loader)`",
}


_OTHER_UNIT: Final = ("start_ns", "mean_ns", "min_ns", "max_ns")


def _is_shown(name: str, report: Report) -> bool:
    """Whether the profile knows anything of a column."""
    if name in ("gpu_ns", "kernels", "copies"):
        return report.time == "gpu_ns"
    return not name.startswith("host_") or report.meta["host_ns"] is not None


def _column(report: Report, title: str, name: str, least: int, unit: Unit) -> Column:
    time, whole = report.column, report.meta[report.time]
    if name == "share":
        return Column(title, lambda row: share(row[time], whole), least)
    column = {"time": time, "self": report.time.replace("_ns", "_self_ns")}.get(name, name)
    if column in _OTHER_UNIT:  # far below the totals
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
        from annot.report.advice import advice_line

        lines.append(advice_line(meta["advice"]))
    return [*lines, *notes(meta)]


def notes(meta: dict[str, Any]) -> list[RenderableType]:
    """Return a line per note of a run."""
    return [Hanging("Note: ", printable(note), "yellow") for note in meta["notes"]]


@dataclass(frozen=True, slots=True)
class Hanging:
    """A text behind a word; where it takes several lines, they all begin behind the word."""

    head: str
    text: str
    style: str = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        lines = Text(self.text, self.style).wrap(console, max(options.max_width - len(self.head), _LABEL))
        for number, line in enumerate(lines):
            line.rstrip()
            yield Text(" " * len(self.head) if number else self.head, self.style).append_text(line)


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
    return f"Host: no times, {ranges}" if meta["host_ns"] is None else f"Host: {duration(meta['host_ns'])} in {ranges}"


def _step_line(meta: dict[str, Any]) -> str:
    """How many steps there are, how they were found, and how long those after the warm-up took."""
    spread, warmup = meta["step_ns"], ""
    said = f"{meta['steps']:,} ({meta['steps_found_by']})"
    if spread is None:
        return said
    if spread["warmup"]:
        warmup = f", without {spread['warmup']:,} of warm-up"
    if meta["steps"] - spread["warmup"] == 1:
        return f"{said}, {duration(spread['median'])}{warmup}"
    median, iqr, least, most = (duration(spread[name]) for name in ("median", "iqr", "min", "max"))
    if least.split()[1:] == most.split()[1:]:  # one unit is enough for both
        least = least.split()[0]
    return f"{said}, median {median}, spread {iqr}, {least} to {most}{warmup}"
