"""Short answer about a profile: verdict, parts of the step, the hottest rows and the best advice, in 15 lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.text import Text

from annot.labels.layer_path import with_parent
from annot.report.folds import shown_lines
from annot.report.hottest import model_class
from annot.report.report import Report
from annot.report.terminal.layout import as_lines, verdict_lines
from annot.report.terminal.table import hot_table, kernel_table, saving
from annot.report.totals import parts_of_time, totals
from annot.report.units import count, printable

__all__ = ["HOTTEST", "LINES", "above_answer", "one_line", "print_answer", "print_lines", "what_is_left"]

LINES: Final = 15
"""Maximum number of lines of an answer."""
HOTTEST: Final = 5
_ADVICE: Final = 2
_ABOVE: Final = 4
"""Maximum numbers of hottest rows, pieces of advice, and lines of the verdict or the totals."""


def print_answer(report: Report, console: Console, *, more: str = "", reasons: str = "") -> None:
    """Print the answer of a report by layer.

    Args:
        report: the report.
        console: where to print.
        more: how to see the rest; empty: the rest follows.
        reasons: how to see the reasons and the code of advice.
    """
    width, meta = console.width, report.meta
    above = [*above_answer(meta, console), *_time_lines(report, width, is_whole=not meta.get("verdict"))]
    table, rows = _hottest(report, width)
    left = what_is_left(report.tree_rows.height, len(report.meta["notes"]))
    rest = "; ".join([more, f"reasons and code: {reasons}"] if reasons and report.advice else [more])
    below = [one_line(Text(f"{left}: {rest}", style="dim"), width)] if more else []
    room = LINES - len(above) - (rows + 1 if rows else 0) - len(below)
    blocks: list[Sequence[RenderableType]] = [above, [table] if rows else [], [*_advice(report, console, room), *below]]
    print_lines(console, blocks, rows)


def print_lines(console: Console, blocks: Sequence[Sequence[RenderableType]], further: int) -> None:
    """Print blocks of lines, with empty lines between them if `LINES` allows.

    `further` is the number of lines beyond one per renderable.
    """
    filled = [block for block in blocks if block]
    spare = LINES - sum(map(len, filled)) - further
    for number, block in enumerate(filled):
        if 0 < number <= spare:
            console.print()
        console.print(Group(*block))


def above_answer(meta: Mapping[str, Any], console: Console) -> list[Text]:
    """Return the lines of the verdict, below the sentence about a recording that is cut."""
    lines = [as_lines(text, console) for text in verdict_lines(meta)]
    return [line for text in lines for line in _cut(text, _ABOVE // len(lines))]


def one_line(text: Text, width: int) -> Text:
    """Return a text cut to one line."""
    text.truncate(width, overflow="ellipsis")
    return text


def what_is_left(rows: int, notes: int) -> str:
    """Return what an answer leaves out: rows and notes."""
    notes_left = f", {'1 note' if notes == 1 else f'{notes} notes'}" if notes else ""
    return f"{'Table' if rows == 1 else f'All {count(rows)} rows'}{notes_left}"


def _time_lines(report: Report, width: int, *, is_whole: bool) -> list[Text]:
    """The parts of the step on one line, the longest that fit; `is_whole`: all totals, a line each."""
    if is_whole:
        return [one_line(Text(f"{name}: {text}"), width) for name, text in [*totals(report)][:_ABOVE]]
    name, shares = parts_of_time(report) or ("", [])
    shown = [text for text in shares if not text.startswith("0.0%")]
    while len(shown) > 1 and cell_len(f"{name}: {', '.join(shown)}") > width:
        shown.pop()
    return [one_line(Text(f"{name}: {', '.join(shown)}"), width)] if shown else []


def _hottest(report: Report, width: int) -> tuple[RenderableType, int]:
    """The table of the hottest rows, and their number."""
    if not report.instead:
        return hot_table(report, width, HOTTEST)
    kernels = report.instead[-1]
    return kernel_table(kernels, HOTTEST, width), min(kernels.rows.height, HOTTEST)


def _advice(report: Report, console: Console, room: int) -> list[Text]:
    """The best pieces of advice with the layer that they concern, in at most `room` lines.

    Without room for whole sentences, the layers are left out first, then the second piece of advice.
    """
    rows = report.advice[:_ADVICE]
    for most, with_layers in ((_ADVICE, True), (_ADVICE, False), (1, True), (1, False)):
        texts = (_advice_text(row, report, with_layers=with_layers) for row in rows[:most])
        lines = [line for text in texts for line in as_lines(text, console, "  ")]
        if len(lines) <= room:
            return lines
    return _cut(lines, room) if room > 0 else []


def _advice_text(row: Mapping[str, Any], report: Report, *, with_layers: bool) -> Text:
    """A piece of advice with what it saves and the first layer, or the fold that stands for it in tables."""
    folds = dict(report.rows.drop_nulls("group").select("layer", "group").iter_rows()) if "group" in report.rows else {}
    root = model_class(shown_lines(report)) if report.view.layout == "tree" else ""
    names = zip(row["layers"], row["where"], strict=True)
    paths = dict.fromkeys(with_parent(folds.get(layer, name), root) for layer, name in names)
    layers = [*map(printable, paths)]
    others = f" and {len(layers) - 1} more" if len(layers) > 1 else ""
    where = f" In {layers[0]}{others}." if layers and with_layers else ""
    gain = saving(row["saves"], report.meta)
    return Text.assemble(("Advice: ", "cyan"), f"{printable(row['advice'])} Saves {gain}.{where}")


def _cut(lines: list[Text], most: int) -> list[Text]:
    """The first lines, with an ellipsis where others follow."""
    if len(lines) <= most:
        return lines
    last = lines[most - 1]
    last.rstrip()
    last.append("…")
    return lines[:most]
