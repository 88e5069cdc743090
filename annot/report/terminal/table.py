"""Terminal report: the summary, a table of any view that fits the width, notes and advice."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar

import polars as pl
from rich.console import Console, Group, RenderableType
from rich.text import Text

from annot.analyze.cpu_parts import CPU_PARTS, GPU_PARTS
from annot.analyze.work.layer_work import not_counted
from annot.labels import layer_path
from annot.report.columns import Formatted, formatted, in_units
from annot.report.folds import shown_columns, shown_lines
from annot.report.hottest import HotRow, hot_columns, hottest_rows, model_class
from annot.report.layer_tree import MODEL, Line, other_lines, row_label
from annot.report.report import Report
from annot.report.terminal.layout import (
    FULL,
    LABEL,
    WIDE,
    Hanging,
    fitted_table,
    kernel_text,
    marked,
    notes,
    plain_text,
    verdict_lines,
)
from annot.report.totals import totals
from annot.report.units import amount, printable, share, unit_for

__all__ = [
    "NO_BOUND", "as_text", "hot_table", "kernel_table", "label_text", "print_rest", "print_table", "saving", "table_of",
    "with_printed_names",
]  # fmt: skip

_SHOWN: Final = 200
"""Number of single executions to print; files contain all."""
_PRINTED: Final = {"name": "short"}
_TITLES: Final = {"name": "Kernel", "op": "Operation"}
_BELOW: Final = 3
"""Pieces of advice below a table."""
_ROOM: Final = 28
_FOLDED: Final = 20
_SOURCE: Final = 18
"""Width that the columns of a table leave for its labels (characters), and those of a layer table with folds, and for
the file and line of a class."""
_OF_KERNELS: Final = ("calls", "gpu_ns", "main_ns", "mean_ns")
_R = TypeVar("_R")


def print_table(report: Report, console: Console, *, full_names: bool = False) -> None:
    """Print a report; the width of the console selects the columns. `full_names` prints kernels with their full names.

    The short names of kernels are those of the files, or among all kernels of the report.
    """
    report = replace(report, rows=with_printed_names(report.rows, full_names=full_names))
    above = verdict_lines(report.meta)
    below = _advice_below(report) if report.advice and report.view.layout != "advice" else []
    console.print(Group(*above, *_whole(report, console.width), *below))


def print_rest(report: Report, console: Console) -> None:
    """Print the totals, the table and the notes of a report, which follow an answer."""
    console.print(Group(Text(), *_whole(report, console.width)))


def _whole(report: Report, width: int) -> list[RenderableType]:
    above = [Hanging(f"{head}: ", text) for head, text in totals(report)]
    tables = [line for replacement in report.instead for line in (*_tables(replacement, width), Text())]
    if not tables or report.meta["ranges"]:
        tables += [*_tables(report, width), Text()]
    return [*above, Text(), *tables, *notes(report.meta)]


def with_printed_names(rows: pl.DataFrame, *, full_names: bool) -> pl.DataFrame:
    """Return rows of kernels with the names to print in the column `short`; other rows stay as they are."""
    if "name" not in rows.columns or ("short" in rows.columns and not full_names):
        return rows
    if full_names:
        return rows.with_columns(short="name")
    from annot.analyze.kernel_names import with_short_names

    return with_short_names(rows, rows["name"])


def as_text(report: Report) -> str:
    """Return a report as plain text, 120 characters wide."""
    return plain_text(partial(print_table, report)).rstrip("\n")


def label_text(row: Mapping[str, Any], label: str = "layer") -> Text:
    """Return the first cell of a row: the layer and its class, or the value of another column."""
    if label == "name":
        return kernel_text(printable(row_label(row, label)[0]))
    path, beside = row_label(row, label)
    text = Text(printable(path))
    return text.append(f" {printable(beside)}", style="cyan") if beside else text


def table_of(
    title: str, rows: Sequence[Mapping[str, Any]], columns: Sequence[Formatted[Mapping[str, Any]]], width: int,
    label: str = "layer", end: str = "", hottest: int | None = None,
) -> RenderableType:  # fmt: skip
    """Return a table with a line per row; `end` is the text column at the end of each line, or empty.

    `title` is the heading of the labels, `label` their column, `width` that of the terminal, and `hottest` the place of
    the row to mark.
    """
    shown = end and (width >= WIDE or end in ("name", "inputs"))
    ends = [_end(row[_PRINTED.get(end, end)], end) for row in rows] if shown else []
    # Only inputs tell the rows of an operator apart.
    end_room = width // 4 if end == "inputs" else 0
    most = width // 3 if end == "name" else None  # leave room for the name of the kernel
    labels = marked([_label(row, label) for row in rows], hottest)
    return fitted_table(title, labels, columns, rows, width, ends, end.capitalize(), most, _ROOM, end_room)


def _end(value: str | None, end: str) -> Text:
    text = kernel_text(printable(value or "")) if end == "name" else Text(printable(value or ""))
    text.stylize("dim")
    return text


def _label(row: Mapping[str, Any], label: str) -> Text:
    text = label_text(row, label)
    return text.append(" warm-up", style="dim") if label == "step" and row["warmup"] else text


def _tables(report: Report, width: int) -> list[RenderableType]:
    view, rows = report.view, report.tree_rows
    units = report.meta.get("matrix_units", "Tensor Cores")
    heading = view.heading.replace("Tensor Cores", units)
    if view.layout == "advice":
        return _advice_lines(rows.to_dicts(), report.meta) if rows.height else [Text(report.nothing, style="dim")]
    if report.nothing:
        return [Text(heading, style="bold"), Text(report.nothing, style="dim")]
    if view.layout == "tree":
        return _list(report, width) if report.is_list else _tree(report, width)
    single = view.group == "each"
    timed = rows.with_columns(main_ns=report.column) if report.column else rows  # tables show shares of this time
    shown = timed.head(_SHOWN if single else rows.height).to_dicts()
    columns = formatted([column for column in view.shown if report.knows(column.name)], shown, report.whole)
    columns = in_units(kept(columns, report.meta.get("verdict", "")), units)
    if view.label == "item":
        shown = [row | {"item": _item(row, units)} for row in shown]
    lines: list[RenderableType] = [
        Text(f"{heading}{report.scope}{_unit(report, shown)}", style="bold"),
        table_of(
            _TITLES.get(view.label, view.label.capitalize()),
            shown,
            columns,
            width,
            view.label,
            view.end,
            _hottest_row(report, shown),
        ),
    ]
    if len(shown) < rows.height:
        lines.append(Text(f"… and {rows.height - len(shown):,} more. --format csv prints all.", style="dim"))
    return lines + (_work_lines(report.rows) if view.key == "layer_work" else _roof_remark(report.rows))


def _roof_remark(rows: pl.DataFrame) -> list[RenderableType]:
    """The line below a table with shares of the roof above 100%: bytes count once, wherever they come from."""
    if "roof_share" not in rows.columns or not (rows["roof_share"] > 1).any():
        return []
    text = "Roof above 100%: the tensors come from a cache, or the device is faster than its peaks."
    return [Text(text, style="dim")]


def _item(row: Mapping[str, Any], units: str) -> str:
    """The name of an item of the summary; parts of the step have the same names as in sentences."""
    step_parts = {**GPU_PARTS, **CPU_PARTS}
    item = step_parts[row["item"]].name if row["section"] == "time" and row["item"] in step_parts else row["item"]
    return str(item.replace("tensor_cores", units).replace("Tensor Cores", units).replace("tc_", f"{units} "))


def _hottest_row(report: Report, rows: Sequence[Mapping[str, Any]]) -> int | None:
    """The place of the row with the most self time of a table of sums, or with the most time if it has no self time."""
    names = (report.time.replace("_ns", "_self_ns"), "self_ns", report.order)
    column = next((name for name in names if name in report.rows.columns), "")
    return _hottest(rows, lambda row: row[column]) if column and report.view.sums else None


def _unit(report: Report, rows: Sequence[Mapping[str, Any]]) -> str:
    """The unit that the time columns of a table share, and whether its times are per step."""
    timed = (column.name for column in report.view.shown if column.unit == "ns")
    names = [name for name in timed if name in report.rows.columns and report.knows(name)]
    times = [row[name] for name in names for row in rows if row[name] is not None]
    unit = f", {unit_for(times).name}" if times else ""
    return f"{unit}{report.each_step}"


def _tree(report: Report, width: int) -> list[RenderableType]:
    """The tree of layers, with the time of each phase side by side."""
    lines, others = shown_lines(report), other_lines(report.tree_rows, report.every)
    unit = unit_for(report.tree_rows[report.time])
    words = {"gpu_ns": "GPU time", "host_ns": "Host time"}
    heading = f"{words[report.time]} by layer{report.scope}, {unit.name}{report.each_step}"
    gap = [None] if lines and others else []
    rows = [*lines, *gap, *others]
    hottest, root = _hottest(rows, lambda line: line.get(report.order) if line else None), model_class(lines)
    labels = marked([_line_label(line, root) if line else Text() for line in rows], hottest)
    shapes = [Text(printable(line.input) if line else "", style="dim") for line in rows] if width >= FULL else []
    room = max(_FOLDED, width // 4) if any(line.members for line in lines) else LABEL
    columns = kept(shown_columns(report, lines), report.meta.get("verdict", ""))
    table = fitted_table("Layer", labels, columns, rows, width, shapes, room=room)
    return [Text(heading, style="bold"), table]


def _hottest(rows: Sequence[_R], time: Callable[[_R], float | None]) -> int | None:
    """The place of the row with the most time; None: no row has any."""
    times = [time(row) or 0 for row in rows]
    return times.index(max(times)) if any(times) else None


def kept(columns: Sequence[Formatted[_R]], verdict: str) -> list[Formatted[_R]]:
    """Return the columns of a table; those stay on narrow terminals of which the verdict speaks.

    These are shares, totals, and the phases or, for a GPU that waits for the CPU, the CPU time that it names.
    """
    words = {"Share", "Total", *(word.capitalize() for word in re.findall(r"forward|backward", verdict))}
    words |= {"Host"} if re.search("CPU|launches|synchronising|allocating", verdict.partition(": ")[2]) else set()
    return [replace(column, keep=column.title.partition(" ")[0] in words) for column in columns]


def _list(report: Report, width: int) -> list[RenderableType]:
    """The rows of the tree by self time, the longest first."""
    table, _ = hot_table(report, width)
    return [table]


def hot_table(report: Report, width: int, number: int | None = None) -> tuple[RenderableType, int]:
    """Return a table of the rows with the most self time, and their number."""
    rows = hottest_rows(report, number)
    labels = marked([*map(_hot_label, rows)], _hottest(rows, lambda row: row.total_ns))
    sources = [Text(printable(row.source if width >= FULL else row.source.rpartition("/")[2]), "dim") for row in rows]
    words = {"gpu_ns": "GPU self time", "host_ns": "Host self time"}
    unit = unit_for(row.total_ns for row in rows)
    title = f"{words[report.time]}{report.scope}, {unit.name}{report.each_step}"
    columns = hot_columns(report, rows, short=width < WIDE)
    return fitted_table(
        title,
        labels,
        columns,
        rows,
        width,
        sources,
        "Source",
        room=_ROOM,
        end_room=_SOURCE if width < FULL else 2 * _SOURCE,
    ), len(rows)


def _hot_label(row: HotRow) -> Text:
    label = Text(printable(row.path))
    if row.module:
        label.append(f" {printable(row.module)}", style="cyan")
    return label.append(f" ×{row.layers:,}") if row.layers > 1 else label


def kernel_table(report: Report, number: int, width: int) -> RenderableType:
    """Return a table of the longest kernels of a report by kernel."""
    rows = with_printed_names(report.rows.head(number), full_names=False).with_columns(main_ns=report.order).to_dicts()
    columns = formatted([column for column in report.view.shown if column.name in _OF_KERNELS], rows, report.whole)
    unit = unit_for(row[report.order] for row in rows)
    labels = marked([_label(row, "name") for row in rows], _hottest(rows, lambda row: row["main_ns"]))
    title = f"GPU time by kernel{report.scope}, {unit.name}{report.each_step}"
    return fitted_table(title, labels, columns, rows, width, room=_ROOM)


def _line_label(line: Line, root: str) -> Text:
    """The label of a line; a number follows the name of the layer around it, or the class `root` of the model."""
    above = layer_path.last(next(layer_path.around(line.key[0]), "")) or root
    label = Text("  " * line.depth + printable(layer_path.with_parent(line.label, above)))
    if line.module:
        label.append(f" {printable(line.module)}", style="cyan")
    return label.append(f" {line.count}") if line.count else label


def _work_lines(rows: pl.DataFrame) -> list[RenderableType]:
    """The lines below the table of expected work: totals, classes that are not counted, explanations of counters."""
    sums = rows.drop_nulls("flops").group_by("phase", maintain_order=True).agg(pl.col("flops", "bytes").sum())
    amounts = [f"{amount(flops)}FLOP and {amount(moved)}B {phase}" for phase, flops, moved in sums.iter_rows()]
    lines = [Text(), Text(f"Work: {', '.join(amounts)}")]
    unknown, outer = (", ".join(map(printable, classes)) for classes in not_counted(rows))
    if unknown:
        lines.append(Text(f"Not counted: {unknown}", style="yellow"))
    if outer:
        text = f"Only submodules counted (emit_ranges(model, ops=True) records the other operations): {outer}"
        lines.append(Text(text, style="dim"))
    if "explanation" in rows.columns:
        explained = rows.filter(pl.col("explanation") != "").iter_rows(named=True)
        lines += [Text(printable(f"{row['layer'] or MODEL} {row['phase']}: {row['explanation']}")) for row in explained]
    return [*lines]


def _advice_below(report: Report) -> list[RenderableType]:
    """Return the lines below a table: the advice that saves most, and the command that prints all of it."""
    rows, meta = report.advice, report.meta
    texts = [f"{printable(row['advice'])} Saves {saving(row['saves'], meta)}." for row in rows[:_BELOW]]
    more = len(rows) - _BELOW
    beside = f"{more} more, with reasons and code" if more > 0 else "Reasons and code"
    return [
        *(Hanging("Advice: ", text, "cyan") for text in texts),
        Text(f"{beside}: annot report … --by advice", style="dim"),
    ]


def _advice_lines(rows: list[dict[str, Any]], meta: Mapping[str, Any]) -> list[RenderableType]:
    """Return the advice as text: suggestion, saving, evidence, layers and code."""
    lines: list[RenderableType] = []
    for number, row in enumerate(rows, 1):
        lines.append(Hanging(f"{number}. ", printable(row["advice"]), "bold"))
        lines.append(Hanging("   Saves: ", saving(row["saves"], meta)))
        lines.append(Hanging("   Why: ", f"{printable(row['evidence'])}."))
        if row["where"]:
            lines.append(Hanging("   Where: ", printable(", ".join(row["where"]))))
        lines += [Text(f"   {printable(line)}", style="cyan") for line in row["code"].split("\n")]
        lines.append(Text())
    return lines[:-1]


NO_BOUND: Final = 0.9995
"""Saving from which the bound is the whole step in tables, which says nothing."""


def saving(saves: float, meta: Mapping[str, Any]) -> str:
    """Return the saving of a piece of advice, a share (0 to 1) of the time of a step or run, in words."""
    whole = "step" if meta["steps"] else "run"
    if saves >= NO_BOUND:
        return f"an unknown part of the {whole}"
    return f"at most {share(saves, 1)} of the {whole}" if saves else "no time by itself, but shows where time goes"
