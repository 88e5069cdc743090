"""The columns of tables whose rows are not those of a view: the layer tree, ranks, comparisons, tables of the page.

The page receives them, and those of the views that it shows, by `page_columns`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from annot.report.columns import COLUMNS, Column, Formatted, of_names
from annot.report.views import ROOFLINE_COLUMNS, find_view

__all__ = ["ACROSS", "ARRIVALS", "COMPARED", "TREE", "as_data", "head", "page_columns"]

Columns = Mapping[str, Column]


def _named(*columns: Column) -> Columns:
    return {column.name: column for column in columns}


TREE: Final = _named(
    Column("forward", "Forward", "ns"),
    Column("backward", "Backward", "ns"),
    Column("recompute", "Recompute", "ns"),
    Column("total", "Total", "ns", least=76),
    Column("self", "Self", "ns", least=100, full="Time without child layers"),
    Column("share", "Share", "share", full="Share of the total time"),
    Column("median", "Median", "own ns", least=76, full="Median of repeated layers"),
    Column("slowest", "Slowest", "own ns", least=76, full="Slowest of repeated layers"),
    Column("index", "Index", "text", least=76, full="Index of the slowest of repeated layers"),
    Column("iqr", "IQR", "own ns", least=100, full="Interquartile range of repeated layers"),
    Column("calls", "Calls"),
    Column("busy", "Busy", "ns", least=90),
    Column("kernels", "Kernels", least=100),
    Column("by_time", "By time", "ns", least=90),
    Column("host", "Host", "own ns", least=76),
)
"""The layer tree."""

ACROSS: Final = _named(
    Column("phase", "Phase", "text"),
    Column("median_ns", "Median", "ns"),
    Column("max_ns", "Slowest", "ns"),
    Column("slowest", "Rank", full="Slowest rank"),
    Column("spread_ns", "Spread", "ns", full="Slowest minus fastest rank"),
    Column("spread_share", "Spread %", "share", least=80, full="Spread as a share of the median"),
    Column("ranks", "On ranks", least=80),
    Column("collective_median_ns", "Collective", "ns", least=80),
)
"""Layers across ranks."""

ARRIVALS: Final = _named(
    Column("skew_median_ns", "Skew", "ns", full="Median wait for the last rank"),
    Column("transfer_median_ns", "Transfer", "ns", full="Median time from the arrival of the last rank"),
    Column("late", "Late", full="Rank that arrives last"),
)
"""Collectives across ranks."""

COMPARED: Final = _named(
    Column("phase", "Phase", "text"),
    Column("a_ns", "A", "ns", least=76),
    Column("b_ns", "B", "ns", least=76),
    Column("difference_ns", "B − A", "ns"),
    Column("speedup", "Speedup", "ratio"),
    Column("uncertainty", "±", "ratio", full="Half the width of the 95% confidence interval of the speedup"),
    Column("share", "Share", "share"),
    Column("kernels_gone", "Kernels", "text", full="Kernels that only A (−) or only B (+) has"),
)
"""Two profiles."""

_RANKS: Final = (
    Column("rank", "Rank"),
    Column("gpu_ns", "GPU", "ns"),
    Column("host_ns", "Host", "ns"),
    Column("step", "Step", "ns", full="Median step"),
    Column("steps", "Steps"),
    Column("collective_ns", "Collectives", "ns"),
    Column("source", "Profile", "text"),
    Column("error", "Problem", "text"),
)
_EVENTS: Final = (
    Column("event", "Event", "text"),
    Column("lane", "Lane", "text", least=100),
    Column("start_ns", "From", "ns"),
    Column("length_ns", "Time", "ns"),
)
_FACTS: Final = (
    "calls", "gpu_ns", "gpu_self_ns", "gpu_mean_ns", "gpu_min_ns", "gpu_max_ns", "gpu_busy_ns", "gpu_idle_ns",
    "host_ns", "host_self_ns", "kernels", "kernels_total", "copies", "flops", "bytes", "params", "intensity",
    "flops_per_s", "bytes_per_s", "precision", "roof_share", "bound", "tc_ns", "reason", "memory_change_bytes",
    "memory_peak_bytes",
)  # fmt: skip
_COUNTERS: Final = (
    "stall_share", "stall_reason", "instructions", "load_store_share", "l1_throughput", "l1_hit_rate", "l2_throughput",
    "l2_hit_rate", "l2_read_bytes_per_s", "l2_write_bytes_per_s", "dram_read_bytes_per_s", "dram_write_bytes_per_s",
    "dram_throughput",
)  # fmt: skip


def head(column: Column, show: Any, least: int | None = None, title: str = "", *, keep: bool = False) -> Formatted[Any]:
    """Return a column that is ready to print, with a function that formats the cell of a row; see `Formatted`.

    Example:
        >>> head(TREE["self"], str).title
        'Self'
    """
    return Formatted(title or column.title, show, column.least if least is None else least, keep=keep)


def page_columns() -> dict[str, list[dict[str, Any]]]:
    """Return the columns of the page's tables as JSON-serializable values."""
    kernel = find_view("kernel").shown
    tables: dict[str, Iterable[Column]] = {
        "tree": TREE.values(),
        "kernels": [*kernel, COLUMNS["library"], COLUMNS["tensor_cores"]],
        "kinds": find_view("kind").shown,
        "roofline": of_names(ROOFLINE_COLUMNS),
        "steps": [Column("process", "Process"), *find_view("step").shown],
        "parts": find_view("summary").shown,
        "layer_kernels": of_names(
            ("phase", "kind", "tensor_cores", "calls", "gpu_ns=Time", "gpu_self_ns=Self", "mean_ns")
        ),
        "kernel_layers": of_names(("phase", "gpu_ns=Time", Column("main_ns", "Share", "share"), "calls", "mean_ns")),
        "facts": of_names(_FACTS),
        "counters": of_names(_COUNTERS),
        "ranks": _RANKS,
        "across": ACROSS.values(),
        "compared": COMPARED.values(),
        "events": _EVENTS,
    }
    return {name: as_data(columns) for name, columns in tables.items()}


def as_data(columns: Iterable[Column]) -> list[dict[str, Any]]:
    """Return columns as the page takes them."""
    return [
        {
            "name": column.name,
            "title": column.title,
            "unit": column.unit,
            "minor": column.least > 0,
            "full": column.full,
        }
        for column in columns
    ]
