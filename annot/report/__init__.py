"""Reports: what a table, a file or a picture shows, and the renderers that turn it into text or bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, Final, Literal, TypeAlias, get_args

import polars as pl

from annot.analyze.work import by_layer_with_work, by_work
from annot.correlate import (
    Attribution,
    attribute,
    by_kernel,
    by_module,
    by_op,
    by_phase,
    by_step,
    summarize,
)
from annot.profile import Profile, Source

__all__ = [
    "ANALYSES", "GROUPINGS", "GROUPS", "ORDERS", "TABLES", "Analysis", "Grouping", "Order", "Report", "Table",
    "advice_count", "report_on",
]  # fmt: skip

Grouping: TypeAlias = Literal["layer", "module", "phase", "op", "kernel", "step", "work"]
"""What the rows of a table stand for that the ranks of a run are compared by."""
GROUPINGS: Final[tuple[Grouping, ...]] = get_args(Grouping)

Analysis: TypeAlias = Literal[
    "bottleneck", "advice", "summary", "detail", "iteration", "tensor_core", "op_type", "group", "class"
]
"""Tables about one profile, or one rank."""

Table: TypeAlias = Grouping | Analysis

Order: TypeAlias = Literal["order", "time"]
ORDERS: Final[tuple[Order, ...]] = get_args(Order)


def _by_kernel(attribution: Attribution) -> pl.DataFrame:
    """Return what `by_kernel` does, and what the names tell: kind, library, tensor_cores (null: they do not)."""
    from annot.analyze.kernels import only_told, with_classes

    return only_told(with_classes(by_kernel(attribution)))


def _by_work(attribution: Attribution) -> pl.DataFrame:
    """Return what `by_work` does, and what hardware counters measured, if there are any."""
    from annot.analyze.measured import with_measured

    rows, profile = by_work(attribution), attribution.source
    if isinstance(profile, Profile) and profile.metrics.height:
        return with_measured(rows, attribution, profile)
    return rows


def _analysis(module: str, function: str) -> Callable[[Attribution], pl.DataFrame]:
    """Return what calls a function of `annot.analyze`, and loads it then, for a report needs one of them."""

    def table(attribution: Attribution) -> pl.DataFrame:
        rows: pl.DataFrame = getattr(import_module(f"annot.analyze.{module}"), function)(attribution)
        return rows

    return table


GROUPS: Final[dict[Grouping, Callable[[Attribution], pl.DataFrame]]] = {
    "layer": by_layer_with_work,
    "module": by_module,
    "phase": by_phase,
    "op": by_op,
    "kernel": _by_kernel,
    "step": by_step,
    "work": _by_work,
}

ANALYSES: Final[dict[Analysis, Callable[[Attribution], pl.DataFrame]]] = {
    "bottleneck": _analysis("bottleneck", "by_bottleneck"),
    "advice": _analysis("advice", "by_advice"),
    "summary": _analysis("summary", "by_summary"),
    "detail": _analysis("dlprof", "by_detail"),
    "iteration": _analysis("dlprof", "by_iteration"),
    "tensor_core": _analysis("dlprof", "by_tensor_core"),
    "op_type": _analysis("dlprof", "by_op_type"),
    "group": _analysis("dlprof", "by_group"),
    "class": _analysis("kernels", "by_class"),
}

TABLES: Final[Mapping[Table, Callable[[Attribution], pl.DataFrame]]] = dict([*GROUPS.items(), *ANALYSES.items()])

_PLURALS: Final = {"advice": "advice", "class": "classes", "summary": "summary", "work": "layers"}

_ADVISED: Final = 50_000
"""Pieces of device work up to which a report of layers looks for advice, which takes a moment."""


@dataclass(frozen=True, slots=True)
class Report:
    """All that a renderer needs.

    Args:
        by: what the rows stand for.
        rows: as the function of that name in `TABLES` returns them.
        meta: as `annot.correlate.summarize` returns it; and advice: how many pieces there are, if anybody looked.
    """

    by: Table
    rows: pl.DataFrame
    meta: dict[str, Any]

    @property
    def name(self) -> str:
        """What the rows are, such as `layers`."""
        return _PLURALS.get(self.by, f"{self.by}s")

    @property
    def time(self) -> str:
        """The time of a run that the table is about: that of devices if they did anything, else of the host."""
        return "gpu_ns" if self.meta["kernels"] or self.meta["copies"] else "host_ns"

    @property
    def column(self) -> str:
        """The column of `rows` that answers "which used the time"."""
        return self.time if self.time in self.rows.columns else self.time.replace("_ns", "_self_ns")

    def sorted(self, sort: Order) -> Report:
        """Return the report with its rows in this order; see `report_on`."""
        if sort == "order" or self.column not in self.rows.columns:
            return self
        return replace(self, rows=self.rows.sort(self.column, descending=True, nulls_last=True, maintain_order=True))


def report_on(
    profile: Source,
    *,
    by: Table = "layer",
    domain: str | None = None,
    sort: Order = "order",
    steps: slice | None = None,
    step_range: str | None = None,
) -> Report:
    """Return the report of a profile.

    Args:
        profile: what `annot.load` gave.
        by: what a row stands for.
        domain: only ranges of this NVTX domain take part; None: all do.
        sort: "order" keeps the rows in order of appearance (kernels: the longest total first); "time" puts
            the longest first.
        steps: only steps with these numbers take part; None: all, and what lies in no step.
        step_range: text of the ranges that are the steps, ``#`` for any number; None: they are found.

    Raises:
        ValueError: `by` or `sort` is not one of the names above, or steps are asked for, and there are none.
    """
    if by not in TABLES:
        raise ValueError(f"by must be one of {', '.join(TABLES)}, got {by!r}")
    if sort not in ORDERS:
        raise ValueError(f"sort must be one of {', '.join(ORDERS)}, got {sort!r}")
    attribution = attribute(profile, domain=domain, steps=steps, step_range=step_range)
    meta = summarize(attribution) | advice_count(attribution, by) | device_words(attribution)
    return Report(by, TABLES[by](attribution), meta).sorted(sort)


def device_words(attribution: Attribution) -> dict[str, str]:
    """Return what a report calls the units for matrices of the devices, for its `meta`."""
    from annot.analyze.tensor_cores import matrix_units

    return {"matrix_units": matrix_units(attribution.meta)}


def advice_count(attribution: Attribution, by: Table) -> dict[str, int]:
    """Return how many pieces of advice there are, for the `meta` of a report of layers; empty: nobody looked."""
    pieces = int(attribution.nodes.select(pl.col("kernels") + pl.col("copies")).sum().item())
    if by != "layer" or pieces > _ADVISED:
        return {}
    from annot.analyze.advice import advise

    return {"advice": len(advise(attribution))}
