"""The rows of a layer table with the most self time. They have full paths, so that they stand without the tree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from annot.attribution.layer_tables import LAYER_PHASES
from annot.labels import layer_path
from annot.report.columns import Formatted
from annot.report.folds import shown_lines
from annot.report.layer_tree import Line, other_lines, title
from annot.report.report import Report
from annot.report.tables import TREE, head
from annot.report.units import count, share, unit_for

__all__ = ["HotRow", "hot_columns", "hottest_rows", "model_class", "named_rows"]

_PHASES: Final = {"forward": "Fwd", "backward": "Bwd", "recompute": "Re"}
"""Phases of a layer, and their titles on narrow terminals."""


@dataclass(frozen=True, slots=True)
class HotRow:
    """A row of a layer table without the rows inside it.

    Args:
        path: full path of the layer or fold, or the title of a row without a layer.
        module: class name, or a remark on the path; may be empty.
        layers: number of layers that a fold stands for; 1: not a fold.
        self_ns: self time (ns) in each phase.
        calls: number of calls of the forward, or all calls of a row without one.
        bound: what bounds the phase with the most self time; None: unknown.
        source: file and line of the class, or of the innermost class around the layer that has one; "": unknown.
    """

    path: str
    module: str
    layers: int
    self_ns: Mapping[str, float]
    calls: float | None
    bound: str | None
    source: str

    @property
    def total_ns(self) -> float:
        """Self time (ns) of all phases."""
        return sum(self.self_ns.values())


def hottest_rows(report: Report, number: int | None = None) -> list[HotRow]:
    """Return the rows of a layer table by self time, the longest first; at most `number` with self time, None: all."""
    rows = sorted(named_rows(report), key=lambda row: -row.total_ns)
    return rows if number is None else [row for row in rows[:number] if row.total_ns > 0]


def named_rows(report: Report) -> Iterator[HotRow]:
    """Yield the rows of a layer table, those of the tree first, with full paths."""
    lines, sources = shown_lines(report), _sources(report)
    root = model_class(lines)
    around: list[str] = []  # the source of each line around
    for line in lines:
        del around[line.depth :]
        source = sources.get((line.members or [line])[0].key[:2]) or (around[-1] if around else "")
        around.append(source)
        name, module = title(next(iter(line.phases.values())))
        yield _hot_row(line, layer_path.with_parent(name, root), module, report, source)
    for line in other_lines(report.tree_rows, report.every):
        yield _hot_row(line, line.label, line.module, report, "")


def model_class(lines: Sequence[Line]) -> str:
    """Return the class of the model whose layers the lines are; "": unknown, or several models."""
    classes = {line.module for line in lines if line.is_layer and not line.key[0] and line.module}
    return classes.pop() if len(classes) == 1 else ""


def _sources(report: Report) -> dict[tuple[str, str], str]:
    """Map layers and their classes to the file and line of the class, if the profile has them."""
    rows = report.rows if report.every is None else report.every
    if "source" not in rows.columns:
        return {}
    sources = rows.drop_nulls("source").select("layer", "module", "source")
    return {(layer, module): source for layer, module, source in sources.iter_rows()}


def _hot_row(line: Line, path: str, module: str, report: Report, source: str) -> HotRow:
    column = report.time.replace("_ns", "_self_ns")
    times = {phase: row[column] for phase, row in line.phases.items() if row[column]}
    calls = line.get("calls", *(line.phases.keys() & {"forward"}))
    bound = None
    if times:
        longest = max(times, key=lambda phase: times[phase])
        keys = [member.key for member in line.members] or [line.key]
        bounds = (report.bounds.get((*key, longest)) for key in keys)
        bound = next(filter(None, bounds), None)
    return HotRow(path, module, len(line.members) or 1, times, calls, bound, source)


def hot_columns(report: Report, rows: Sequence[HotRow], *, short: bool) -> list[Formatted[HotRow]]:
    """Return the columns of a list of hottest rows; `short`: with short titles of phases."""
    unit, whole = unit_for(row.total_ns for row in rows), report.whole or 0

    def of_phase(phase: str) -> Any:
        return lambda row: unit.show(row.self_ns.get(phase))

    phases = [phase for phase in LAYER_PHASES if any(phase in row.self_ns for row in rows)]
    return [
        *(Formatted(_PHASES[phase] if short else TREE[phase].title, of_phase(phase)) for phase in phases),
        head(TREE["self"], lambda row: unit.show(row.total_ns), least=0, keep=True),
        head(TREE["share"], lambda row: share(row.total_ns, whole), keep=True),
        head(TREE["calls"], lambda row: count(row.calls or None), least=100),
        Formatted("Bound", lambda row: row.bound or "", 100 if any(row.source for row in rows) else 76),
    ]
