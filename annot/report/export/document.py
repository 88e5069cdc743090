"""Markdown documents that fit a number of characters: small rows are folded first, then items are left out.

Names come from untrusted profiles. They are code, in which GitHub interprets neither Markdown and HTML nor mentions.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import groupby
from operator import index
from typing import Any, Final, Literal, TypeAlias

from annot.report.columns import Formatted
from annot.report.terminal.layout import Sheet
from annot.report.units import printable

MIN_CHARS: Final = 500
"""Least limit of characters: the beginning of the verdict, and the sentence about what is left out."""
Kind: TypeAlias = Literal["unknown", "parts", "rows", "details", "advice", "totals", "notes"]
"""Kind of a block: what the profile cannot say, parts of the step, rows of a table, those below the first ones, advice,
other totals, notes."""
Style: TypeAlias = Literal["list", "paragraphs", "line"]
_CUTS: Final[Sequence[tuple[Kind, int]]] = (
    ("details", 0),
    ("rows", 5),
    ("notes", 0),
    ("totals", 0),
    ("parts", 3),
    ("advice", 1),
    ("rows", 1),
    ("advice", 0),
    ("unknown", 1),
    ("parts", 0),
    ("unknown", 0),
)
"""What is left out, in this order, and how many items of a block stay: of rows the largest."""
_PASSES: Final = ((False, _CUTS[:4]), (True, _CUTS))
"""Whether tables have the columns of a narrow terminal, and what is left out then."""
_LEAST_VERDICT: Final = 60
"""Number of characters of the verdict that stay while there are rows."""
_LEAST_ROW: Final = 8
"""Least number of characters of a row of a table."""
_LONGEST_NAME: Final = 60
"""Number of characters of a name in a document that lacks room."""
_PART_OF_COMMAND: Final = 4
"""The command for all takes at most the nth part of the limit."""
_END, _PART_OF_NAME = "end of the verdict", "part of a name"
_CODE: Final = re.compile(r"`[^`]*[^`\s][^`]*`")
_MARKUP: Final = re.compile(r"[\\`*_\[\]|~$]|<(?=[A-Za-z/!?])|&(?=[#\w])|[@#](?=\w)|:(?=//)|www\.", re.IGNORECASE)
"""Markup, mentions, references and addresses of GitHub. A word that contains one is code."""
_MARKER: Final = re.compile(r">|([-+=]+|#+|\d+[.)])$")
"""A first word that makes a line a heading, a list or a quotation."""
_WORD: Final = re.compile(rf"(?:{_CODE.pattern}|\S)+")
_PUNCTUATION: Final = re.compile(r"([(\"“]*)(.*?)([)\"”,.;:!?…]*)", re.DOTALL)
"""What is around a word."""


def code(text: str) -> str:
    """Return a text as code, from which it can be copied as it is.

    Example:
        >>> code("features.0"), code("a|b`c")
        ('`features.0`', '``a|b`c``')
    """
    text = printable(text).strip()
    fence = "`" * (max(map(len, re.findall("`+", text)), default=0) + 1)
    space = " " * (text.startswith("`") or text.endswith("`"))
    return f"{fence}{space}{text}{space}{fence}" if text else ""


def cell(markdown: str) -> str:
    r"""Return Markdown for a cell of a table, where bars need an escape, also in code.

    Example:
        >>> cell(code("a|b"))
        '`a\\|b`'
    """
    return markdown.replace("|", r"\|")


def prose(sentence: str) -> str:
    """Return a sentence in which GitHub interprets no HTML, links or mentions, and of Markdown only code.

    Words that would be markup are code, so that paths and options can be copied.

    Example:
        >>> prose("<b>h.*</b> is slower (see layers.*.attn): `annot --help`")
        '`<b>h.*</b>` is slower (see `layers.*.attn`): `annot --help`'
    """
    first, *rest = printable(sentence).strip().split(" ", 1)
    return " ".join([code(first), *map(inline, rest)]) if _MARKER.match(first) else inline(sentence)


def inline(text: str) -> str:
    """Return a text inside a line, such as a cell of a table, as `prose` does."""
    return _WORD.sub(_inert, printable(text).strip())


def _inert(match: re.Match[str]) -> str:
    """A word as it is, or as code if anything outside its code would be markup."""
    word = match[0]
    if "``" not in word and not _MARKUP.search(_CODE.sub(" ", word)):
        return word
    before, name, after = _PUNCTUATION.fullmatch(word).groups()  # type: ignore[union-attr]
    return f"{before}{code(name)}{after}"


def fenced(text: str, language: str = "") -> str:
    """Return code in a block that no line of it can end.

    Example:
        >>> fenced("a = 1", "python")
        '```python\\na = 1\\n```'
    """
    lines = [printable(line) for line in text.splitlines()]
    fence = "`" * max([3, *(len(run) + 1 for run in re.findall("`+", text))])
    return "\n".join([f"{fence}{language}", *lines, fence])


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """Texts in Markdown, of which the last are left out first.

    Args:
        kind: kind of the block, which decides when its items are left out.
        name: noun for an item.
        texts: the items.
        heading: line above them in Markdown, or words in front of a line; empty: none.
        style: whether the items are a list, paragraphs, or parts of one line.
        details: whether the block is hidden until the reader opens it.
    """

    kind: Kind
    name: str
    texts: Sequence[str]
    heading: str = ""
    style: Style = "list"
    details: bool = False

    def __len__(self) -> int:
        """Return the number of texts."""
        return len(self.texts)

    def text(self, number: int, *, narrow: bool = False) -> str:
        """Return the first texts, at least one; `narrow` is for tables."""
        shown = self.texts[:number]
        if self.style == "line":
            return f"{self.heading}: {', '.join(shown)}"
        items = "\n".join(f"- {text}" for text in shown) if self.style == "list" else "\n\n".join(shown)
        return f"{self.heading}\n\n{items}" if self.heading else items

    def lost(self, number: int, *, narrow: bool = False) -> Counter[str]:
        """Return how many things the text lacks, by their noun."""
        return Counter({self.name: len(self) - number})


@dataclass(frozen=True, kw_only=True)
class Rows:
    """The rows of a table, of which the smallest are folded first, into one row for all of them.

    Args:
        sheet: the table.
        is_folded: whether a row stands for the rows that are left out.
        details, kind, name: see `Texts`.
    """

    sheet: Sheet
    is_folded: bool = True
    details: bool = False
    kind: Kind = "rows"
    name: str = "row"

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._places)

    def text(self, number: int, *, narrow: bool = False) -> str:
        """Return the table with the largest rows, in their order; `narrow`: without what takes much room."""
        sheet, kept = self.sheet, self._kept(number)
        columns, has_ends = self._columns(narrow=narrow), self._has_ends(narrow=narrow)
        lines = [self._line(place, columns, narrow=narrow) for place in kept]
        if self.is_folded and number < len(self):
            lines.append(self._other_rows(kept, columns, has_ends=has_ends))
        heads = [(sheet.title, "---"), *((column.full_title, "---:") for column in columns)]
        heads += [(sheet.ends.heading, "---")] if has_ends else []
        filled = [place for place in range(len(heads)) if not place or any(line[place] for line in lines)]
        table = [[inline(head) for head, _ in heads], [rule for _, rule in heads], *lines]
        text = "\n".join(f"| {' | '.join(cell(line[place]) for place in filled)} |" for line in table)
        return f"**{inline(sheet.heading)}**\n\n{text}" if sheet.heading else text

    def lost(self, number: int, *, narrow: bool = False) -> Counter[str]:
        """Return the number of other rows, of columns, and of shortened names."""
        lost = Counter({self.name: len(self) - number})
        if number and narrow:
            lost["column"] = len(self._filled) + self._has_ends(narrow=False) - len(self._columns(narrow=True))
            lost[_PART_OF_NAME] = sum(len(self._name(place)) > _LONGEST_NAME for place in self._kept(number))
        return lost

    @cached_property
    def _places(self) -> Sequence[int]:
        """The places of the rows, without those of empty lines."""
        return [place for place, row in enumerate(self.sheet.rows) if row is not None]

    @cached_property
    def _by_size(self) -> Sequence[int]:
        """The places of the rows, the largest first."""
        sizes = self.sheet.sizes
        return sorted(self._places, key=lambda place: -sizes[place]) if sizes else self._places

    @cached_property
    def _filled(self) -> Sequence[Formatted[Any]]:
        """The columns that have a value in any row."""
        rows = [self.sheet.rows[place] for place in self._places]
        return [column for column in self.sheet.columns if any(map(column.show, rows))]

    def _kept(self, number: int) -> Sequence[int]:
        """The places of the largest rows in order."""
        return sorted(self._by_size[:number])

    def _line(self, place: int, columns: Sequence[Formatted[Any]], *, narrow: bool) -> tuple[str, ...]:
        sheet, name = self.sheet, self._name(place)
        cells = (inline(column.show(sheet.rows[place])) for column in columns)
        ends = [inline(sheet.ends.texts[place].plain)] if self._has_ends(narrow=narrow) else []
        return (code(_shortened(name) if narrow else name), *cells, *ends)

    def _other_rows(self, kept: Sequence[int], columns: Sequence[Formatted[Any]], *, has_ends: bool) -> tuple[str, ...]:
        """The line for the rows that are left out."""
        others, places = self.sheet.others, sorted({*self._places} - {*kept})
        row = None if others is None else others(places)
        cells = ("" if row is None else inline(column.show(row)) for column in columns)
        return (f"… {_counted(len(places), 'other row')}", *cells, *[""] * has_ends)

    def _name(self, place: int) -> str:
        """The label of a row that stands alone."""
        return self.sheet.names[place] if self.sheet.names else self.sheet.labels[place].plain

    def _columns(self, *, narrow: bool) -> Sequence[Formatted[Any]]:
        """The columns; narrow terminals have some of them."""
        return [column for column in self._filled if not narrow or not column.least or column.keep]

    def _has_ends(self, *, narrow: bool) -> bool:
        return not narrow and any(text.plain for text in self.sheet.ends.texts)


Block: TypeAlias = Texts | Rows
"""A part of a document, with items of which some can be left out."""


def _shortened(name: str) -> str:
    """A name without its middle, since paths share prefixes."""
    half = _LONGEST_NAME // 2
    return name if len(name) <= _LONGEST_NAME else f"{name[: half - 1]}…{name[-half:]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A document: the verdict, then blocks.

    Args:
        verdict: the sentence in front; empty: none.
        title: words in front of the verdict; empty: none.
        blocks: the blocks in order.
    """

    verdict: str = ""
    title: str = ""
    blocks: Sequence[Block] = ()

    def text(self, max_chars: int | None = None, more: str = "") -> str:
        """Return the Markdown.

        Args:
            max_chars: maximum number of characters, at least `MIN_CHARS`; None: nothing is left out. Small rows are
                folded first, then notes, totals, advice and rows are left out, then what the profile cannot say.
            more: command or call that shows all; empty: a sentence says that it needs a larger limit.

        Raises:
            TypeError: `max_chars` is neither an integer nor None.
            ValueError: `max_chars` is too small.
        """
        if max_chars is None:
            return self.written([len(block) for block in self.blocks])
        check_max_chars(max_chars)
        return _Fitting(self, max_chars, more).text()

    def written(
        self, numbers: Sequence[int], *, narrow: bool = False, length: int | None = None, more: str = ""
    ) -> str:
        """Return the text with so many items of each block.

        Args:
            numbers: number of items of each block; 0 leaves the block out.
            narrow: whether tables have the columns of narrow terminals.
            length: number of characters of the verdict; None: all.
            more: command or call that shows all.
        """
        pairs = [*zip(self.blocks, numbers, strict=True)]
        lost = sum((block.lost(number, narrow=narrow) for block, number in pairs), Counter())
        paragraphs = [self._first(length)]
        for details, group in groupby((pair for pair in pairs if pair[1]), key=lambda pair: pair[0].details):
            texts = [block.text(number, narrow=narrow) for block, number in group]
            paragraphs += ["<details><summary>Details</summary>", *texts, "</details>"] if details else texts
        paragraphs.append(_left_out(lost + Counter({_END: int(length is not None)}), more))
        return "\n\n".join(filter(None, paragraphs)) + "\n"

    def _first(self, length: int | None) -> str:
        verdict = self.verdict if length is None else f"{self.verdict[:length].rstrip()}…"
        if self.title:
            return f"**{prose(self.title)}** – {inline(verdict)}"
        return f"**{prose(verdict)}**" if verdict else ""


class _Fitting:
    """What a document leaves out, so that it has at most a number of characters."""

    def __init__(self, document: Document, most: int, more: str) -> None:
        self._document, self._most = document, most
        self._numbers = [len(block) for block in document.blocks]
        is_usable = len(more) <= most // _PART_OF_COMMAND and "`" not in more
        self._written = partial(document.written, more=more if is_usable else "")

    def text(self) -> str:
        """Return the document."""
        for narrow, cuts in _PASSES:
            self._written = partial(self._written, narrow=narrow)
            self._numbers = [len(block) for block in self._document.blocks]
            self._cut(cuts)
            if self._fits():
                return self._written(self._numbers)
        if not self._fits(_LEAST_VERDICT):
            self._cut([("rows", 0)])
        length = None if self._fits() else _largest(0, len(self._document.verdict), self._fits)
        return self._written(self._numbers, length=length)

    def _cut(self, cuts: Iterable[tuple[Kind, int]]) -> None:
        """Leave items out until the text fits, or these cuts are made."""
        for kind, least in cuts:
            for place, block in reversed([*enumerate(self._document.blocks)]):
                number = self._numbers[place]
                if block.kind == kind and number > least and not self._fits():
                    most = min(number, self._most // _LEAST_ROW)
                    self._numbers[place] = _largest(least, most, partial(self._fits_with, place))

    def _fits(self, length: int | None = None) -> bool:
        return len(self._written(self._numbers, length=length)) <= self._most

    def _fits_with(self, place: int, number: int) -> bool:
        self._numbers[place] = number
        return self._fits()


def check_max_chars(number: Any) -> None:
    """Raise TypeError or ValueError if a document cannot have at most so many characters."""
    try:
        index(number)
    except TypeError:
        raise TypeError(f"max_chars must be an int or None, got {number!r}") from None
    if number < MIN_CHARS:
        raise ValueError(f"max_chars must be at least {MIN_CHARS}, got {number}")


def _largest(least: int, most: int, fits: Callable[[int], bool]) -> int:
    """The largest number for which a condition holds that small numbers fulfil, or the least number."""
    while least < most:
        middle = (least + most + 1) // 2
        least, most = (middle, most) if fits(middle) else (least, middle - 1)
    return least


def _left_out(lost: Mapping[str, int], more: str) -> str:
    """The sentence about what is left out, and how to see it; empty: nothing is."""
    things = [_counted(count, noun) for noun, count in lost.items() if count]
    where = f"`{printable(more)}`" if more else "without a limit of characters"
    return f"Left out: {', '.join(things)}. All: {where}" if things else ""


def _counted(count: int, noun: str) -> str:
    """A number of things; of a noun with more words, the first one or, of an adjective, the last one has the plural."""
    if count == 1:
        return f"1 {noun}"
    first, *rest = noun.split(" ", 1)
    return f"{count:,} {noun}s" if first == "other" else " ".join([f"{count:,} {first}s", *rest])
