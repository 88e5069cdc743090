"""Reports of a profile: rows and metadata for the renderers of tables, files and charts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, Final, Literal, TypeAlias, get_args

import polars as pl

from annot.analyze.work import by_layer_with_work, by_work
from annot.attribution import Attribution, attribute, by_kernel, by_module, by_op, by_phase, by_step, summarize
from annot.profile import Profile, Source

__all__ = [
    "ANALYSES", "GROUPINGS", "GROUPS", "ORDERS", "TABLES", "Analysis", "Grouping", "Order", "Report", "Table",
    "advice_count", "report_on",
]  # fmt: skip

Grouping: TypeAlias = Literal["layer", "module", "phase", "op", "kernel", "step", "work"]
"""Subject of a row, in tables that can compare the ranks of a run."""
GROUPINGS: Final[tuple[Grouping, ...]] = get_args(Grouping)

Analysis: TypeAlias = Literal[
    "bottleneck", "advice", "summary", "detail", "iteration", "tensor_core", "op_type", "group", "class"
]
"""Tables of a single profile or rank."""

Table: TypeAlias = Grouping | Analysis

Order: TypeAlias = Literal["order", "time"]
ORDERS: Final[tuple[Order, ...]] = get_args(Order)


def _by_kernel(attribution: Attribution) -> pl.DataFrame:
    """Return the rows of `by_kernel` with kind, library and tensor_cores from the kernel name (null: unknown)."""
    from annot.analyze.kernel_kinds import with_classes, with_unknown_tensor_cores

    return with_unknown_tensor_cores(with_classes(by_kernel(attribution)))


def _by_work(attribution: Attribution) -> pl.DataFrame:
    """Return the rows of `by_work`, with measured work if the profile has hardware counters."""
    from annot.analyze.measured_work import with_measured

    rows, profile = by_work(attribution), attribution.source
    if isinstance(profile, Profile) and profile.metrics.height:
        return with_measured(rows, attribution, profile)
    return rows


def _analysis(module: str, function: str) -> Callable[[Attribution], pl.DataFrame]:
    """Return a wrapper that imports its function from `annot.analyze` on the first call: a report needs only one."""

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
    "bottleneck": _analysis("bottlenecks", "by_bottleneck"),
    "advice": _analysis("advice", "by_advice"),
    "summary": _analysis("run_summary", "by_summary"),
    "detail": _analysis("dlprof_reports", "by_detail"),
    "iteration": _analysis("dlprof_reports", "by_iteration"),
    "tensor_core": _analysis("dlprof_reports", "by_tensor_core"),
    "op_type": _analysis("dlprof_reports", "by_op_type"),
    "group": _analysis("dlprof_reports", "by_group"),
    "class": _analysis("kernel_kinds", "by_class"),
}

TABLES: Final[Mapping[Table, Callable[[Attribution], pl.DataFrame]]] = dict([*GROUPS.items(), *ANALYSES.items()])

_PLURALS: Final = {"advice": "advice", "class": "classes", "summary": "summary", "work": "layers"}

_ADVISED: Final = 50_000
"""Number of GPU activities up to which a layer report counts advice; above it takes too long."""


@dataclass(frozen=True, slots=True)
class Report:
    """Report of a profile, input of the renderers.

    Args:
        by: subject of a row.
        rows: result of the function of that name in `TABLES`.
        meta: result of `annot.attribution.summarize`, plus advice (number of suggestions, if counted).
    """

    by: Table
    rows: pl.DataFrame
    meta: dict[str, Any]

    @property
    def name(self) -> str:
        """Plural of the subject, such as `layers`."""
        return _PLURALS.get(self.by, f"{self.by}s")

    @property
    def time(self) -> str:
        """Column of the main time: GPU time if the profile has GPU activity, else host time."""
        return "gpu_ns" if self.meta["kernels"] or self.meta["copies"] else "host_ns"

    @property
    def column(self) -> str:
        """Column of `rows` to sort by: total time, or self time in tables without a total."""
        return self.time if self.time in self.rows.columns else self.time.replace("_ns", "_self_ns")

    def sorted(self, sort: Order) -> Report:
        """Return the report sorted as in `report_on`."""
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
        profile: result of `annot.load`.
        by: subject of a row.
        domain: NVTX domain whose ranges are used; None: all domains.
        sort: "order" keeps the order of appearance (kernels: longest total first); "time" sorts by time, longest first.
        steps: step numbers to include; None: the whole profile, including time outside steps.
        step_range: text of the step ranges, with ``#`` for any number; None: detect the steps.

    Returns:
        Rows with times in ns, and metadata.

    Raises:
        ValueError: `by` or `sort` is unknown, or the profile lacks the selected `steps`.
    """
    if by not in TABLES:
        raise ValueError(f"by must be one of {', '.join(TABLES)}, got {by!r}")
    if sort not in ORDERS:
        raise ValueError(f"sort must be one of {', '.join(ORDERS)}, got {sort!r}")
    attribution = attribute(profile, domain=domain, steps=steps, step_range=step_range)
    meta = summarize(attribution) | advice_count(attribution, by) | device_words(attribution)
    return Report(by, TABLES[by](attribution), meta).sorted(sort)


def device_words(attribution: Attribution) -> dict[str, str]:
    """Return the vendor's name of the matrix units, such as Tensor Cores, for the `meta` of a report."""
    from annot.analyze.tensor_cores import matrix_units

    return {"matrix_units": matrix_units(attribution.meta)}


def advice_count(attribution: Attribution, by: Table) -> dict[str, int]:
    """Return the number of suggestions for the `meta` of a layer report; empty if they are not counted."""
    activities = int(attribution.nodes.select(pl.col("kernels") + pl.col("copies")).sum().item())
    if by != "layer" or activities > _ADVISED:
        return {}
    from annot.analyze.advice import advise

    return {"advice": len(advise(attribution))}
