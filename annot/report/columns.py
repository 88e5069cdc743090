"""The columns of all views: heading, unit, and how rows are combined. One declaration serves every renderer."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, Literal, TypeAlias, TypeVar

import polars as pl

from annot.analyze.tensor_cores import precision_words
from annot.report.units import Unit as TimeUnit
from annot.report.units import amount, count, printable, share, unit_for

_Row = TypeVar("_Row")

Unit: TypeAlias = Literal["ns", "own ns", "share", "of total", "percent", "ratio", "count", "amount", "bytes", "text"]
"""``ns`` columns of a table have one unit of time, an ``own ns`` column has its own. ``share`` is 0 to 1, ``percent``
0 to 100, ``of total`` the share of a time in the whole run. ``amount`` has an SI prefix."""

Combined: TypeAlias = Literal["sum", "number", "inclusive", "max", "min", "any", "mean", "rate", "same"]
"""How rows become one row: ``sum`` of executions, ``number`` of distinct things, ``inclusive`` time with the layers
inside, the time-weighted ``mean``, the ``rate`` of two sums (`_RATES`), or the value that is the ``same`` in all."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a view.

    Args:
        name: name in the rows and in files.
        title: heading in tables.
        unit: unit of the values, which selects the format of the cells.
        combined: how the values of several rows are combined. Sums and inclusive times are also divided by the number
            of steps in tables per step.
        least: minimum width of the terminal (characters) for the column to appear. Pages on narrow screens show only
            the columns without one.
        full: name in full, for lists and tooltips; empty: the title.

    Example:
        >>> Column("flops", "FLOP", "amount", "sum").title
        'FLOP'
    """

    name: str
    title: str
    unit: Unit = "count"
    combined: Combined = "same"
    least: int = 0
    full: str = ""


def _times(*columns: tuple[str, str, Combined, int] | tuple[str, str, Combined, int, str]) -> list[Column]:
    return [Column(name, title, "ns", *more) for name, title, *more in columns]


_PRECISION: Final = "Precision"
COLUMNS: Final[Mapping[str, Column]] = {
    column.name: column
    for column in (
        Column("phase", "Phase", "text"),
        Column("calls", "Calls", "count", "sum"),
        Column("time_share", "Share", "share", "inclusive"),
        Column("kernels", "Kernels", "count", "sum", 100, full="Kernels (self)"),
        Column("kernels_total", "Kernels", "count", "inclusive", 100),
        Column("copies", "Copies", "count", "sum", 100, full="Copies and memsets"),
        *_times(
            ("gpu_ns", "GPU", "inclusive", 0, "GPU time"),
            ("gpu_self_ns", "GPU self", "sum", 0, "GPU self time"),
            ("gpu_busy_ns", "GPU busy", "inclusive", 100, "GPU busy time"),
            ("gpu_span_ns", "GPU span", "max", 140),
            ("gpu_by_time_ns", "By time", "sum", 140),
            ("gpu_by_sequence_ns", "By sequence", "sum", 160),
            ("gpu_idle_ns", "GPU idle", "sum", 90, "GPU idle time"),
            ("gpu_launch_ns", "Launch wait", "sum", 120),
            ("time_ns", "Time", "inclusive", 0),
            ("self_ns", "Time", "sum", 0),
            ("data_ns", "Data", "sum", 0),
            ("forward_ns", "Forward", "sum", 0),
            ("backward_ns", "Backward", "sum", 0),
            ("optimizer_ns", "Optimizer", "sum", 76),
            ("tc_ns", "TC time", "sum", 76, "Tensor Core time"),
            ("outside_ns", "Outside", "sum", 90),
            ("exposed_ns", "Exposed", "sum", 0, "Exposed communication that the layer launches"),
            ("wait_ns", "Waits", "sum", 0, "Exposed communication that the layer waits for"),
            ("matrix_ns", "Matrix", "sum", 120),
        ),
        Column("host_ns", "Host", "own ns", "inclusive", full="Host time"),
        Column("host_self_ns", "Host self", "own ns", "sum", 76, full="Host self time"),
        Column("launch_ns", "Launch", "own ns", "sum", 100, full="Launch time"),
        Column("gpu_mean_ns", "Mean", "own ns", "mean", 100, full="GPU time per call"),
        Column("gpu_min_ns", "Min", "own ns", "min", 140, full="Shortest call"),
        Column("gpu_max_ns", "Max", "own ns", "max", 140, full="Longest call"),
        Column("mean_ns", "Mean", "own ns", "mean", 76),
        Column("min_ns", "Min", "own ns", "min", 100),
        Column("max_ns", "Max", "own ns", "max", 100),
        Column("start_ns", "Start", "own ns", "min", 140),
        Column("layers", "Layers", "count", "number", 76),
        Column("names", "Names", "count", "number", 76),
        Column("batch", "Batch", "count", "same", 90),
        Column("step", "Step", "count", "same"),
        Column("requests", "Requests", "count", "same"),
        Column("tokens", "Tokens", "count", "same"),
        Column("context", "Context", "count", "same", full="Tokens in the context"),
        Column("device", "Device", "count", "same", 140),
        Column("stream", "Stream", "count", "same", 140),
        Column("kind", "Kind", "text", "same", 90),
        Column("library", "Library", "text", "same", 90),
        Column("tensor_cores", "TC", "text", "same", full="Tensor Cores"),
        Column("tc_eligible", "Eligible", "text", "any"),
        Column("tc_used", "Use TC", "text", "any"),
        Column("tc_share", "On TC", "share", "rate"),
        Column("tc_kernels", "TC kernels", "count", "sum", 100),
        Column("flops", "FLOP", "amount", "sum", full="FLOPs"),
        Column("bytes", "Bytes", "amount", "sum", 76),
        Column("params", "Params", "amount", "number", 90, full="Parameters"),
        Column("flops_per_s", "FLOP/s", "amount", "rate", 76, full="Compute throughput (FLOP/s)"),
        Column("bytes_per_s", "B/s", "amount", "rate", 90, full="Memory throughput (B/s)"),
        Column("flops_measured", "Measured", "amount", "sum"),
        Column("ratio", "Ratio", "ratio", "rate"),
        Column("intensity", "FLOP/B", "amount", "rate", 76, full="Arithmetic intensity (FLOP/B)"),
        Column("precision", _PRECISION, "text", "same", 120),
        Column("roof_share", "Roof", "share", "mean", 76, full="Share of the roof"),
        Column("bound", "Bound", "text", full="Bound by"),
        Column("backward_to_forward", "Bwd/fwd", "ratio", "mean", 90),
        Column("stall_share", "Stall", "share", "mean", 110, full="Stalls"),
        Column("stall_reason", "Stall reason", "text", "same", 120, full="Main stall reason"),
        Column("instructions", "Instr", "amount", "sum", 120, full="Instructions"),
        Column("load_store_share", "Ld/st", "share", "mean", 120, full="Loads and stores"),
        Column("l1_hit_rate", "L1 hit", "percent", "mean", 130, full="L1 hit rate"),
        Column("l2_hit_rate", "L2 hit", "percent", "mean", 130, full="L2 hit rate"),
        Column("dram_throughput", "DRAM", "percent", "mean", 110, full="DRAM throughput"),
        Column("counted", "Counted", "text", "any"),
        Column("reason", "Reason", "text", "same", 120, "Tensor Core usage"),
        Column("l1_throughput", "L1", "percent", "mean", 130, "L1 throughput"),
        Column("l2_throughput", "L2", "percent", "mean", 130, "L2 throughput"),
        Column("l2_read_bytes_per_s", "L2 read", "amount", "mean", 130, "L2 read throughput (B/s)"),
        Column("l2_write_bytes_per_s", "L2 write", "amount", "mean", 130, "L2 write throughput (B/s)"),
        Column("dram_read_bytes_per_s", "DRAM read", "amount", "mean", 130, "DRAM read throughput (B/s)"),
        Column("dram_write_bytes_per_s", "DRAM write", "amount", "mean", 130, "DRAM write throughput (B/s)"),
        Column("memory_source", "Memory", "text"),
        Column("memory_change_bytes", "Change", "bytes", "sum", full="Memory change"),
        Column("memory_peak_bytes", "Peak", "bytes", "max", full="Peak memory"),
        Column("step_ns", "Time", "ns"),
        Column("experts", "Experts"),
        Column("busiest_ns", "Busiest", "ns", "sum"),
        Column("busiest", "Expert", full="Busiest expert"),
        Column("imbalance", "Imbalance", "ratio", full="Busiest / mean"),
        Column("stage", "Stage"),
        Column("microbatch", "Micro-batch"),
        Column("busy_ns", "Busy", "ns", "sum"),
        Column("bubble_ns", "Bubble", "ns", "sum"),
        Column("bubble_share", "Share", "share", "mean", full="Bubble / time of the pipeline"),
        Column("transfer_ns", "Send/recv", "ns", "sum", 90),
        Column("count", "Count"),
        Column("ns", "Time", "own ns"),
        Column("share", "Share", "share"),
        Column("hidden_ns", "Overlapped", "own ns", "same", 76),
        Column("operations", "Launches", "text", "same", 76, "Collectives that the layer launches"),
        Column("waits_for", "Waits for", "text", "same", 100, "Collectives that the layer waits for"),
        Column("bus_bytes_per_s", "Bus B/s", "amount", "mean", 90, "Bus bandwidth (B/s)"),
    )
}
"""The columns of annot's own views by name. A view may replace one, or have columns of its own."""


@dataclass(frozen=True, slots=True)
class Formatted(Generic[_Row]):
    """A column that is ready to print.

    Args:
        title: heading, with the unit of time if the column has its own.
        show: formats the cell of a row.
        least: minimum width of the terminal for the column to appear.
        spare: whether the column is hidden before others that do not fit: a time that is 0 in all rows.
        keep: whether the column is hidden after others that do not fit: the verdict speaks of it.
        unit: unit that the heading lacks, because the table names it.
    """

    title: str
    show: Callable[[_Row], str]
    least: int = 0
    spare: bool = False
    keep: bool = False
    unit: str = ""

    @property
    def full_title(self) -> str:
        """The heading with its unit."""
        return f"{self.title}, {self.unit}" if self.unit else self.title


def formatted(
    columns: Iterable[Column], rows: Sequence[Mapping[str, Any]], whole: float | None
) -> list[Formatted[Mapping[str, Any]]]:
    """Return the printable columns that have a value in any row.

    Args:
        columns: the columns.
        rows: rows by column name.
        whole: total time of the run (ns), for shares; None or 0: shares are empty.

    Example:
        >>> rows = [{"gpu_ns": 1500, "calls": 2}, {"gpu_ns": 20, "calls": 1}]
        >>> [column.show(rows[0]) for column in formatted([COLUMNS["gpu_ns"], COLUMNS["calls"]], rows, None)]
        ['1.50', '2']
    """
    used = [column for column in columns if any(row.get(column.name) is not None for row in rows)]
    unit = unit_for(row[column.name] for column in used if column.unit == "ns" for row in rows)
    return [_formatted(column, rows, whole, unit) for column in used]


def _formatted(
    column: Column, rows: Sequence[Mapping[str, Any]], whole: float | None, shared: TimeUnit
) -> Formatted[Mapping[str, Any]]:
    name, title, show = column.name, column.title, _FORMATS.get(column.unit, _plain)
    if column.unit == "ns":
        show = shared.show
    elif column.unit == "own ns":
        unit = unit_for(row[name] for row in rows)
        title, show = f"{title} {unit.name}", unit.show
    elif column.unit == "of total":
        return Formatted(title, lambda row: share(row[name], whole or 0), column.least)
    spare = column.unit in ("ns", "own ns") and not any(row[name] for row in rows)
    return Formatted(
        title, lambda row: show(row[name]), column.least, spare, unit=shared.name if column.unit == "ns" else ""
    )


def in_units(columns: Iterable[Formatted[_Row]], units: str) -> list[Formatted[_Row]]:
    """Return columns in the words for the matrix units of a GPU: ``TC`` for Tensor Cores, ``MC`` for Matrix Cores."""
    short = "".join(word[0] for word in units.split())

    def named(column: Formatted[_Row]) -> Formatted[_Row]:
        if column.title == _PRECISION:
            return replace(column, show=lambda row: precision_words(column.show(row), units))
        return replace(column, title=re.sub(r"\bTC\b", short, column.title))

    return [*map(named, columns)]


def _plain(value: Any) -> str:
    """A text, a flag or a list in words; empty for None."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return printable(", ".join(value) if isinstance(value, list) else str(value))


_FORMATS: Final[Mapping[str, Callable[[Any], str]]] = {
    "share": lambda ratio: "" if ratio is None else f"{100 * ratio:.1f}%",
    "percent": lambda percent: "" if percent is None else f"{percent:.1f}%",
    "ratio": lambda ratio: "" if ratio is None else f"{ratio:.3f}",
    "count": count,
    "amount": amount,
    "bytes": lambda number: "" if number is None else f"{'-' if number < 0 else ''}{amount(abs(number))}B",
}


_WEIGHT: Final = "(weight)"
_BUSY: Final = "gpu_busy_ns"
_TIME: Final = ("time_ns", "gpu_self_ns", "host_self_ns")
"""The time of a row: the first of these columns that is not 0."""
_RATES: Final = {
    "flops_per_s": ("flops", "", 1e9),
    "bytes_per_s": ("bytes", "", 1e9),
    "intensity": ("flops", "bytes", 1.0),
    "ratio": ("flops_measured", "flops", 1.0),
    "tc_share": ("tc_ns", "gpu_self_ns", 1.0),
}
"""Numerator, denominator (empty: the time) and factor of each rate."""


def per_step(rows: pl.DataFrame, columns: Iterable[Column], steps: int) -> pl.DataFrame:
    """Return rows of a view whose sums and inclusive times are divided by the number of steps that they cover.

    Rows of one batch size cover only the steps of that size, whose number is in `batch_steps`.
    """
    sums = [
        column.name
        for column in columns
        if column.combined in ("sum", "inclusive") and column.unit != "share" and column.name in rows.columns
    ]
    covered = pl.col("batch_steps").fill_null(steps) if "batch_steps" in rows.columns else pl.lit(steps)
    return rows.with_columns(pl.col(sums) / covered)


def combined(
    rows: pl.DataFrame, keys: Sequence[str], columns: Iterable[Column], *, beside: bool = False
) -> pl.DataFrame:
    """Return a row per combination of the keys, in order of first appearance; columns that the rows lack stay out.

    Inclusive times of rows inside each other cannot be added up, so that they stay out, too. `beside`: the rows of a
    combination are not inside each other; only their busy time stays out, because they can overlap.
    """
    time = next((name for name in _TIME if name in rows.columns and (rows[name] > 0).any()), None)
    rows = rows.with_columns(
        pl.lit(1.0).alias(_WEIGHT) if time is None else pl.col(time).cast(pl.Float64).alias(_WEIGHT)
    )
    present = [column for column in columns if column.name in rows.columns and column.name not in keys]
    left_out = {
        column.name for column in present if column.combined == "inclusive" and (not beside or column.name == _BUSY)
    }
    values = [_combined(column, rows.columns).alias(column.name) for column in present if column.name not in left_out]
    return rows.group_by(*keys, maintain_order=True).agg(values)


def _combined(column: Column, known_names: Sequence[str]) -> pl.Expr:
    values = pl.col(column.name)
    if column.combined in ("sum", "number", "inclusive"):
        return summed(column.name)
    if column.combined == "same":
        return pl.when(values.drop_nulls().n_unique() == 1).then(values.drop_nulls().first())
    if column.combined == "rate":
        above, below, factor = _RATES[column.name]
        below = below or _WEIGHT
        if above in known_names and below in known_names:
            return _quotient(pl.col(above), pl.col(below)) * factor
    if column.combined in ("mean", "rate"):
        return _quotient(values * pl.col(_WEIGHT), pl.when(values.is_not_null()).then(pl.col(_WEIGHT)))
    any_of = pl.when(values.is_not_null().any()).then(values.any())
    return {"max": values.max(), "min": values.min(), "any": any_of}[column.combined]


def _quotient(above: pl.Expr, below: pl.Expr) -> pl.Expr:
    """The quotient of two sums over the rows in which both are known; null: no such rows, or their sum is 0."""
    both = above.is_not_null() & below.is_not_null()
    whole = below.filter(both).sum()
    return pl.when(whole > 0).then(above.filter(both).sum() / whole)


def summed(name: str) -> pl.Expr:
    """Return the sum of a column; null if all values are null."""
    return pl.when(pl.col(name).is_not_null().any()).then(pl.col(name).sum()).alias(name)


def of_names(names: Iterable[str | Column]) -> list[Column]:
    """Return columns by name. A text has names separated by spaces, or is ``name=Title`` for another heading.

    Raises:
        ValueError: a name is unknown.

    Example:
        >>> [column.title for column in of_names(["calls kernels", "gpu_ns=Time in total"])]
        ['Calls', 'Kernels', 'Time in total']
    """
    columns: list[Column] = []
    for text in names:
        if isinstance(text, Column):
            columns.append(text)
            continue
        name, _, title = text.partition("=")
        columns += [replace(_column(name), title=title)] if title else map(_column, text.split())
    return columns


def _column(name: str) -> Column:
    if name not in COLUMNS:
        raise ValueError(f"a column must be a Column or the name of a column of annot, got {name!r}")
    return COLUMNS[name]


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
    Column("uncertainty", "±", "ratio", full="Half the width of the confidence interval of the speedup"),
    Column("share", "Share", "share"),
    Column("kernels_gone", "Kernels", "text", full="Kernels that only A (−) or only B (+) has"),
)
"""Two profiles."""


def head(
    column: Column, show: Any, least: int | None = None, title: str = "", *, keep: bool = False, unit: str = ""
) -> Formatted[Any]:
    """Return a column that is ready to print, with a function that formats the cell of a row; see `Formatted`.

    Example:
        >>> head(TREE["self"], str).title
        'Self'
    """
    return Formatted(title or column.title, show, column.least if least is None else least, keep=keep, unit=unit)


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
