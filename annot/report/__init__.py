"""Reports: what a table, a file or a picture shows, and the renderers that turn it into text or bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, get_args

import polars as pl

from annot.correlate import (
    Attribution,
    attribute,
    by_kernel,
    by_layer,
    by_module,
    by_phase,
    by_step,
    summarize,
)
from annot.profile import Profile

__all__ = ["GROUPINGS", "ORDERS", "Grouping", "Order", "Report", "report_on"]

Grouping: TypeAlias = Literal["layer", "module", "phase", "kernel", "step"]
GROUPINGS: Final[tuple[Grouping, ...]] = get_args(Grouping)

Order: TypeAlias = Literal["order", "time"]
ORDERS: Final[tuple[Order, ...]] = get_args(Order)

_GROUPS: Final[dict[Grouping, Callable[[Attribution], pl.DataFrame]]] = {
    "layer": by_layer,
    "module": by_module,
    "phase": by_phase,
    "kernel": by_kernel,
    "step": by_step,
}


@dataclass(frozen=True, slots=True)
class Report:
    """All that a renderer needs.

    Args:
        by: what the rows stand for.
        rows: as the function of that name in `annot.correlate` returns them.
        meta: as `annot.correlate.summarize` returns it.
    """

    by: Grouping
    rows: pl.DataFrame
    meta: dict[str, Any]

    @property
    def time(self) -> str:
        """The column that answers "which used the time": device time if there is any, else host time."""
        return "gpu_ns" if self.meta["kernels"] or self.meta["copies"] else "host_ns"


def report_on(profile: Profile, *, by: Grouping = "layer", domain: str | None = None, sort: Order = "order") -> Report:
    """Return the report of a profile.

    Args:
        profile: what `annot.load` gave.
        by: what a row stands for.
        domain: only ranges of this NVTX domain take part; None: all do.
        sort: "order" keeps the rows in order of appearance (kernels: the longest total first); "time" puts
            the longest first.

    Raises:
        ValueError: `by` or `sort` is not one of the names above.
    """
    if by not in _GROUPS:
        raise ValueError(f"by must be one of {', '.join(GROUPINGS)}, got {by!r}")
    if sort not in ORDERS:
        raise ValueError(f"sort must be one of {', '.join(ORDERS)}, got {sort!r}")
    attribution = attribute(profile, domain=domain)
    report = Report(by, _GROUPS[by](attribution), summarize(attribution))
    if sort == "order":
        return report
    return Report(by, report.rows.sort(report.time, descending=True, maintain_order=True), report.meta)
