"""The answer of a trial as text for a terminal, and as Markdown."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Final

from rich.console import Console
from rich.text import Text

from annot.report.columns import Formatted
from annot.report.export.document import Document, Rows, Texts, fenced, prose
from annot.report.terminal.layout import Sheet
from annot.report.units import Unit, amount, duration, printable, unit_for
from annot.trial.answer import Answer, LayerChange, Row
from annot.trial.records import ANSWER
from annot.trial.training import percent

_COLUMNS: Final = ("Before", "After", "Speedup", "Interval", "Losses", "At most", "First steps", "Pays back", "Memory")
_KEPT: Final = ("After", "Speedup", "Interval")
"""Columns that a narrow terminal has, too."""
_WIDE: Final = 100
"""Ends of intervals from which a number says nothing."""
_MOST_CODE: Final = 3
"""Changes whose code is printed."""


def print_answer(answer: Answer, console: Console) -> None:
    """Print an answer: the table, what to apply, the layers that changed, and what failed."""
    measured = [row for row in answer.rows if row.speedup is not None]
    console.print(Text(printable(_heading(answer)), style="bold"))
    if measured:
        console.print(_sheet(answer, measured))
    for block in (_advice(answer), _layers(answer), [*_remarks(answer), *_notes(answer)]):
        if block:
            console.print()
        for line in block:
            console.print(Text(printable(line)), soft_wrap=True)


def as_markdown(answer: Answer, max_chars: int | None = None) -> str:
    """Return an answer as Markdown, for pull requests, issues and language models.

    Args:
        answer: the answer.
        max_chars: maximum number of characters, as for `annot.report.export.markdown.markdown`; None: all is there.
    """
    best = answer.best
    title = (
        "No change is faster" if best is None else f"{best.name}: {_speedup(best)} ({interval(best.low, best.high)})"
    )
    measured = [row for row in answer.rows if row.speedup is not None]
    blocks = (
        Rows(sheet=_sheet(answer, measured), is_folded=False),
        Texts(kind="advice", name="code", texts=[fenced(best.code, "python")] if best else [], style="paragraphs"),
        Texts(kind="unknown", name="remark on a change", texts=[*map(prose, _remarks(answer))]),
        Texts(kind="notes", name="note", texts=[*map(prose, [*_layers(answer)[1:], *_notes(answer)])]),
    )
    document = Document(title=title, verdict=_heading(answer), blocks=blocks)
    return document.text(max_chars, more=f"{answer.folder}/{ANSWER}")


def _heading(answer: Answer) -> str:
    """The time of a step without changes, and the runs that tell it."""
    runs = max((row.runs for row in answer.rows), default=0)
    rounds = f"{runs} round{'' if runs == 1 else 's'} of {answer.steps} steps after {answer.warmup}"
    time = "" if answer.step_ns is None else f"{duration(answer.step_ns)} per step without changes, "
    unfinished = "" if answer.complete else "; interrupted, these runs had finished"
    inference = "" if answer.trains else ", inference"
    return f"{time}{'CPU' if answer.device == 'cpu' else 'GPU'}{inference}, {rounds}{unfinished}"


def _sheet(answer: Answer, rows: Sequence[Row]) -> Sheet:
    labels = [Text(printable(row.name), "bold" if row.verdict == "faster" else "") for row in rows]
    unit = unit_for(ns for row in rows for ns in (row.before_ns, row.after_ns))
    units = {"After": unit.name}  # in the terminal, the heading before it has the unit
    columns = [
        Formatted(title, texts.__getitem__, 0, keep=title in _KEPT, unit=units.get(title, ""))
        for title, texts in _cells(answer, rows, unit).items()
    ]
    return Sheet(title="Change", labels=labels, columns=columns, rows=range(len(rows)))


def _cells(answer: Answer, rows: Sequence[Row], unit: Unit) -> dict[str, list[str]]:
    """The cells of each column, by its title. A column without a value is left out."""
    columns = zip(*(_row(answer, row, unit) for row in rows), strict=True)
    titles = (f"Before, {unit.name}", *_COLUMNS[1:])
    return {title: list(cells) for title, cells in zip(titles, columns, strict=True) if any(cells)}


def _row(answer: Answer, row: Row, unit: Unit) -> tuple[str, ...]:
    """The cells of a row, for `_COLUMNS`."""
    more = None if row.peak_bytes is None or not answer.peak_bytes else row.peak_bytes - answer.peak_bytes
    first = None if row.first_steps_ns is None or answer.first_steps_ns is None else row.first_steps_ns / 1e9
    pays = "" if row.pays_back is None else f"{row.pays_back:,} steps" if row.pays_back else "at once"
    return (
        unit.show(row.before_ns),
        unit.show(row.after_ns),
        _speedup(row),
        interval(row.low, row.high),
        f"±{percent(row.difference)}" if row.training == "rounding" and row.difference is not None else row.training,
        "" if row.promised is None else f"{row.promised:.2f}",
        "" if first is None else f"{first:,.2f} s",
        pays,
        "" if more is None else f"{'+' if more >= 0 else '−'}{amount(abs(more))}B",
    )


def _speedup(row: Row) -> str:
    return "" if row.speedup is None else f"{row.speedup:.2f}"


def interval(low: float | None, high: float | None) -> str:
    """Return the interval of a speedup as text; empty: there is none.

    Example:
        >>> interval(1.208, 1.36), interval(0.02, 4000.0)
        ('1.21–1.36', '0.02–?')
    """
    if low is None or high is None:
        return ""
    return "–".join(f"{end:.2f}" if end < _WIDE else "?" for end in (low, high))


def _advice(answer: Answer) -> list[str]:
    """What to write, the best changes first."""
    faster = [row for row in answer.rows if row.verdict == "faster"]
    if not faster:
        undecided = any(row.verdict == "undecided" for row in answer.rows)
        words = "The runs show no change that makes" if undecided else "No change makes"
        return [f"{words} a step faster."] if answer.complete else []
    lines = []
    for row in faster[:_MOST_CODE]:
        lines.append(f"{row.name}, {_speedup(row)} times as fast:")
        lines += [f"    {line}" for line in row.code.splitlines()]
    return lines


def _layers(answer: Answer) -> list[str]:
    """The layers whose time changes most with the best changes."""
    best = answer.best
    if best is None or not answer.layers:
        return []
    before, after = f"{answer.folder}/{answer.profile}", f"{answer.folder}/{best.profile}"
    lines = [f"layers with {best.name}; more: annot compare {shlex.quote(before)} {shlex.quote(after)}"]
    return lines + [f"  {_layer(change)}" for change in answer.layers]


def _layer(change: LayerChange) -> str:
    name = change.layer or change.module or "(model)"
    return f"{name} {change.phase}: {_time(change.before_ns)} → {_time(change.after_ns)}"


def _time(ns: float) -> str:
    return duration(ns) if ns else "absent"


def _remarks(answer: Answer) -> list[str]:
    """What is not worth applying and why, what is unknown, and what was not tried."""
    lines = [f"{row.name} is {_judgement(row)}: {row.reason}" for row in answer.rows if row.reason]
    unknown = [row for row in answer.rows if row.training == "unknown" and row.verdict == "faster"]
    lines += [f"{row.name}: unknown whether training stays the same: {row.training_text}" for row in unknown]
    lines += [f"{row.name}: no measured step yet" for row in answer.rows if row.verdict == "not measured"]
    return lines + [f"not tried: {name}, because {reason}" for name, reason in answer.left_out.items()]


def _notes(answer: Answer) -> list[str]:
    """What the runs showed."""
    lines = [f"{row.name}: {note}" for row in answer.rows for note in row.notes]
    lines += [f"{row.name} gains more than its advice promises" for row in answer.rows if _exceeds(row)]
    lines += [f"without changes: {note}" for note in answer.notes]
    return [*lines, answer.repeats] if answer.repeats else lines


def _judgement(row: Row) -> str:
    return "undecided" if row.verdict == "undecided" else "not recommended"


def _exceeds(row: Row) -> bool:
    """Whether the whole interval of the speedup is above the bound."""
    return row.promised is not None and row.low is not None and row.low > row.promised
