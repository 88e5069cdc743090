"""Reports as Markdown, for language models, pull requests and summaries of jobs.

Every table of annot becomes a document with the verdict first, in the words and numbers of the terminal. The unit of
times is in the titles of the columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from rich.text import Text

from annot.analyze.comparison.gate import Decision
from annot.report.export.document import Block, Document, Kind, Rows, Style, Texts, code, fenced, inline, prose
from annot.report.table import Options, Table, top
from annot.report.terminal.compare import ComparisonTable, comparison_sheet, sides_of, totals_of
from annot.report.terminal.hot_rows import hottest_rows
from annot.report.terminal.layout import FULL, Sheet
from annot.report.terminal.ranks import RanksTable, ranks_sheet, ranks_totals
from annot.report.terminal.table import (
    AdviceItem,
    advice_items,
    advice_text,
    drawn,
    hot_sheet,
    with_printed_names,
)
from annot.report.totals import parts_of_time, totals
from annot.report.unknown import unknowns, unknowns_of_ranks

_VERDICTS: Final = {
    None: "Comparison",
    "same": "✅ Not slower",
    "slower": "❌ Slower",
    "undecided": "⚠️ Undecided",
    "incomparable": "⚠️ Not comparable",
}
_FIRST: Final = 5
"""Number of rows of a comparison above the details."""


def markdown(
    report: Table,
    *,
    max_chars: int | None = None,
    more: str = "",
    reasons: str = "",
    is_answer: bool = False,
    full_names: bool = False,
    decision: Decision | None = None,
) -> str:
    """Return a table as Markdown: verdict, parts of the step, rows, advice, and what the profile cannot say.

    Args:
        report: table of any view of a profile, with ``brief=True`` for the verdict and the advice, or a table of ranks
            or of a comparison.
        max_chars: maximum number of characters, at least `annot.report.export.document.MIN_CHARS`; None: nothing is
            left out. Small rows are folded into one row first. The last line says what is left out.
        more: command or call that shows all, for this line.
        reasons: how to see the reasons and the code of advice; empty: not said.
        is_answer: whether layers are listed by self time, without the layers inside, instead of as a tree.
        full_names: whether kernels have their full names.
        decision: decision of the gate about a comparison; None: the comparison has no limit.

    Raises:
        TypeError: `max_chars` is neither an integer nor None.
        ValueError: `max_chars` is too small.

    Example:
        >>> import polars as pl
        >>> from annot.profile import Profile
        >>> from annot.runs.run import Run
        >>> ranges = {"id": [1], "process": [1], "thread": [1], "domain": ["annot"], "kind": ["push"],
        ...           "text": ["fc Linear |fwd"], "start": [0], "end": [900_000]}
        >>> run = Run(Profile.build({}, ranges=pl.DataFrame(ranges)))
        >>> markdown(run.view(brief=True), is_answer=True, max_chars=2000).splitlines()[0]
        '**Run 900 µs on CPU: 100% forward, and 100% in fc Linear (forward).**'
    """
    if isinstance(report, ComparisonTable):
        document = _of_comparison(report, decision, full_names=full_names)
    elif isinstance(report, RanksTable):
        document = _of_ranks(report, full_names=full_names)
    else:
        table = replace(report, rows=with_printed_names(report.rows, full_names=full_names))
        document = _of_table(table, reasons, is_answer=is_answer)
    return document.text(max_chars, more)


def _of_table(table: Table, reasons: str, *, is_answer: bool) -> Document:
    name_of_parts, parts = parts_of_time(table) or ("", [])
    elsewhere = (name_of_parts, "" if table.meta["steps"] else "Steps")
    others = [_named(name, text) for name, text in totals(table) if name not in elsewhere]
    tables = [*table.instead, *([table] if not table.instead or table.meta["ranges"] else [])]
    return Document(
        verdict=_verdict(table.meta),
        blocks=[
            _texts("parts", "part of the time", parts, name_of_parts, style="line"),
            *(block for each in tables for block in _of_view(each, is_answer=is_answer)),
            _advice(table, reasons),
            _unknown(unknowns(table)),
            _texts("totals", "total", others, "**Totals**"),
            _notes(table.meta["notes"]),
        ],
    )


def _verdict(meta: Mapping[str, Any]) -> str:
    """The verdict behind the sentence about a recording that is cut."""
    return " ".join(filter(None, (meta.get("cut"), meta.get("verdict"))))


def _of_view(table: Table, *, is_answer: bool) -> Iterator[Block]:
    """The blocks of a table: its rows, and the lines below them."""
    if table.nothing:
        return
    if table.view.layout == "advice":
        items = advice_items(table.rows.to_dicts(), table.meta)
        yield _texts("advice", "piece of advice", map(_item, items), style="paragraphs")
    elif is_answer and table.is_tree:
        if rows := hottest_rows(table, table.shown.height):
            yield Rows(sheet=hot_sheet(table, rows, FULL))
    else:
        for line in drawn(table, FULL, most=None):
            if isinstance(line, Sheet):
                yield Rows(sheet=line)
            elif isinstance(line, Text) and line.plain:
                yield _texts("notes", "note", [prose(line.plain)], style="paragraphs")


def _item(item: AdviceItem) -> str:
    """A piece of advice with its code."""
    facts = [f"- {_named(name, text)}" for name, text in item.facts]
    trials = [f"- {name}: {code(text) if name == 'Try' else inline(text)}" for name, text in item.trials]
    return "\n".join([f"**{prose(item.advice)}**", "", *facts, *trials, "", fenced(item.code)])


def _advice(table: Table, reasons: str) -> Block:
    """The advice below a table of another view."""
    rows = [] if table.view.layout == "advice" else table.advice
    heading = f"**Advice** (reasons and code: {code(reasons)})" if reasons else "**Advice**"
    return _texts("advice", "piece of advice", [prose(advice_text(row, table)) for row in rows], heading)


def _of_ranks(report: RanksTable, *, full_names: bool) -> Document:
    report = replace(report, across=with_printed_names(report.across, full_names=full_names))
    notes, failed = report.meta["notes"], report.meta["failed"]
    return Document(
        verdict=_verdict(report.meta),
        blocks=[
            Rows(sheet=ranks_sheet(report)),
            _unknown([*notes[:failed], *unknowns_of_ranks(report.ranks)]),
            _texts("totals", "total", [_named(name, text) for name, text in ranks_totals(report)], "**Totals**"),
            _notes(notes[failed:]),
        ],
    )


def _of_comparison(table: ComparisonTable, decision: Decision | None, *, full_names: bool) -> Document:
    """The verdict, the rows that change most, and the others hidden until the reader opens them."""
    status, texts = None if decision is None else decision.status, totals_of(table.comparison)
    if decision is not None:
        texts = [*texts, *decision.sentences] if status == "same" else [*decision.sentences, *texts]
    comparability = table.comparison.comparability
    reasons = [f"Not comparable: {reason.text}." for reason in comparability.reasons]
    unknown = [*reasons, *(f"Not known: {reservation}." for reservation in comparability.reservations)]
    changed = top(
        table.changed(lambda rows: rows.filter(rows["difference_ns"] != 0)), Options(top=max(table.rows.height, 1))
    )
    sheet = comparison_sheet(changed, FULL, full_names=full_names)
    return Document(
        title=_VERDICTS[status],
        verdict=texts[0],
        blocks=[
            _texts("parts", "total", map(prose, texts[1:])),
            _texts("advice", "cause", [prose(cause.text) for cause in table.causes]),
            _unknown(unknown),
            Rows(sheet=sheet.part(0, _FIRST), is_folded=False),
            Rows(sheet=sheet.part(_FIRST), kind="details", is_folded=False, details=True),
            _texts("totals", "name of a side", map(prose, sides_of(table)), details=True),
            _notes(table.comparison.notes, details=True),
        ],
    )


def _texts(
    kind: Kind, name: str, texts: Iterable[str], heading: str = "", *, style: Style = "list", details: bool = False
) -> Texts:
    return Texts(kind=kind, name=name, texts=[*texts], heading=heading, style=style, details=details)


def _unknown(sentences: Iterable[str]) -> Texts:
    return _texts("unknown", "thing that the profile cannot say", map(prose, sentences), "**Cannot say**")


def _notes(notes: Iterable[str], *, details: bool = False) -> Texts:
    return _texts("notes", "note", map(prose, notes), "" if details else "**Notes**", details=details)


def _named(name: str, text: str) -> str:
    return f"{name}: {inline(text)}"
