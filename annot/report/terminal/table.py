"""Tables and answers in a terminal: the verdict, a table of any view that fits the width, totals, notes and advice."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

import polars as pl
from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.text import Text

from annot.analyze.cpu_parts import STEP_PARTS
from annot.analyze.peaks import Peaks
from annot.analyze.tensor_cores import matrix_units
from annot.analyze.work.layer_work import not_counted
from annot.attribution.layer_tables import LAYER_PHASES
from annot.labels import layer_path
from annot.labels.tag import MODEL
from annot.report.columns import TREE, Column, Formatted, formatted, head, in_units, of_names
from annot.report.table import Table
from annot.report.terminal.hot_rows import HotRow, hottest_rows, model_class, named_rows, summed_rows
from annot.report.terminal.layout import (
    FULL,
    HOTTEST,
    LABEL,
    LINES,
    WIDE,
    Ends,
    Hanging,
    Sheet,
    as_lines,
    cut_lines,
    kernel_text,
    left_out,
    named_text,
    notes,
    one_line,
    plain_text,
    print_blocks,
    verdict_in_lines,
    verdict_lines,
)
from annot.report.totals import parts_of_time, peaks_text, totals
from annot.report.tree import Line, Spread, row_label, spread_of
from annot.report.units import amount, count, printable, share, unit_for
from annot.report.views import ROOFLINE_COLUMNS, find_view

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
_OF_KERNELS: Final = ("calls", "gpu_ns=Total", Column("main_ns", "Share", "of total"), "mean_ns")
_ADVICE: Final = 2
_TOTALS: Final = 4
"""Maximum numbers of pieces of advice and of totals in an answer."""
_PHASES: Final = {"forward": "Fwd", "backward": "Bwd", "recompute": "Re"}
"""Phases of a layer, and their titles on narrow terminals."""
_SUMMED: Final = ("gpu_self_ns", "host_self_ns", "gpu_by_time_ns", "kernels")
"""Columns of which the line for other lines of a tree has the sums."""
_R = TypeVar("_R")


def print_table(table: Table, console: Console, *, full_names: bool = False) -> None:
    """Print a table; the width of the console selects the columns. `full_names` prints kernels with their full names.

    The short names of kernels are those of the files, or among all kernels of the table.
    """
    table = replace(table, rows=with_printed_names(table.rows, full_names=full_names))
    below = _advice_below(table) if table.advice and table.view.layout != "advice" else []
    console.print(Group(*verdict_lines(table.meta), *_whole(table, console.width), *below))


def print_rest(table: Table, console: Console) -> None:
    """Print the totals, the table and the notes, which follow an answer."""
    console.print(Group(Text(), *_whole(table, console.width)))


def as_text(table: Table) -> str:
    """Return a table as plain text, 120 characters wide."""
    return plain_text(partial(print_table, table)).rstrip("\n")


def _whole(table: Table, width: int) -> list[RenderableType]:
    above = [Hanging(f"{name}: ", text) for name, text in totals(table)]
    tables = [line for replacement in table.instead for line in (*drawn(replacement, width), Text())]
    if not tables or table.meta["ranges"]:
        tables += [*drawn(table, width), Text()]
    return [*above, Text(), *tables, *notes(table.meta)]


def with_printed_names(rows: pl.DataFrame, *, full_names: bool) -> pl.DataFrame:
    """Return rows of kernels with the names to print in the column `short`; other rows stay as they are."""
    if "name" not in rows.columns or ("short" in rows.columns and not full_names):
        return rows
    if full_names:
        return rows.with_columns(short="name")
    from annot.analyze.kernel_names import with_short_names

    return with_short_names(rows, rows["name"])


def label_text(row: Mapping[str, Any], label: str = "layer") -> Text:
    """Return the first cell of a row: the layer and its class, or the value of another column."""
    path, beside = row_label(row, label)
    if label == "name":
        return kernel_text(printable(path))
    text = named_text(path, beside)
    return text.append(" warm-up", style="dim") if label == "step" and row.get("warmup") else text


def drawn(table: Table, width: int, most: int | None = _SHOWN) -> list[RenderableType]:
    """Return the table with its heading, and the lines that belong to it.

    Args:
        table: the table.
        width: width of the terminal, which selects the words.
        most: number of single executions; None: all.
    """
    view, units = table.view, table.meta.get("matrix_units", "Tensor Cores")
    heading = view.heading.replace("Tensor Cores", units)
    if view.layout == "advice" and not table.nothing:
        return _advice_lines(table.rows.to_dicts(), table.meta)
    if table.nothing:
        above = [] if view.layout == "advice" else [Text(heading, style="bold")]
        return [*above, Text(table.nothing, style="dim")]
    if table.is_list:
        return [hot_sheet(table, hottest_rows(table), width)]
    return [_tree(table, width)] if table.is_tree else _flat(table, heading, units, width, most)


def _flat(table: Table, heading: str, units: str, width: int, most: int | None) -> list[RenderableType]:
    """A table with a line per row."""
    view = table.view
    shown, columns = table.cells(most if view.group == "each" else None)
    columns = in_units(_kept(columns, table.meta.get("verdict", "")), units)
    if view.label == "item":
        shown = [row | {"item": _item(row, units)} for row in shown]
    label = _TITLES.get(view.label, view.label.capitalize())
    own = next((name for name in (table.own_time, "self_ns", table.order) if name in table.rows.columns), "")
    hottest = _hottest([row[own] for row in shown]) if own and view.sums else None
    sheet = _rows_sheet(label, shown, columns, width, view.label, view.end, hottest)
    lines: list[RenderableType] = [
        replace(
            sheet,
            heading=f"{heading}{table.scope}{_unit(table, shown)}{table.each_step}",
            sizes=[row.get(table.order) or 0 for row in shown] if table.order else (),
            others=(lambda places: table.summed([shown[place] for place in places])) if view.sums else None,
        )
    ]
    if further := table.shown.height - len(shown):
        lines.append(Text(f"… and {further:,} more. --format csv prints all.", style="dim"))
    if view.key == "layer_work":
        return lines + _work_lines(table.rows)
    if "roof_share" in table.rows.columns and (table.rows["roof_share"] > 1).any():  # bytes count once
        text = "Roof above 100%: the tensors come from a cache, or the device is faster than its peaks."
        lines.append(Text(text, style="dim"))
    return lines


def _rows_sheet(
    title: str,
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[Formatted[Mapping[str, Any]]],
    width: int,
    label: str = "layer",
    end: str = "",
    hottest: int | None = None,
) -> Sheet:
    """A table with a line per row; `end` is the text column at the end of each line, or empty.

    `title` is that of the labels, `label` their column, `width` that of the terminal, and `hottest` the place of the
    row to mark.
    """
    texts = []
    if end and (width >= WIDE or end in ("name", "inputs")):
        values = [printable(row[_PRINTED.get(end, end)] or "") for row in rows]
        texts = [kernel_text(value, "dim") if end == "name" else Text(value, "dim") for value in values]
    ends = Ends(
        texts,
        end.capitalize(),
        most=width // 3 if end == "name" else None,  # leave room for the name of the kernel
        room=width // 4 if end == "inputs" else 0,  # only inputs tell the rows of an operator apart
    )
    labels = [label_text(row, label) for row in rows]
    return Sheet(title=title, labels=labels, columns=columns, rows=rows, ends=ends, room=_ROOM, hottest=hottest)


def _item(row: Mapping[str, Any], units: str) -> str:
    """The name of an item of the summary; parts of the step have the same names as in sentences."""
    item = STEP_PARTS[row["item"]].name if row["section"] == "time" and row["item"] in STEP_PARTS else row["item"]
    return str(item.replace("tensor_cores", units).replace("Tensor Cores", units).replace("tc_", f"{units} "))


def _unit(table: Table, rows: Sequence[Mapping[str, Any]]) -> str:
    """The unit that the time columns of a table share."""
    timed = (column.name for column in table.view.shown if column.unit == "ns")
    names = [name for name in timed if name in table.rows.columns and table.knows(name)]
    times = [row[name] for name in names for row in rows if row[name] is not None]
    return f", {unit_for(times).name}" if times else ""


def _hottest(times: Sequence[float | None]) -> int | None:
    """The place of the row with the most time; None: no row has any."""
    sizes = [time or 0 for time in times]
    return sizes.index(max(sizes)) if any(sizes) else None


def _kept(columns: Sequence[Formatted[_R]], verdict: str) -> list[Formatted[_R]]:
    """The columns of a table; those stay on narrow terminals of which the verdict speaks.

    These are shares, totals, and the phases or, for a GPU that waits for the CPU, the CPU time that it names.
    """
    words = {"Share", "Total", *(word.capitalize() for word in re.findall(r"forward|backward", verdict))}
    words |= {"Host"} if re.search("CPU|launches|synchronising|allocating", verdict.partition(": ")[2]) else set()
    return [replace(column, keep=column.title.partition(" ")[0] in words) for column in columns]


def _tree(table: Table, width: int) -> Sheet:
    """The tree of layers, with the time of each phase side by side."""
    lines, others = table.tree, table.others
    gap = [None] if lines and others else []
    rows = [*lines, *gap, *others]
    hottest, root = _hottest([line.get(table.own_time) if line else None for line in rows]), model_class(lines)
    shapes = [Text(printable(line.input) if line else "", style="dim") for line in rows] if width >= FULL else []
    names = [row.label.plain for row in named_rows(table)]
    names[len(lines) : len(lines)] = [""] * len(gap)
    return Sheet(
        title="Layer",
        labels=[_line_label(line, root) if line else Text() for line in rows],
        columns=_kept(tree_columns(table), table.meta.get("verdict", "")),
        rows=rows,
        ends=Ends(shapes),
        room=max(_FOLDED, width // 4) if any(line.members for line in lines) else LABEL,
        heading=_time_heading(table, "time by layer", unit_for(table.shown[table.time]).name),
        hottest=hottest,
        names=names,
        sizes=[line.get(table.time) or 0 if line else 0 for line in rows],
        others=lambda places: _other_line([rows[place] for place in places]),
    )


def _time_heading(table: Table, what: str, unit: str) -> str:
    clock = "GPU" if table.time == "gpu_ns" else "Host"
    return f"{clock} {what}{table.scope}, {unit}{table.each_step}"


def tree_columns(table: Table) -> list[Formatted[Line]]:
    """Return the columns of the layer tree. Phases that no line has get no column.

    With folds, the spread of their layers comes before the self time.
    """
    time, lines, rows = table.time, table.tree, table.shown
    spreads = {id(line): spread for line in lines if line.members and (spread := spread_of(line, time))}
    unit, host = unit_for(rows[time]), unit_for(rows["host_ns"])
    of_folds = unit_for(spread.slowest for spread in spreads.values())
    spread_unit = "" if of_folds.name == unit.name else f" {of_folds.name}"
    own_units = {"host": f" {host.name}", "median": spread_unit, "slowest": spread_unit, "iqr": spread_unit}

    def timed(column: str, *phases: str) -> Callable[[Line], str]:
        return lambda line: unit.show(line.get(column, *phases))

    def spread_text(show: Callable[[Spread], str]) -> Callable[[Line], str]:
        return lambda line: show(spreads[id(line)]) if id(line) in spreads else ""

    shows = {
        phase: timed(time, phase) for phase in LAYER_PHASES if any(line.get(time, phase) is not None for line in lines)
    }
    least = {} if shows else {"total": 0}
    own = {"self": timed(table.own_time)}
    shows["total"] = timed(time)
    shows |= {} if spreads else own
    shows["share"] = lambda line: share(line.get(time), table.whole or 0)
    if spreads:
        shows["median"] = spread_text(lambda spread: of_folds.show(spread.median))
        shows["slowest"] = spread_text(lambda spread: of_folds.show(spread.slowest))
        shows["index"] = spread_text(lambda spread: spread.index)
        shows["iqr"] = spread_text(lambda spread: of_folds.show(spread.iqr))
        shows |= own
    shows["calls"] = lambda line: count(line.get("calls", "forward") or line.get("calls"))  # of the forward, or all
    if time == "gpu_ns":
        shows["busy"] = timed("gpu_busy_ns")
        shows["kernels"] = lambda line: count(line.get("kernels") or None)
    if (rows["gpu_by_time_ns"] > 0).any():
        shows["by_time"] = lambda line: unit.show(line.get("gpu_by_time_ns") or None)
    if time == "gpu_ns" and table.meta["host_ns"] is not None:
        shows["host"] = lambda line: host.show(line.get("host_ns"))
    return [
        head(
            column,
            show,
            least.get(name),
            f"{column.title}{own}",
            unit=unit.name if "ns" in column.unit and not own else "",
        )
        for name, show in shows.items()
        for column, own in [(TREE[name], own_units.get(name, ""))]
    ]


def _line_label(line: Line, root: str) -> Text:
    """The label of a line; a number follows the name of the layer around it, or the class `root` of the model."""
    above = layer_path.last(next(layer_path.around(line.key[0]), "")) or root
    label = Text("  " * line.depth).append_text(named_text(layer_path.with_parent(line.label, above), line.module))
    return label.append(f" {line.count}") if line.count else label


def hot_sheet(table: Table, rows: Sequence[HotRow], width: int) -> Sheet:
    """Return a list of rows by self time; the width of the terminal selects the words."""
    unit = unit_for(row.total_ns for row in rows)

    def of_phase(phase: str) -> Callable[[HotRow], str]:
        return lambda row: unit.show(row.self_ns.get(phase))

    phases = [phase for phase in LAYER_PHASES if any(phase in row.self_ns for row in rows)]
    titles = _PHASES if width < WIDE else {phase: TREE[phase].title for phase in phases}
    columns = [
        *(Formatted(titles[phase], of_phase(phase), unit=unit.name) for phase in phases),
        head(TREE["self"], lambda row: unit.show(row.total_ns), least=0, keep=True, unit=unit.name),
        head(TREE["share"], lambda row: share(row.total_ns, table.whole or 0), keep=True),
        Formatted("Mostly in", lambda row: row.mostly, 76),
        head(TREE["calls"], lambda row: count(row.calls or None), least=100),
        Formatted("Bound", lambda row: row.bound or "", 100 if any(row.source for row in rows) else 76),
    ]
    sources = [Text(printable(row.source if width >= FULL else row.source.rpartition("/")[2]), "dim") for row in rows]
    times = [row.total_ns for row in rows]
    return Sheet(
        title=_time_heading(table, "self time", unit.name),
        labels=[row.label for row in rows],
        columns=columns,
        rows=rows,
        ends=Ends(sources, "Source", room=_SOURCE if width < FULL else 2 * _SOURCE),
        room=_ROOM,
        hottest=_hottest(times),
        sizes=times,
        others=lambda places: summed_rows([rows[place] for place in places]),
    )


def _other_line(lines: Sequence[Line | None]) -> Line:
    """One line of the tree for several: the sums of their self times and kernels, not the times of layers inside."""
    phases: dict[str, dict[str, Any]] = {}
    for row in (row for line in lines if line for row in [line.phases]):
        for phase, values in row.items():
            sums = phases.setdefault(phase, dict.fromkeys(values))
            for name in _SUMMED:
                if values.get(name) is not None:
                    sums[name] = (sums[name] or 0) + values[name]
    return Line("", "", phases=phases)  # type: ignore[arg-type]


def _kernel_table(table: Table, number: int, width: int) -> RenderableType:
    """A list of the longest kernels of a table by kernel."""
    rows, columns = replace(table, view=replace(table.view, columns=_OF_KERNELS)).cells(number)
    heading = _time_heading(table, "time by kernel", unit_for(row["main_ns"] for row in rows).name)
    return _rows_sheet(heading, rows, columns, width, "name", hottest=_hottest([row["main_ns"] for row in rows]))


def _work_lines(rows: pl.DataFrame) -> list[RenderableType]:
    """The lines below the table of expected work: totals, classes that are not counted, explanations of counters."""
    sums = rows.drop_nulls("flops").group_by("phase", maintain_order=True).agg(pl.col("flops", "bytes").sum())
    amounts = [f"{amount(flops)}FLOP and {amount(moved)}B {phase}" for phase, flops, moved in sums.iter_rows()]
    lines = [Text(), Text(f"Work: {', '.join(amounts)}")]
    unknown, outer = (", ".join(map(printable, classes)) for classes in not_counted(rows))
    if unknown:
        lines.append(Text(f"Not counted: {unknown}", style="yellow"))
    if outer:
        text = f"Only submodules counted, and with emit_ranges(model, ops=True) operations that have a formula: {outer}"
        lines.append(Text(text, style="dim"))
    if "explanation" in rows.columns:
        explained = rows.filter(pl.col("explanation") != "").iter_rows(named=True)
        lines += [Text(printable(f"{row['layer'] or MODEL} {row['phase']}: {row['explanation']}")) for row in explained]
    return [*lines]


def _advice_below(table: Table) -> list[RenderableType]:
    """The lines below a table: the advice that saves most, and the command that prints all of it."""
    rows, meta = table.advice, table.meta
    texts = [f"{printable(row['advice'])} Saves {saving(row['saves'], meta)}.{_tried(row)}" for row in rows[:_BELOW]]
    more = len(rows) - _BELOW
    beside = f"{more} more, with reasons and code" if more > 0 else "Reasons and code"
    return [
        *(Hanging("Advice: ", text, "cyan") for text in texts),
        Text(f"{beside}: annot report … --by advice", style="dim"),
    ]


class AdviceItem(NamedTuple):
    """A piece of advice in words: the suggestion, named facts about it, its code, and named facts about trials."""

    advice: str
    facts: Sequence[tuple[str, str]]
    code: str
    trials: Sequence[tuple[str, str]]


def advice_items(rows: Sequence[Mapping[str, Any]], meta: Mapping[str, Any]) -> Iterator[AdviceItem]:
    """Yield the words of rows of advice."""
    for row in rows:
        facts = [("Saves", saving(row["saves"], meta)), ("Why", f"{row['evidence']}.")]
        facts += [("Where", ", ".join(row["where"]))] if row["where"] else []
        trials = [(name, row[key]) for name, key in (("Try", "trial"), ("Tried", "tried")) if row.get(key)]
        yield AdviceItem(row["advice"], facts, row["code"], trials)


def _advice_lines(rows: Sequence[Mapping[str, Any]], meta: Mapping[str, Any]) -> list[RenderableType]:
    """The advice as text: suggestion, facts, code and trials."""
    lines: list[RenderableType] = []
    for number, (advice, facts, code, trials) in enumerate(advice_items(rows, meta), 1):
        lines.append(Hanging(f"{number}. ", printable(advice), "bold"))
        lines += [Hanging(f"   {name}: ", printable(text)) for name, text in facts]
        lines += [Text(f"   {printable(line)}", style="cyan") for line in code.split("\n")]
        for name, text in trials:  # commands have no indent, so that they can be copied
            is_command = name == "Try"
            head, words = f"   {name}: ", printable(text)
            lines.append(Text.assemble(head, (words, "cyan")) if is_command else Hanging(head, words))
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


def print_answer(table: Table, console: Console, *, more: str = "", reasons: str = "") -> None:
    """Print the answer of a table by layer, in 15 lines: verdict, parts of the step, hottest rows, best advice.

    Args:
        table: the table.
        console: where to print.
        more: how to see the rest; empty: the rest follows.
        reasons: how to see the reasons and the code of advice.
    """
    width, meta = console.width, table.meta
    above = [*verdict_in_lines(meta, console), *_time_lines(table, width, is_whole=not meta.get("verdict"))]
    drawn: list[RenderableType] = []
    if table.instead:
        kernels = table.instead[-1]
        rows = min(kernels.rows.height, HOTTEST)
        drawn = [_kernel_table(kernels, HOTTEST, width)] if rows else []
    else:
        hottest = hottest_rows(table, HOTTEST)
        rows = len(hottest)
        drawn = [hot_sheet(table, hottest, width)] if rows else []
    further = f"; reasons and code: {reasons}" if reasons and table.advice else ""
    below = left_out(table.shown.height, len(meta["notes"]), more and f"{more}{further}", width)
    room = LINES - len(above) - (rows + 1 if rows else 0) - len(below)
    print_blocks(console, [above, drawn, [*_best_advice(table, console, room), *below]], rows)


def _time_lines(table: Table, width: int, *, is_whole: bool) -> list[Text]:
    """The parts of the step on one line, the longest that fit; `is_whole`: all totals, a line each."""
    if is_whole:
        return [one_line(Text(f"{name}: {text}"), width) for name, text in [*totals(table)][:_TOTALS]]
    name, shares = parts_of_time(table) or ("", [])
    shown = [text for text in shares if not text.startswith("0.0%")]
    while len(shown) > 1 and cell_len(f"{name}: {', '.join(shown)}") > width:
        shown.pop()
    return [one_line(Text(f"{name}: {', '.join(shown)}"), width)] if shown else []


def _best_advice(table: Table, console: Console, room: int) -> list[Text]:
    """The best pieces of advice with the layer that they concern, in at most `room` lines.

    Without room for whole sentences, the layers are left out first, then the second piece of advice.
    """
    rows = table.advice[:_ADVICE]
    for most, with_layers in ((_ADVICE, True), (_ADVICE, False), (1, True), (1, False)):
        texts = (advice_text(row, table, with_layers=with_layers) for row in rows[:most])
        lines = [line for text in texts for line in as_lines(Text.assemble(("Advice: ", "cyan"), text), console, "  ")]
        if len(lines) <= room:
            return lines
    return cut_lines(lines, room) if room > 0 else []


def advice_text(row: Mapping[str, Any], table: Table, *, with_layers: bool = True) -> str:
    """Return a piece of advice with what it saves and the first layer, or the fold that stands for it in tables."""
    where = ""
    if with_layers:
        groups = table.rows.drop_nulls("group").select("layer", "group") if "group" in table.rows.columns else None
        folds = {} if groups is None else dict(groups.iter_rows())
        root = model_class(table.tree) if table.is_tree else ""
        names = zip(row["layers"], row["where"], strict=True)
        layers = [*dict.fromkeys(layer_path.with_parent(folds.get(layer, name), root) for layer, name in names)]
        others = f" and {len(layers) - 1} more" if len(layers) > 1 else ""
        where = f" In {printable(layers[0])}{others}." if layers else ""
    return f"{printable(row['advice'])} Saves {saving(row['saves'], table.meta)}.{where}{_tried(row)}"


def _tried(row: Mapping[str, Any]) -> str:
    """What `annot try` measured, as a sentence with a leading space; empty: nothing."""
    return f" Tried: {printable(row['tried'])}." if row.get("tried") else ""


_ROOFLINE_GROUPS: Final = {"layer": "work", "kernel": "roofline"}
"""Views with the same rows and the same text for an empty table."""


def roofline_table(by: str, rows: pl.DataFrame, peaks: Peaks, source: str) -> Table:
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
    return Table(find_view(by, _ROOFLINE_GROUPS[by]), rows, meta)


def print_roofline(table: Table, console: Console, *, full_names: bool = False) -> None:
    """Print layers or kernels with known work, and launch-bound or host-bound ones; the width selects the columns."""
    view, meta = table.view, table.meta
    shown = with_printed_names(table.rows, full_names=full_names).filter(
        pl.col("flops").is_not_null() | pl.col("bound").is_not_null()
    )
    lines: list[RenderableType] = [Hanging("Peaks: ", printable(peaks_text(meta["peaks"])))]
    if rows := shown.to_dicts():
        units = matrix_units({"devices": [{"name": meta["peaks"]["device"]}]})
        columns = in_units(formatted(of_names(ROOFLINE_COLUMNS), rows, None), units)
        steps = f" per step, mean of {meta['per_step']:,}" if "per_step" in meta else ""
        lines.append(Text(f"Roofline by {view.by}, {unit_for(shown['time_ns']).name}{steps}", style="bold"))
        lines.append(_rows_sheet(view.by.capitalize(), rows, columns, console.width, view.label))
    else:
        lines.append(Text(view.empty, style="dim"))
    if view.by == "layer" and (missing := table.rows["flops"].null_count()):
        lines.append(Text(f"Note: the work of {missing:,} of {table.rows.height:,} rows is unknown", "yellow"))
    console.print(Group(*lines, *notes(meta)))
