"""Layers that were timed alone, as text for a terminal."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.text import Text

from annot.report.columns import Formatted
from annot.report.export.document import Block, Document, Rows, Texts, prose
from annot.report.terminal.layout import Sheet
from annot.report.units import count, duration, printable, unit_for
from annot.report.units import share as percent
from annot.trial.layer import Gain, LayerAnswer, LayerRow
from annot.trial.show import interval


def print_layers(answer: LayerAnswer, console: Console) -> None:
    """Print an answer: for each layer its share of the step, a table of the changes, and what to know about them."""
    for row in answer.layers:
        console.print(Text(printable(_heading(row, answer)), style="bold"), soft_wrap=True)
        measured = [gain for gain in row.gains if gain.speedup is not None]
        if measured:
            console.print(_sheet(measured))
        for line in _notes(row):
            console.print(Text(printable(line)), soft_wrap=True)
        console.print()
    for line in _end(answer):
        console.print(Text(printable(line)), soft_wrap=True)


def as_markdown(answer: LayerAnswer, max_chars: int | None = None) -> str:
    """Return an answer as Markdown; `max_chars` is that of `annot.trial.show.as_markdown`."""
    blocks: list[Block] = []
    for row in answer.layers:
        measured = [gain for gain in row.gains if gain.speedup is not None]
        blocks += [
            Texts(kind="parts", name="layer", texts=[f"**{prose(_heading(row, answer))}**"], style="paragraphs"),
            Rows(sheet=_sheet(measured), is_folded=False),
            Texts(kind="unknown", name="remark", texts=[*map(prose, _notes(row))]),
        ]
    blocks.append(Texts(kind="notes", name="note", texts=[*map(prose, _end(answer))]))
    return Document(blocks=blocks).text(max_chars)


def _heading(row: LayerRow, answer: LayerAnswer) -> str:
    layers = "" if row.layers == 1 else f"{row.layers} layers like this, "
    name = f"{row.path or 'the model'} {row.kind}" + (f" {row.inputs}" if row.inputs else "")
    if row.time_ns is None:
        return name
    passes = "forward and backward" if row.backward else "forward"
    calls = f"{layers}{count(round(row.calls, 1))} call{'' if row.calls == 1 else 's'} per step"
    text = f"{name}: {duration(row.time_ns)} per {passes}, {calls}"
    if row.share is None or answer.step_ns is None:
        return text
    return f"{text}, {percent(row.share, 1.0)} of a step of {duration(answer.step_ns)}"


def _sheet(gains: Sequence[Gain]) -> Sheet:
    unit = unit_for(ns for gain in gains for ns in (gain.before_ns, gain.after_ns))
    cells = {
        f"Before, {unit.name}": [unit.show(gain.before_ns) for gain in gains],
        "After": [unit.show(gain.after_ns) for gain in gains],
        "Speedup": [f"{gain.speedup:.2f}" for gain in gains],
        "Interval": [interval(gain.low, gain.high) for gain in gains],
        "Step": ["" if gain.step_speedup is None else f"{gain.step_speedup:.2f}" for gain in gains],
        "First call": ["" if gain.first_ns is None else f"{gain.first_ns / 1e9:,.2f} s" for gain in gains],
        "Numbers": [_numbers(gain) for gain in gains],
    }
    kept = ("After", "Speedup", "Numbers")
    units = {"After": unit.name}  # in the terminal, the heading before it has the unit
    columns = [
        Formatted(title, _nth(texts), keep=title in kept, unit=units.get(title, ""))
        for title, texts in cells.items()
        if any(texts)
    ]
    labels = [Text(printable(gain.name), "bold" if gain.is_faster else "") for gain in gains]
    return Sheet(title="Change", labels=labels, columns=columns, rows=range(len(gains)))


def _nth(texts: Sequence[str]) -> Callable[[int], str]:
    return lambda place: texts[place]


def _numbers(gain: Gain) -> str:
    """The verdict about numbers, with the larger of both relative differences."""
    if gain.numbers in ("", "same bits"):
        return gain.numbers
    relative = [difference.relative for difference in (gain.outputs, gain.gradients) if difference is not None]
    finite = [value for value in relative if value is not None]
    size = "" if not relative else f", {max(finite):.0e}" if len(finite) == len(relative) else ", NaN"
    return f"{gain.numbers}{size}"


def _notes(row: LayerRow) -> list[str]:
    """What was not measured and why, and what differs from the training."""
    lines = [f"not timed: {row.reason}"] if row.reason else []
    lines += [f"{gain.name} is not timed: {gain.reason}" for gain in row.gains if gain.reason]
    lines += [f"{gain.name} computes other numbers" for gain in row.gains if gain.numbers == "differ"]
    if not row.repeats:
        lines.append("Two calls without a change give different bits.")
    return lines + row.notes


def _end(answer: LayerAnswer) -> list[str]:
    """How to check the gains on the whole program, and the file that was written."""
    names = dict.fromkeys(gain.name for row in answer.layers for gain in row.gains if gain.is_faster)
    lines = []
    if names:
        command = shlex.join(answer.command)
        lines.append(f"the whole step with these changes: annot try --change {','.join(names)} -- {command}")
    if answer.extract_problem:
        lines.append(f"no script was written: {answer.extract_problem}")
    elif answer.extracted:
        lines.append(f"script with {answer.layers[0].path or 'the model'} and random data: {answer.extracted}")
    return lines
