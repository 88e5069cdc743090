"""Layout of tables and texts within the width of a terminal."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from io import StringIO
from typing import Any, Final

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.segment import Segment
from rich.style import Style
from rich.text import Text

from annot.report.columns import Formatted
from annot.report.units import count, printable
from annot.util.ascii import ASCII

NARROW, WIDE, FULL = 76, 100, 120
"""Terminal widths (columns) from which tables show more columns."""
LABEL: Final = 12  # minimum width of the names, in columns
_FEW: Final = 3  # columns that always stay
LINES: Final = 15
"""Maximum number of lines of an answer."""
HOTTEST: Final = 5
_VERDICT: Final = 4
"""Maximum numbers of rows, and of lines of the verdict in an answer."""


def plain_text(show: Callable[[Console], None], width: int = FULL) -> str:
    """Return what a function prints, `width` characters wide and without colors."""
    text = StringIO()
    # Otherwise rich prints into the output of a notebook's cell, instead of into `text`.
    show(Console(file=text, width=width, color_system=None, force_terminal=False, force_jupyter=False))
    return text.getvalue()


@dataclass(frozen=True, slots=True)
class Ends:
    """The last cells of the rows of a table.

    Args:
        texts: the cells; may be empty.
        heading: their heading.
        most: maximum width of the labels, which leave room for the last cells; None: unlimited.
        room: width that columns and labels leave for the last cells.
    """

    texts: Sequence[Text] = ()
    heading: str = "Input"
    most: int | None = None
    room: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """A table of labels, numbers and last cells. It fits the width of a terminal and never truncates numbers.

    Args:
        title: heading of the labels.
        labels: first cell of each row.
        columns: columns of numbers. Columns that are empty in every row are hidden. Of columns that do not fit, the
            spare ones are hidden first, then the last, and those to keep at the end.
        rows: input of the columns; None is an empty line.
        ends: last cell of each row.
        room: width that columns leave for the labels: the last columns are hidden first.
        heading: line above the table; empty: the title says what it shows.
        hottest: place of the row to mark; None: rows have no marks.
        names: labels that stand alone, where those of `labels` depend on the rows above; empty: `labels`.
        sizes: size of each row, by which small rows are folded; empty: rows stand in this order.
        others: function from the places of folded rows to the row that stands for them; None: it has no numbers.
    """

    title: str
    labels: Sequence[Text]
    columns: Sequence[Formatted[Any]]
    rows: Sequence[Any]
    ends: Ends = Ends()
    room: int = LABEL
    heading: str = ""
    hottest: int | None = None
    names: Sequence[str] = ()
    sizes: Sequence[float] = ()
    others: Callable[[Sequence[int]], Any] | None = None

    def part(self, start: int, end: int | None = None) -> Sheet:
        """Return the rows from a place to another one, with the units of all."""
        at = slice(start, end)
        ends = replace(self.ends, texts=self.ends.texts[at])
        return replace(
            self, labels=self.labels[at], rows=self.rows[at], ends=ends, names=self.names[at], sizes=self.sizes[at]
        )

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        if self.heading:
            yield Text(self.heading, style="bold")
        yield _fitted(self, options.max_width)


def _fitted(sheet: Sheet, width: int) -> _Table:
    """The table with the columns for a terminal of this width. Labels and last cells share the remaining width."""
    gap, rows, ends = 2 if width >= NARROW else 1, sheet.rows, sheet.ends
    labels = _marked(sheet.labels, sheet.hottest)
    wanted = max(LABEL, min(sheet.room, max((label.cell_len for label in labels), default=0)))
    shown = _filled(sheet.columns, rows, width)
    longest_end = max((text.cell_len for text in ends.texts), default=0)
    ending = min(ends.room, longest_end) + gap if longest_end and ends.room else 0
    while (left := width - sum(column.width + gap for column in shown)) < wanted + ending and len(shown) > _FEW:
        shown = _drop_least(shown)
    most = left - ending if ending else ends.most
    longest = max([len(sheet.title), *(label.cell_len for label in labels)])
    label = max(LABEL, min(left, most or left, longest))
    end = max(len(ends.heading), min(longest_end, left - label - gap)) if longest_end else 0
    first = [Text(sheet.title, "bold"), *labels]
    cells = zip(*([column.title, *column.cells] for column in shown), strict=True) if shown else [()] * len(first)
    last = [Text(ends.heading, "bold"), *ends.texts] if end else [None] * len(first)
    lines = [*zip(first, cells, last, strict=True)]
    return _Table(lines, label, [column.width for column in shown], end, gap)


@dataclass(frozen=True, slots=True)
class _Column:
    """A column of numbers with its cells as text."""

    title: str
    cells: Sequence[str]
    spare: bool
    keep: bool

    @property
    def width(self) -> int:
        return max([len(self.title), *map(len, self.cells)])


def _filled(columns: Sequence[Formatted[Any]], rows: Sequence[Any], width: int) -> list[_Column]:
    """The columns for a terminal of this width that have a value in any row."""
    texts = (
        (column, [column.show(row) if row is not None else "" for row in rows])
        for column in columns
        if width >= column.least
    )
    return [_Column(column.title, cells, column.spare, column.keep) for column, cells in texts if any(cells)]


def _drop_least(columns: list[_Column]) -> list[_Column]:
    """The columns without those that are spare, or else without the last that is not to be kept."""
    needed = [column for column in columns if not column.spare]
    if needed and len(needed) < len(columns):
        return needed
    last = next((column for column in reversed(columns) if not column.keep), columns[-1])
    return [column for column in columns if column is not last]


@dataclass(frozen=True, slots=True)
class _Table:
    """Table with fixed widths, the heading first.

    rich.table.Table measures every cell: 700 lines take it 0.3 s, and 0.03 s here.
    """

    lines: Sequence[tuple[Text, Sequence[str], Text | None]]
    label: int
    widths: Sequence[int]
    end: int
    gap: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        space, plain = " " * self.gap, ASCII if options.ascii_only else {}
        style: Style | None = console.get_style("bold")
        for label, numbers, end in self.lines:
            yield from _drawn(_cut(label, self.label, pad=True), console)
            cells = zip((number.translate(plain) for number in numbers), self.widths, strict=True)
            yield Segment("".join(space + number.rjust(wide) for number, wide in cells), style)
            if end is not None:
                yield Segment(space)
                yield from _drawn(_cut(end, self.end), console)
            style = None
            yield Segment.line()


def _drawn(text: Text, console: Console) -> Iterable[Segment]:
    """The segments of a text. `Text.render` of rich drops the base style of a text without spans."""
    return Segment.apply_style(text.render(console), console.get_style(text.style))


def _cut(text: Text, width: int, *, pad: bool = False) -> Text:
    """Shorten a text in its middle, since paths share prefixes, or at its end if its `overflow` is ellipsis."""
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


def kernel_text(name: str, style: str = "") -> Text:
    """Return a kernel name without common namespaces; a name that is too long is cut at its end."""
    return Text(_NAMESPACES.sub("", name), style, overflow="ellipsis")


_NAMESPACES: Final = re.compile(r"^void |\bat::native::|\(anonymous namespace\)::")


def named_text(path: str, beside: str) -> Text:
    """Return a path with a remark on it, such as the class of the layer."""
    text = Text(printable(path))
    return text.append(f" {printable(beside)}", style="cyan") if beside else text


def _marked(labels: Sequence[Text], hottest: int | None) -> list[Text]:
    """The labels of rows in a column of marks, with that of the hottest row; None: labels without marks."""
    if hottest is None:
        return [*labels]
    return [
        Text.assemble(("> ", "bold red") if place == hottest else "  ", label) for place, label in enumerate(labels)
    ]


def as_lines(text: Text, console: Console, indent: str = "") -> list[Text]:
    """Return a text in lines that fit the console; lines after the first are indented."""
    lines = [*text.wrap(console, console.width - len(indent))]
    for line in lines:
        line.rstrip()
    return [lines[0], *(Text(indent) + line for line in lines[1:])]


def verdict_lines(meta: Mapping[str, Any]) -> list[Text]:
    """Return the verdict of a report, below the sentence about a recording that is cut."""
    lines = ((meta.get("cut"), "bold yellow"), (meta.get("verdict"), "bold"))
    return [Text(printable(text), style=style) for text, style in lines if text]


def verdict_in_lines(meta: Mapping[str, Any], console: Console) -> list[Text]:
    """Return the lines of the verdict of an answer, below the sentence about a recording that is cut."""
    lines = [as_lines(text, console) for text in verdict_lines(meta)]
    return [line for text in lines for line in cut_lines(text, _VERDICT // len(lines))]


def print_blocks(console: Console, blocks: Sequence[Sequence[RenderableType]], further: int) -> None:
    """Print the blocks of lines of an answer, with empty lines between them if `LINES` allows.

    `further` is the number of lines beyond one per renderable.
    """
    filled = [block for block in blocks if block]
    spare = LINES - sum(map(len, filled)) - further
    for number, block in enumerate(filled):
        if 0 < number <= spare:
            console.print()
        console.print(Group(*block))


def left_out(rows: int, notes: int, more: str, width: int) -> list[Text]:
    """Return the line about what an answer leaves out, rows and notes, and how to see `more`; empty: it follows."""
    if not more:
        return []
    notes_left = f", {'1 note' if notes == 1 else f'{notes} notes'}" if notes else ""
    text = f"{'Table' if rows == 1 else f'All {count(rows)} rows'}{notes_left}: {more}"
    return [one_line(Text(text, style="dim"), width)]


def one_line(text: Text, width: int) -> Text:
    """Return a text cut to one line."""
    text.truncate(width, overflow="ellipsis")
    return text


def cut_lines(lines: list[Text], most: int) -> list[Text]:
    """Return the first lines, with an ellipsis where others follow."""
    if len(lines) <= most:
        return lines
    last = lines[most - 1]
    last.rstrip()
    last.append("…")
    return lines[:most]


def notes(meta: dict[str, Any]) -> list[RenderableType]:
    """Return a line for each note in the metadata of a report."""
    return [Hanging("Note: ", printable(note), "yellow") for note in meta["notes"]]


@dataclass(frozen=True, slots=True)
class Hanging:
    """Text with a hanging indent: all lines start after the head."""

    head: str
    text: str
    style: str = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        lines = Text(self.text, self.style).wrap(console, max(options.max_width - len(self.head), LABEL))
        for number, line in enumerate(lines):
            line.rstrip()
            yield Text(" " * len(self.head) if number else self.head, self.style).append_text(line)
