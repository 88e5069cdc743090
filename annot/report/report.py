"""The rows of a view, with what tables say above and below them, ready for a renderer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Literal, Self, TypeAlias

import polars as pl

from annot.report.columns import COLUMNS, per_step
from annot.report.selected_rows import at_least, longest, longest_first
from annot.report.tree_rows import lines_of
from annot.report.views import View

__all__ = ["ORDERS", "Order", "Report"]

Order: TypeAlias = Literal["order", "time"]
ORDERS: Final = ("order", "time")
_NEED_GPU: Final = (
    "{} need a profile with GPU activity: run on a machine with a GPU under Nsight Systems or torch.profiler."
)


@dataclass(frozen=True, slots=True)
class Report:
    """The rows of a view, input of the renderers.

    Args:
        view: the view.
        rows: the rows; sums are per step if `meta` has ``per_step``.
        meta: result of `annot.attribution.summarize`, plus source, matrix_units, advice (number of pieces, if annot
            looked for advice) and per_step (number of steps of the mean).
        shares: share of each part of the step time by its name (`annot.analyze.cpu_parts`); empty: not computed.
        advice: rows of `annot.analyze.advice.by_advice`, for the lines below the table.
        instead: reports by kernel that a terminal prints if no GPU time is in layers. They replace the table of a
            profile without ranges.
        every: all rows of a tree, for `rows` that lack some; None: `rows`.
        tree: the rows that tables show, where a fold counts as one row; None: `rows`.
        least: share of the total time (0 to 1) below which rows were left out.
        bounds: what bounds a layer by layer, module and phase, as in `annot.analyze.roofline.layer_roofline`.
        is_list: whether tables list the rows of a tree by self time, without the tree.
    """

    view: View
    rows: pl.DataFrame
    meta: dict[str, Any]
    shares: Mapping[str, float] = field(default_factory=dict)
    advice: Sequence[Mapping[str, Any]] = ()
    instead: Sequence[Report] = ()
    every: pl.DataFrame | None = None
    tree: pl.DataFrame | None = None
    least: float = 0.0
    bounds: Mapping[tuple[str, str, str], str] = field(default_factory=dict)
    is_list: bool = False

    @property
    def name(self) -> str:
        """Plural of the subject, such as `layers`."""
        return self.view.name

    @property
    def tree_rows(self) -> pl.DataFrame:
        """The rows that tables show."""
        return self.rows if self.tree is None else self.tree

    @property
    def time(self) -> str:
        """Column of the main time: GPU time if the profile has GPU activity, else host time."""
        return "gpu_ns" if self.meta["kernels"] or self.meta["copies"] else "host_ns"

    @property
    def whole(self) -> float | None:
        """100 % in ns; see `annot.attribution.summarize`. None: unknown."""
        whole: float | None = self.meta["whole_ns"]
        return whole

    @property
    def column(self) -> str:
        """Column of `rows` to sort by: total time, or self time in tables without a total."""
        names = (self.time, self.time.replace("_ns", "_self_ns"), "self_ns", "time_ns")
        return next((name for name in names if name in self.rows.columns), "")

    @property
    def order(self) -> str:
        """Column of `rows` by which `top` selects: the self time in a tree, else a time that the table shows."""
        shown = {column.name for column in self.view.shown} & {*self.rows.columns}
        own = self.time.replace("_ns", "_self_ns")
        if self.view.layout == "tree":
            return own
        return next((name for name in ("step_ns", self.time, own, *_TIMES) if name in shown), self.column)

    def knows(self, column: str) -> bool:
        """Return whether the profile has data for a column of the view; 0 in its rows would mean measured."""
        if column.startswith("gpu_") or column in ("kernels", "copies"):
            return self.time == "gpu_ns"
        return not column.startswith("host_") or self.meta["host_ns"] is not None

    @property
    def nothing(self) -> str:
        """The sentence in place of a table without rows or FLOPs, or without the GPU activity it needs; or empty."""
        if self.view.gpu and self.time != "gpu_ns":
            return _NEED_GPU.format(self.view.gpu)
        if self.least and self.tree_rows.is_empty():
            return f"No row has {100 * self.least:g} % of the total time."
        unknown = self.view.group == "work" and self.rows["flops"].null_count() == self.rows.height
        if self.view.key == "step" and self.meta.get("steps_missing") and self.rows.is_empty():
            return f"No steps, because {self.meta['steps_missing']}."
        return self.view.empty if unknown or self.tree_rows.is_empty() else ""

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

    def sorted(self, sort: Order) -> Self:
        """Return the report in order of appearance, or with the longest lines first if `sort` is "time"."""
        if sort == "order" or not self.column:
            return self
        return self._selected(longest_first, self.column if self.view.layout == "tree" else self.order)

    def top(self, number: int) -> Self:
        """Return the report with the longest lines only, longest first by `order`; a line keeps all its phases."""
        if not self.order:
            return self._selected(lambda rows, *_: rows.head(number))
        report = self._selected(partial(longest, number=number), self.order)
        return replace(report, is_list=self.view.layout == "tree")

    def at_least(self, share: float) -> Self:
        """Return the report without the lines below a share (0 to 1) of the total time; others keep their order."""
        whole = self.whole
        if not self.column or not whole:
            return self
        selected = self._selected(partial(at_least, ns=share * whole), self.column)
        return replace(selected, least=0.0 if self.tree_rows.is_empty() else share)

    def _selected(
        self, select: Callable[[pl.DataFrame, str, pl.Series | None], pl.DataFrame], column: str = ""
    ) -> Self:
        """Return the report with rows selected by a column.

        The layers of a fold are one line of a tree, and single in `rows`.
        """
        if self.view.layout != "tree":
            shown = None if self.tree is None else select(self.tree, column, None)
            return replace(self, rows=select(self.rows, column, None), tree=shown)
        tree = None if self.tree is None else select(self.tree, column, lines_of(self.tree))
        rows = select(self.rows, column, lines_of(self.rows))
        return replace(self, rows=rows, tree=tree)

    def per_step(self, steps: int) -> Self:
        """Return the report with sums divided by a number of steps."""
        meta = self.meta | {name: self.meta[name] / steps for name in _SUMS_OF_META if self.meta.get(name) is not None}
        meta["per_step"] = steps
        if "devices" in meta:
            meta["devices"] = [device | {"busy_ns": device["busy_ns"] / steps} for device in meta["devices"]]
        columns = {**COLUMNS, **{column.name: column for column in self.view.shown}}.values()
        if not self.view.sums:
            return replace(self, meta=meta)
        every, tree = (None if table is None else per_step(table, columns, steps) for table in (self.every, self.tree))
        return replace(self, rows=per_step(self.rows, columns, steps), meta=meta, every=every, tree=tree)


_TIMES: Final = ("time_ns", "self_ns", "exposed_ns", "memory_peak_bytes")
"""Columns by which `top` selects in views without the columns of `Report.column`."""
_SUMS_OF_META: Final = (
    "gpu_ns", "attributed_gpu_ns", "unattributed_gpu_ns", "gpu_by_sequence_ns", "gpu_by_time_ns", "gpu_guessed_ns",
    "warmup_gpu_ns", "host_ns", "wall_ns", "whole_ns", "ranges", "kernels", "copies",
)  # fmt: skip
