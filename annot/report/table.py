"""A table: the rows of a view, and the processors that make it ready to draw.

The terminal, the page, notebooks, files, TensorBoard and comparisons draw finished tables. They do not sort, cut or
fold by rules of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from typing import Any, Final, Literal, Self, SupportsFloat, SupportsIndex, TypeAlias, TypeVar

import polars as pl

from annot.report.columns import COLUMNS, Column, Formatted, formatted
from annot.report.columns import per_step as rows_per_step
from annot.report.tree import Line, cut, cut_layers, folded_lines, folded_rows, lines_of, other_lines, with_groups
from annot.report.views import View

Order: TypeAlias = Literal["order", "time"]
ORDERS: Final = ("order", "time")
_NEED_GPU: Final = (
    "{} need a profile with GPU activity: run on a machine with a GPU under Nsight Systems or torch.profiler."
)


@dataclass(frozen=True, slots=True)
class Options:
    """What the user asks of a table; most of it is for the processors.

    Args:
        depth: levels of layers to keep below the outermost layers, 0 or more; None: all.
        expand: path of layers that tables show one by one instead of in folds, or several; ``""``: all layers.
        steps: number of steps to whose mean sums are divided; 0: sums stay.
        min_share: share of the total time (0 to 1) below which rows are left out.
        sort: "order" keeps the order of appearance; "time": longest first.
        top: number of rows to keep, the longest, 1 or more; None: all.
        draw: whether the table is drawn; false: only its rows are needed, for files.
        total: whether rows are sums over the selected steps or the whole profile.
        brief: whether the breakdown of the step time and the advice come with the rows of a small profile.

    Raises:
        TypeError: an argument has another type.
        ValueError: an argument is out of range.

    Example:
        >>> Options(top=0)
        Traceback (most recent call last):
        ValueError: top must be at least 1, got 0
    """

    depth: int | None = None
    expand: str | Sequence[str] = ()
    steps: int = 0
    min_share: float = 0.0
    sort: Order = "order"
    top: int | None = None
    draw: bool = True
    total: bool = False
    brief: bool = False

    def __post_init__(self) -> None:
        for name, number, least in (("depth", self.depth, 0), ("top", self.top, 1)):
            if number is not None and (isinstance(number, bool) or not isinstance(number, SupportsIndex)):
                raise TypeError(f"{name} must be an int or None, got {_described(number)}")
            if number is not None and number < least:
                raise ValueError(f"{name} must be at least {least}, got {number}")
        if isinstance(self.min_share, bool) or not isinstance(self.min_share, SupportsFloat):
            raise TypeError(f"min_share must be a number, got {_described(self.min_share)}")
        if not 0 <= self.min_share <= 1:
            raise ValueError(f"min_share must be from 0 to 1 (0.05 is 5%), got {self.min_share}")
        if self.sort not in ORDERS:
            raise ValueError(f"sort must be one of {', '.join(ORDERS)}, got {self.sort!r}")
        if not isinstance(self.expand, str | Sequence):
            raise TypeError(f"expand must be a path of a layer or a sequence of paths, got {_described(self.expand)}")
        if wrong := [path for path in self.paths if not isinstance(path, str)]:
            raise TypeError(f"expand must have paths of layers, got {_described(wrong[0])}")

    @property
    def paths(self) -> Sequence[str]:
        """The paths of `expand`."""
        return (self.expand,) if isinstance(self.expand, str) else self.expand

    def check(self, view: View) -> None:
        """Raise ValueError if the view has no tree of layers to expand."""
        if self.paths and not view.folds:
            raise ValueError(f"expand needs the times of layers, got by {view.by} with columns {view.group}")


def _described(value: Any) -> str:
    return f"{value!r} ({type(value).__name__})"


@dataclass(frozen=True)
class Table:
    """The rows of a view, with the totals and sentences that stand above and below them.

    Args:
        view: the view.
        rows: the rows, which files contain; sums are per step if `meta` has ``per_step``.
        meta: result of `annot.attribution.summarize`, plus source, matrix_units, advice (number of pieces, if annot
            looked for advice) and per_step (number of steps of the mean).
        shares: share of each part of the step time by its name (`annot.analyze.cpu_parts`); empty: not computed.
        advice: rows of `annot.changes.advice.by_advice`, for the lines below the table.
        instead: tables by kernel that a terminal prints if no GPU time is in layers. They replace the table of a
            profile without ranges.
        lines: for layers, the result of `annot.attribution.layer_tables.by_line`; else None.
        drawn: the rows to draw, where a fold counts as one row; None: `rows`.
        least: share of the total time (0 to 1) below which rows were left out.
        bounds: what bounds a layer by layer, module and phase, as in `annot.analyze.roofline.layer_roofline`.
        has_peaks: whether the peaks of the device are known, for an answer; without an answer true.
        is_list: whether to list the rows of a tree by self time, without the tree.
    """

    view: View
    rows: pl.DataFrame
    meta: dict[str, Any]
    shares: Mapping[str, float] = field(default_factory=dict)
    advice: Sequence[Mapping[str, Any]] = ()
    instead: Sequence[Table] = ()
    lines: pl.DataFrame | None = None
    drawn: pl.DataFrame | None = None
    least: float = 0.0
    bounds: Mapping[tuple[str, str, str], str] = field(default_factory=dict)
    has_peaks: bool = True
    is_list: bool = False

    @property
    def name(self) -> str:
        """Plural of the subject, such as `layers`."""
        return self.view.name

    @property
    def shown(self) -> pl.DataFrame:
        """The rows to draw."""
        return self.rows if self.drawn is None else self.drawn

    @cached_property
    def tree(self) -> list[Line]:
        """The lines of the layer tree in depth-first order, with folds."""
        return folded_lines(self.shown, self.lines)

    @cached_property
    def others(self) -> list[Line]:
        """The lines of the unattributed time."""
        return other_lines(self.shown)

    @property
    def is_tree(self) -> bool:
        """Whether rows are lines of the layer tree."""
        return self.view.layout == "tree"

    @property
    def columns(self) -> Sequence[Column]:
        """The columns that rows can have."""
        return [*{**COLUMNS, **{column.name: column for column in self.view.shown}}.values()]

    @property
    def time(self) -> str:
        """Column of the main time: GPU time if the profile has GPU activity, else host time."""
        return "gpu_ns" if self.meta["kernels"] or self.meta["copies"] else "host_ns"

    @property
    def own_time(self) -> str:
        """Column of the main time without the layers inside."""
        return self.time.replace("_ns", "_self_ns")

    @property
    def whole(self) -> float | None:
        """100 % in ns; see `annot.attribution.summarize`. None: unknown."""
        whole: float | None = self.meta["whole_ns"]
        return whole

    @property
    def column(self) -> str:
        """Column of `rows` to sort by: total time, or self time in tables without a total."""
        names = (self.time, self.own_time, "self_ns", "time_ns")
        return next((name for name in names if name in self.rows.columns), "")

    @property
    def order(self) -> str:
        """Column of `rows` by which `top` selects: the self time in a tree, else a time that the table shows."""
        if self.is_tree:
            return self.own_time
        shown = {column.name for column in self.view.shown} & {*self.rows.columns}
        return next((name for name in ("step_ns", self.time, self.own_time, *_TIMES) if name in shown), self.column)

    def knows(self, column: str) -> bool:
        """Return whether the profile has data for a column of the view; 0 in its rows would mean measured."""
        if not self.has_durations and column.endswith("_ns"):
            return False
        if column.startswith("gpu_") or column in ("kernels", "kernels_total", "copies"):
            return self.time == "gpu_ns"
        return not column.startswith("host_") or self.meta["host_ns"] is not None

    @property
    def has_durations(self) -> bool:
        """Whether GPU activities have durations, which counters of Nsight Compute may lack."""
        return self.meta.get("gpu_ns") != 0 or not self.meta["kernels"] + self.meta["copies"]

    @property
    def nothing(self) -> str:
        """The sentence in place of a table without rows or FLOPs, or without the GPU activity it needs; or empty."""
        if self.view.gpu and self.time != "gpu_ns":
            return _NEED_GPU.format(self.view.gpu)
        if self.least and self.shown.is_empty():
            return f"No row has {100 * self.least:g} % of the total time."
        unknown = self.view.group == "work" and self.rows["flops"].null_count() == self.rows.height
        if self.view.key == "step" and self.meta.get("steps_missing") and self.rows.is_empty():
            return f"No steps, because {self.meta['steps_missing']}."
        return self.view.empty if unknown or self.shown.is_empty() else ""

    @property
    def scope(self) -> str:
        """What the rows add up to, where it differs from the time of the step or run in the verdict; else ""."""
        if not self.view.sums:
            return ""
        meta = self.meta
        overlaps = self.time == "host_ns" and (self.whole or 0) > (meta["wall_ns"] or 0)
        words = {
            "over threads": overlaps,
            "in total": meta["steps"] and "per_step" not in meta,
            "with warm-up": meta.get("without_warmup"),
        }
        return "".join(f" {text}" for text, applies in words.items() if applies)

    @property
    def each_step(self) -> str:
        """The words " per step", with the kind of the steps if it is known, or "" for sums over the profile."""
        if "per_step" not in self.meta or not self.view.sums:
            return ""
        return f" per {self.meta['step_kind']} step" if self.meta.get("step_kind") else " per step"

    def cells(self, number: int | None = None) -> tuple[list[dict[str, Any]], list[Formatted[Mapping[str, Any]]]]:
        """Return the first rows to draw, all for None, and the columns of the view that the profile has data for."""
        timed = self.shown.with_columns(main_ns=self.column) if self.column else self.shown  # columns show its share
        rows = (timed if number is None else timed.head(number)).to_dicts()
        columns = [column for column in self.view.shown if self.knows(column.name)]
        return rows, formatted(columns, rows, self.whole)

    def summed(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the row that stands for some rows of `cells`: sums of times and counts.

        Times of layers that can be inside each other, means and other values are null.
        """
        sums = {"sum", "inclusive"} if self.view.by in _BESIDE else {"sum"}
        declared = {column.name: column for column in self.columns}
        added = {name for name, column in declared.items() if column.combined in sums}
        added |= {"main_ns"} if self.column in added else set()
        every = {name: [row[name] for row in rows if row[name] is not None] for name in rows[0] if name in added}
        return dict.fromkeys(rows[0]) | {name: sum(values) for name, values in every.items() if values}

    def changed(self, change: Callable[[pl.DataFrame], pl.DataFrame]) -> Self:
        """Return the table with another version of its rows."""
        return replace(self, rows=change(self.rows), drawn=None if self.drawn is None else change(self.drawn))

    def selected(self, column: str, **how: Any) -> Self:
        """Return the table with rows selected by the time in a column; `how` are arguments of `select`.

        The layers of a fold are one line of a tree, and single in `rows`.
        """
        return self.changed(lambda rows: select(rows, column, lines_of(rows) if self.is_tree else None, **how))


_BESIDE: Final = ("kernel", "kind", "phase")
"""Rows of views whose times exclude each other."""
_TIMES: Final = ("time_ns", "self_ns", "exposed_ns", "memory_peak_bytes")
"""Columns by which `top` selects in views without the columns of `Table.column`."""
GPU_TIMES: Final = ("gpu_ns", "attributed_gpu_ns", "unattributed_gpu_ns", "gpu_by_sequence_ns", "gpu_by_time_ns")
COUNTS: Final = ("ranges", "kernels", "copies")
"""Sums over the profile in `Table.meta`."""
_SUMS_OF_META: Final = (*GPU_TIMES, "gpu_guessed_ns", "warmup_gpu_ns", "host_ns", "wall_ns", "whole_ns", *COUNTS)
_LINE, _TIME = "(line)", "(time)"
_T = TypeVar("_T", bound=Table)


def select(
    rows: pl.DataFrame,
    column: str | pl.Expr,
    lines: pl.Series | None = None,
    *,
    least: float | None = None,
    longest: bool = False,
    number: int | None = None,
) -> pl.DataFrame:
    """Return some rows by their time. The times of rows that a table shows as one line add up, and it stays whole.

    Args:
        rows: the rows.
        column: the time to select by.
        lines: number of the line of each row; None: each row is a line.
        least: leave out lines with less time (ns); None: keep all.
        longest: sort, the rows of the longest lines first.
        number: number of lines to keep, the first; None: all.

    Example:
        >>> rows = pl.DataFrame({"layer": ["a", "b", "c"], "ns": [5, 9, 1]})
        >>> select(rows, "ns", least=2, longest=True)["layer"].to_list()
        ['b', 'a']
    """
    time = pl.col(column) if isinstance(column, str) else column
    numbers = pl.int_range(pl.len()) if lines is None else lines
    table = rows.with_columns(numbers.alias(_LINE)).with_columns(time.sum().over(_LINE).alias(_TIME))
    if least is not None:
        table = table.filter(pl.col(_TIME) >= least)
    if longest:
        table = table.sort(_TIME, descending=True, maintain_order=True)
    if number is not None:
        kept = table[_LINE].unique(maintain_order=True).head(number)
        table = table.filter(pl.col(_LINE).is_in(kept.implode()))
    return table.select(rows.columns)


def cut_depth(table: _T, options: Options) -> _T:
    """Return the table in which each layer below a depth is part of the layer around it at that depth."""
    if options.depth is None:
        return table
    view, lines = table.view, table.lines
    if lines is None or "layer" not in table.rows.columns or not view.sums:
        raise ValueError(f"depth needs layers and their sums, got by {view.by}{' each' * (not view.sums)}")
    rows = cut_layers(table.rows, options.depth, lines)
    return replace(table, rows=rows, drawn=cut(lines, options.depth) if table.is_tree and options.draw else None)


def fold_repeated(table: _T, options: Options) -> _T:
    """Return the table that draws repeated layers as one row."""
    if table.lines is None or not options.draw or not table.view.folds or "group" not in table.rows.columns:
        return table
    if table.is_tree:
        drawn = table.lines if table.drawn is None else table.drawn
        return replace(table, drawn=with_groups(drawn, table.lines, options.paths))
    rows = with_groups(table.rows, table.lines, options.paths) if options.paths else table.rows
    return replace(table, drawn=folded_rows(rows, table.columns), lines=None)


def per_step(table: _T, options: Options) -> _T:
    """Return the table with sums divided by the number of steps."""
    steps = options.steps
    if not steps:
        return table
    meta = table.meta | {name: table.meta[name] / steps for name in _SUMS_OF_META if table.meta.get(name) is not None}
    meta["per_step"] = steps
    if "devices" in meta:
        meta["devices"] = [device | {"busy_ns": device["busy_ns"] / steps} for device in meta["devices"]]
    return replace(table.changed(lambda rows: rows_per_step(rows, table.columns, steps)), meta=meta)


def keep_share(table: _T, options: Options) -> _T:
    """Return the table without the lines below a share of the total time; others keep their order."""
    share, whole = options.min_share, table.whole
    if not share or not table.column or not whole:
        return table
    return replace(table.selected(table.column, least=share * whole), least=0.0 if table.shown.is_empty() else share)


def sort(table: _T, options: Options) -> _T:
    """Return the table with the longest lines first; `top` has an order of its own."""
    if options.sort == "order" or options.top is not None or not table.column:
        return table
    return table.selected(table.column if table.is_tree else table.order, longest=True)


def top(table: _T, options: Options) -> _T:
    """Return the table with the longest lines only, longest first by `order`; a line keeps all its phases."""
    number = options.top
    if number is None:
        return table
    if not table.order:
        return table.changed(lambda rows: rows.head(number))
    return replace(table.selected(table.order, longest=True, number=number), is_list=table.is_tree)


PROCESSORS: Final = (cut_depth, fold_repeated, per_step, keep_share, sort, top)
"""What happens to a table before it is drawn, in order."""


def process(table: _T, options: Options) -> _T:
    """Return a table that is ready to draw."""
    return reduce(lambda result, processor: processor(result, options), PROCESSORS, table)
