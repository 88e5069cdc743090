"""Lines of the layer tree that stand alone, by self time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import polars as pl
from rich.text import Text

from annot.analyze.cpu_parts import main_layer
from annot.labels import layer_path
from annot.report.table import Table
from annot.report.terminal.layout import named_text
from annot.report.tree import Line, title


@dataclass(frozen=True, slots=True)
class HotRow:
    """A line of the layer tree without the lines inside it. It has its full path, so that it stands without the tree.

    Args:
        path: full path of the layer or fold, or the title of a row without a layer.
        module: class name, or a remark on the path; may be empty.
        layers: number of layers that a fold stands for; 1: not a fold.
        self_ns: self time (ns) in each phase.
        total_ns: self time (ns) of all phases.
        calls: number of calls of the forward, or all calls of a row without one.
        mostly: path of the layer of a fold that has more than half of its self time; "": none.
        bound: what bounds the phase with the most self time; None: unknown.
        source: file and line of the class, or of the innermost class around the layer that has one; "": unknown.
    """

    path: str
    module: str
    layers: int
    self_ns: Mapping[str, float]
    total_ns: float
    calls: float | None
    mostly: str
    bound: str | None
    source: str

    @property
    def label(self) -> Text:
        """The path with the class and the number of layers."""
        return named_text(self.path, self.module).append(f" ×{self.layers:,}" if self.layers > 1 else "")


def hottest_rows(table: Table, number: int | None = None) -> list[HotRow]:
    """Return the lines of a layer tree by self time, the longest first; at most `number` with self time, None: all."""
    rows = sorted(named_rows(table), key=lambda row: -row.total_ns)
    return rows if number is None else [row for row in rows[:number] if row.total_ns > 0]


def named_rows(table: Table) -> Iterator[HotRow]:
    """Yield the lines of a layer tree with full paths."""
    sources, root = line_sources(table.shown if table.lines is None else table.lines), model_class(table.tree)
    for line in table.tree:
        source = sources.get((line.members or [line])[0].number, "")
        name, module = title(next(iter(line.phases.values())))
        times = {member.key[0]: member.get(table.own_time) or 0 for member in line.members}
        mostly = layer_path.with_parent(main_layer(times), root)
        yield _hot_row(line, layer_path.with_parent(name, root), module, table, source, mostly)
    for line in table.others:
        yield _hot_row(line, line.label, line.module, table, "", "")


def model_class(lines: Sequence[Line]) -> str:
    """Return the class of the model whose layers the lines are; "": unknown, or several models."""
    classes = {line.module for line in lines if line.is_layer and not line.key[0] and line.module}
    return classes.pop() if len(classes) == 1 else ""


def line_sources(lines: pl.DataFrame) -> dict[int, str]:
    """Return file and line of the class of each line, or of the innermost class around it that has one.

    Args:
        lines: rows of `annot.attribution.layer_tables.by_line`.
    """
    if "source" not in lines.columns:
        return {}
    sources: dict[int, str] = {}
    own = lines.group_by("line").agg(pl.col("parent").first(), pl.col("source").drop_nulls().first()).sort("line")
    for line, parent, source in own.iter_rows():  # a parent has a smaller number
        if source or parent in sources:
            sources[line] = source or sources[parent]
    return sources


def _hot_row(line: Line, path: str, module: str, table: Table, source: str, mostly: str) -> HotRow:
    times = {phase: row[table.own_time] for phase, row in line.phases.items() if row[table.own_time]}
    bound = None
    if times:
        longest = max(times, key=lambda phase: times[phase])
        bounds = (table.bounds.get((*member.key, longest)) for member in line.members or [line])
        bound = next(filter(None, bounds), None)
    calls = line.get("calls", *(line.phases.keys() & {"forward"}))
    layers, total = len(line.members) or 1, sum(times.values())
    return HotRow(
        path=path,
        module=module,
        layers=layers,
        self_ns=times,
        total_ns=total,
        calls=calls,
        mostly=mostly,
        bound=bound,
        source=source,
    )


def summed_rows(rows: Sequence[HotRow]) -> HotRow:
    """Return one row for several, with the sums of their self times."""
    phases = dict.fromkeys(phase for row in rows for phase in row.self_ns)
    times = {phase: sum(row.self_ns.get(phase, 0) for row in rows) for phase in phases}
    total = sum(row.total_ns for row in rows)
    return HotRow(
        path="", module="", layers=1, self_ns=times, total_ns=total, calls=None, mostly="", bound=None, source=""
    )
