"""Comparisons as Markdown, for pull requests and summaries of jobs: the verdict first, then the rows that changed.

Names come from untrusted profiles. They are code, in which GitHub interprets neither Markdown and HTML nor mentions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from annot.analyze.comparison.gate import Decision
from annot.analyze.comparison.rows import NAMES
from annot.report.terminal.compare import ComparisonTable, sides_of, totals_of, uncertainty
from annot.report.units import printable, unit_for

_VERDICTS: Final = {
    None: "Comparison",
    "same": "✅ Not slower",
    "slower": "❌ Slower",
    "undecided": "⚠️ Undecided",
    "incomparable": "⚠️ Not comparable",
}
_FIRST: Final = 5
"""Number of rows above the details."""
_MOST: Final = 200
"""Number of rows. GitHub shows comments of at most 65,536 characters."""
_SPECIAL: Final = re.compile(r"([\\`*_\[\]<>&|~$])")
_INERT: Final = re.compile(r"(?<=[@#])|(?<=:)(?=//)|(?<=www)(?=\.)|^(?=[-+=]|\d+[.)])", re.IGNORECASE)
"""Positions in mentions, references, addresses and markers of lists, where a zero-width space makes them plain text."""
_ZERO_WIDTH: Final = "\u200b"


def as_markdown(table: ComparisonTable, decision: Decision | None) -> Iterator[str]:
    """Yield the text of a comparison.

    Args:
        table: the comparison, processed.
        decision: the decision of the gate; None: the comparison has no limit.
    """
    status, texts = None if decision is None else decision.status, totals_of(table.comparison)
    if decision is not None:
        texts = [*texts, *decision.sentences] if status == "same" else [*decision.sentences, *texts]
    yield f"**{_VERDICTS[status]}** – {prose(texts[0])}\n\n"
    yield from _items(texts[1:])
    yield from _items(cause.text for cause in table.causes)
    comparability = table.comparison.comparability
    yield from _items(f"Not known: {reservation}" for reservation in comparability.reservations)
    changed = (row for row in table.shown.to_dicts() if row["difference_ns"])
    rows = sorted(changed, key=lambda row: -abs(row["difference_ns"]))
    yield from _table(table, rows[:_FIRST])
    yield "<details><summary>Details</summary>\n\n"
    yield from _table(table, rows[_FIRST:_MOST])
    if len(rows) > _MOST:
        yield f"{len(rows) - _MOST:,} more rows changed less.\n\n"
    yield from _items([*sides_of(table), *table.comparison.notes])
    yield "</details>\n"


def _items(sentences: Iterable[str]) -> Iterator[str]:
    lines = [f"- {prose(sentence)}\n" for sentence in sentences]
    yield from [*lines, "\n"] if lines else []


def _table(table: ComparisonTable, rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if not rows:
        return
    names = NAMES[table.comparison.by]
    unit = unit_for(round(ns or 0) for side in ("a_ns", "b_ns") for ns in table.shown[side])
    heads = [*map(str.capitalize, names), f"A, {unit.name}", "B", "B − A", "Speedup", "±", "Share"]
    yield f"| {' | '.join(heads)} |\n|{'---|' * len(names)}{'---:|' * 6}\n"
    for row in rows:
        times = [unit.show(row[side]) for side in ("a_ns", "b_ns", "difference_ns")]
        speedup = f"only {row['only_in'].upper()}" if row["only_in"] else f"{row['speedup']:.3f}"
        cells = [*(code(row[name]) for name in names), *times, speedup, uncertainty(row), f"{100 * row['share']:.1f}%"]
        yield f"| {' | '.join(cells)} |\n"
    yield "\n"


def code(name: str) -> str:
    """Return a name as code. It is safe in a cell of a table: backticks and bars are replaced by similar characters.

    Example:
        >>> code("features.0"), code("a|b`c")
        ('`features.0`', '`a¦bʹc`')
    """
    text = printable(name).replace("|", "¦").replace("`", "ʹ").strip()
    return f"`{text}`" if text else ""


def prose(sentence: str) -> str:
    r"""Return a sentence in which GitHub interprets neither Markdown nor HTML, links or mentions.

    Example:
        >>> prose("<b>h.*</b> is slower")
        '\\<b\\>h.\\*\\</b\\> is slower'
    """
    return _SPECIAL.sub(r"\\\1", _INERT.sub(_ZERO_WIDTH, printable(sentence).strip()))
