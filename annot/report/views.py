"""The views of a profile: what a row is, its columns, and the function that makes the rows.

Every view is one declaration in `_VIEWS`. All renderers (terminal, page, notebook, files) take a
`annot.report.table.Table`, which `Run.view` makes from a view.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib import import_module
from typing import Any, Final, Literal, TypeAlias

import polars as pl

from annot.attribution.attribute import Attribution
from annot.attribution.gpu_time import MEMORY_COLUMNS
from annot.attribution.layer_tables import by_kernel, by_layer, by_module, by_op, by_phase, of_modules
from annot.attribution.summary import by_step
from annot.profile import Profile
from annot.report.columns import ACROSS, COLUMNS, COMPARED, TREE, Column, as_data, combined, of_names
from annot.util.entry_points import loaded

Rows: TypeAlias = Callable[[Attribution], pl.DataFrame]
COLUMN_GROUPS: Final = ("time", "work", "roofline", "tensor", "memory", "communication", "all")
"""Values of ``--columns``: what a table says about each row."""
_LAYER: Final = ("layer", "module", "phase")


@dataclass(frozen=True, slots=True)
class View:
    """A view of a profile.

    Args:
        name: plural of the row, the name of the rows in JSON.
        by: what a row is, such as ``layer``; the value of ``--by``.
        columns: columns in tables, in order, as for `annot.report.columns.of_names`. Files have all columns of the
            rows.
        rows: function from an attribution to the rows.
        group: what the columns describe, one of `COLUMN_GROUPS`; the value of ``--columns``.
        heading: title of the table; empty: such as ``Work by layer``.
        label: column of the first cell; ``layer`` also shows the module class.
        end: text column at the end of each line.
        empty: text of a table without rows.
        gpu: what the table is about, if it needs a profile with GPU activity, such as ``Kernels``.
        layout: ``tree`` indents layers and shows their phases side by side, ``rows`` prints a line per row.
        sums: whether rows are sums over the steps, which tables show per step.
        calls: whether `rows` needs the names of API calls.
        keys: columns that identify a row across ranks; empty: the ranks of a run cannot be compared by this view.

    Example:
        >>> View("ops", "op", ("calls",), by_op, "work", heading="Operations", label="op").key
        'op_work'
    """

    name: str
    by: str
    columns: tuple[str | Column, ...]
    rows: Rows
    group: str = "time"
    heading: str = ""
    label: str = "layer"
    end: str = ""
    empty: str = "No layers were recorded. Use emit_ranges(model)."
    gpu: str = ""
    layout: Literal["tree", "rows", "advice"] = "rows"
    sums: bool = True
    calls: bool = False
    keys: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", tuple(of_names(self.columns)))
        object.__setattr__(self, "heading", self.heading or f"{self.group.capitalize()} by {self.by}")

    def __reduce__(self) -> tuple[Callable[[str], View], tuple[str]]:
        """Pickle a view by its name, because functions inside functions cannot be pickled."""
        return find_view, (self.key,)

    @property
    def key(self) -> str:
        """The row, and the columns unless these are times: ``layer``, ``layer_work``."""
        return self.by if self.group == "time" else f"{self.by}_{self.group}"

    @property
    def folds(self) -> bool:
        """Whether tables show repeated layers as one line."""
        return self.by == self.label == "layer" and self.sums and self.layout != "advice"

    @property
    def shown(self) -> list[Column]:
        """The columns of tables."""
        return of_names(self.columns)


def _loader(module: str, function: str) -> Rows:
    """Return a function that imports its implementation from `annot.analyze` on the first call."""

    def rows(attribution: Attribution) -> pl.DataFrame:
        table: pl.DataFrame = getattr(import_module(f"annot.analyze.{module}"), function)(attribution)
        return table

    return rows


def _advice(attribution: Attribution) -> pl.DataFrame:
    from annot.changes.advice import by_advice

    return by_advice(attribution)


def _kernels(attribution: Attribution) -> pl.DataFrame:
    """Return the rows of `by_kernel` with kind, library, tensor_cores (null: unknown) and short, from the name."""
    from annot.analyze.kernel_names import with_classes, with_short_names

    return with_short_names(with_classes(by_kernel(attribution)), attribution)


def _complete(rows: Rows) -> Rows:
    """Return a function that adds the other rows with self time to rows by layer, so that these make up the run."""

    def complete(attribution: Attribution) -> pl.DataFrame:
        table, layers = rows(attribution), by_layer(attribution)
        clock = "gpu" if layers["gpu_self_ns"].sum() else "host"
        others = layers.filter(pl.col(f"{clock}_self_ns") > 0).join(table, on=_LAYER, how="anti", maintain_order="left")
        if table.is_empty() or others.is_empty():
            return table
        others = others.with_columns(time_ns=f"{clock}_ns", self_ns=f"{clock}_self_ns")
        if "time_share" in table.columns:
            others = others.with_columns(time_share=pl.col("time_ns") / layers[f"{clock}_self_ns"].sum())
        names = [name for name in table.columns if name in others.columns]
        every = pl.concat([table, others.select(names)], how="diagonal_relaxed")
        order = layers.select(*_LAYER, place=pl.int_range(pl.len()))
        every = every.join(order, on=_LAYER, how="left", maintain_order="left").sort("place", maintain_order=True)
        return every.drop("place").with_columns(pl.col(name).fill_null([]) for name in names if name == "shapes")

    return complete


def _work(attribution: Attribution) -> pl.DataFrame:
    """Return the rows of `by_work`, with measured work if the profile has hardware counters."""
    from annot.analyze.work.layer_work import by_work, with_measured

    rows, profile = by_work(attribution), attribution.source
    if isinstance(profile, Profile) and profile.metrics.height:
        return with_measured(rows, attribution, profile)
    return rows


def _memory(attribution: Attribution) -> pl.DataFrame:
    """Return the layers whose memory was recorded."""
    rows = by_layer(attribution)
    if attribution.memory is None:
        return rows.clear()
    return rows.filter(pl.col("memory_source").is_not_null())


def _kernel_roofline(attribution: Attribution) -> pl.DataFrame:
    from annot.analyze.hardware_counters import default_peaks
    from annot.analyze.roofline import kernel_roofline

    return kernel_roofline(attribution, default_peaks(attribution))


def _executions(attribution: Attribution) -> pl.DataFrame:
    """Return a row per range, crossing ranges last, with its step (null: outside the steps)."""
    forest, times = attribution.forest, attribution.range_times().drop("gpu_by_time_ns")
    length = (pl.col("end") - pl.col("start")).alias("host_ns")
    crossing = forest.crossing.select(length).with_columns(attribution.crossing_gpu_ns.alias("gpu_ns"))
    times = pl.concat([times, crossing], how="diagonal").with_columns(pl.all().fill_null(0))
    ranges = forest.every_range()
    # Categories take a quarter of the memory of texts.
    labels = forest.labels.select(pl.col(*_LAYER, "shapes").cast(pl.Categorical))[ranges["label"]]
    threads = forest.threads.table[ranges["thread"]]
    step = attribution.steps.at(threads["process_code"], ranges["start"]).cast(pl.Int64)
    rows = pl.select(pl.when(step >= 0).then(step).alias("step"), start_ns=ranges["start"])
    rows = rows.hstack(labels).hstack(threads.select("process", "thread")).hstack(times)
    counted = ("host_ns", "host_self_ns", "gpu_ns", "gpu_self_ns", "kernels", "copies")
    return rows.select("step", *_LAYER, "process", "thread", "start_ns", *counted, "shapes")


def _grouped(view: View, *keys: str) -> Rows:
    """Return a function that combines the rows of a layer view by its keys."""
    columns = [_REPLACED.get(column.name, column) for column in view.shown if column.name != "time_share"]

    def grouped(attribution: Attribution) -> pl.DataFrame:
        table = view.rows(attribution)
        return combined(of_modules(table) if "module" in keys else table, keys, columns)

    return grouped


_NO_WORK: Final = "The profile has no shapes, so that FLOPs are unknown. Use emit_ranges(model, shapes=True)."
_NO_RANGES: Final = "No ranges were recorded."
_SHARE: Final = Column("main_ns", "Share", "of total")
_REPLACED: Final = {"time_ns": COLUMNS["self_ns"], "time_share": _SHARE}
"""Columns of layers, whose times include the layers inside, and those of their sums by module or phase."""
ROOFLINE_COLUMNS: Final = ("phase time_ns flops bytes intensity flops_per_s bytes_per_s precision roof_share bound",)
"""Columns of `annot roofline` and of the page's roofline."""
_LAYERS: Final = partial(View, "layers", "layer")
_EXECUTIONS: Final = partial(View, "executions", group="each", sums=False)
_MODULES: Final = partial(
    View, "modules", "module", label="module", empty="No module classes were recorded. Use emit_ranges(model)."
)
_PHASES: Final = partial(View, "phases", "phase", label="phase")
_KERNELS: Final = partial(View, "kernels", "kernel", label="name", gpu="Kernels")
_OPERATIONS: Final = partial(
    View,
    "ops",
    "op",
    label="op",
    empty="No operations were recorded. Use `annot run --collector torch` or emit_ranges(model, ops=True).",
)
_WORK: Final = _LAYERS(
    ("phase calls gpu_self_ns host_self_ns flops bytes params flops_per_s flops_measured ratio",),
    _complete(_work),
    "work",
    "Work by layer: FLOPs, bytes (each tensor moved once), parameters",
    empty=_NO_WORK,
    keys=_LAYER,
)
_ROOFLINE: Final = _LAYERS(
    (
        "phase time_ns time_share bound roof_share flops_per_s intensity batch backward_to_forward gpu_idle_ns flops",
        "bytes precision stall_share stall_reason instructions load_store_share l1_hit_rate l2_hit_rate",
        "dram_throughput",
    ),
    _complete(_loader("roofline", "by_bottleneck")),
    "roofline",
    "Roofline and bottleneck of each layer",
    calls=True,
)
_OF_GROUPS: Final = tuple(_REPLACED.get(column.name, column) for column in _ROOFLINE.shown)
_VIEWS: Final = (
    _LAYERS(
        ("calls gpu_ns gpu_self_ns", _SHARE, "kernels host_ns gpu_busy_ns host_self_ns gpu_by_time_ns"),
        _loader("work.layer_work", "by_layer_with_work"),
        layout="tree",
        keys=_LAYER,
    ),
    _WORK,
    _ROOFLINE,
    _LAYERS(
        ("phase tc_eligible tc_used gpu_self_ns tc_ns tc_share kernels tc_kernels",),
        _complete(_loader("tensor_cores", "by_tensor_core")),
        "tensor",
        "Tensor Cores by layer",
        end="reason",
        calls=True,
        gpu="Tensor Cores",
    ),
    _LAYERS(
        ("phase calls", *MEMORY_COLUMNS),
        _memory,
        "memory",
        empty="Memory was not recorded. Use emit_ranges(model, memory=True).",
    ),
    _LAYERS(
        (
            "phase exposed_ns wait_ns",
            Column("hidden_ns", "Hidden", "ns", "sum"),
            "calls operations waits_for bytes bus_bytes_per_s",
        ),
        _loader("communication", "by_communication"),
        "communication",
        empty="No collective was recorded.",
        keys=_LAYER,
    ),
    _LAYERS(
        (
            "phase calls tc_used gpu_ns gpu_self_ns tc_ns outside_ns gpu_mean_ns gpu_min_ns gpu_max_ns host_ns",
            "launch_ns flops bytes intensity roof_share bound memory_peak_bytes",
            Column("source", "Source", "text", least=140, full="File and line of the class"),
        ),
        _loader("layer_details", "by_detail"),
        "all",
        "All metrics by layer",
        empty=_NO_RANGES,
        end="reason",
        calls=True,
    ),
    _EXECUTIONS(
        "layer",
        ("step phase start_ns host_ns host_self_ns gpu_ns gpu_self_ns kernels",),
        _executions,
        heading="Executions of each layer",
        empty=_NO_RANGES,
    ),
    _MODULES(
        ("phase layers calls gpu_ns gpu_self_ns", _SHARE, "kernels host_ns host_self_ns"),
        by_module,
        keys=("module", "phase"),
    ),
    _MODULES(_WORK.columns, _grouped(_WORK, "module", "phase"), "work", empty=_NO_WORK),
    _MODULES(_OF_GROUPS, _grouped(_ROOFLINE, "module", "phase"), "roofline", calls=True),
    _MODULES(
        ("layers", "tc_eligible=Eligible", "tc_used calls gpu_ns forward_ns backward_ns gpu_mean_ns host_ns"),
        _loader("tensor_cores", "by_op_type"),
        "tensor",
        "Self time by module",
        calls=True,
        gpu="Tensor Cores",
    ),
    _PHASES(("calls gpu_ns", _SHARE, "kernels copies host_ns"), by_phase, empty=_NO_RANGES, keys=("phase",)),
    _PHASES(_WORK.columns[1:], _grouped(_WORK, "phase"), "work", empty=_NO_WORK),
    _PHASES(_OF_GROUPS[1:], _grouped(_ROOFLINE, "phase"), "roofline", calls=True),
    _KERNELS(("calls", "gpu_ns=Total", _SHARE, "mean_ns min_ns max_ns layers kind"), _kernels, keys=("name", "kernel")),
    _KERNELS(("calls gpu_ns", _SHARE, "kind library tensor_cores"), _kernels, "tensor", "Tensor Cores by kernel"),
    _KERNELS(
        ("time_ns flops bytes intensity flops_per_s bytes_per_s precision roof_share bound",),
        _kernel_roofline,
        "roofline",
        empty="No kernel has counters for FLOPs and bytes. Use ncu --set full --nvtx.",
    ),
    _EXECUTIONS(
        "kernel",
        ("step phase kind tensor_cores device stream gpu_ns launch_ns",),
        _loader("tensor_cores", "by_iteration"),
        heading="Executions of kernels and copies",
        gpu="Kernels",
        end="name",
        calls=True,
    ),
    View(
        "kinds",
        "kind",
        ("library tensor_cores", "gpu_ns=Time", _SHARE, "calls names layers"),
        _loader("kernel_names", "by_class"),
        heading="GPU time by kind of kernel",
        label="kind",
        gpu="Kernels",
        calls=True,
    ),
    _OPERATIONS(
        ("phase calls gpu_self_ns", _SHARE, "kernels host_self_ns"),
        by_op,
        heading="Time by operation",
        keys=("op", "phase"),
    ),
    _OPERATIONS(
        ("phase calls gpu_self_ns host_self_ns flops bytes flops_per_s",),
        _loader("roofline", "by_op_work"),
        "work",
        "Work by operation and shape",
        end="inputs",
    ),
    _OPERATIONS(
        ("phase calls", "time_ns=Time", "time_share bound roof_share flops_per_s intensity flops bytes precision"),
        _loader("roofline", "by_op_roofline"),
        "roofline",
        "Roofline by operation and shape",
        end="inputs",
    ),
    View(
        "steps",
        "step",
        (
            "batch",
            Column("kind", "Kind", "text"),
            "requests tokens context step_ns data_ns forward_ns backward_ns optimizer_ns gpu_ns",
        ),
        by_step,
        label="step",
        sums=False,
        empty="No steps were recorded. Use `for … in batches(loader)`.",
        keys=("step",),
    ),
    View(
        "experts",
        "expert",
        ("phase experts calls gpu_ns host_ns", Column("mean_ns", "Mean", "ns", "sum"), "busiest_ns busiest imbalance"),
        _loader("communication", "by_expert"),
        heading="Time and imbalance of experts",
        label="path",
        empty="No layers named experts.N were recorded.",
        keys=("path", "phase"),
    ),
    View(
        "stages",
        "stage",
        (
            Column("process", "Process", least=140),
            "phase stage microbatch calls time_ns busy_ns bubble_ns bubble_share transfer_ns",
        ),
        _loader("communication", "by_stage"),
        heading="Pipeline: time and bubbles of each action",
        label="action",
        empty="No actions of torch.distributed.pipelining were recorded.",
        keys=("action", "phase"),
    ),
    View(
        "summary",
        "summary",
        ("count ns share hidden_ns",),
        _loader("run_summary", "by_summary"),
        heading="Summary: sums over the run",
        label="item",
        end="text",
        sums=False,
        calls=True,
    ),
    View(
        "advice",
        "advice",
        (),
        _advice,
        heading="Advice",
        layout="advice",
        empty="No advice for this profile.",
        sums=False,
        calls=True,
    ),
)


@cache
def views() -> Mapping[str, View]:
    """Return all views by key: those of annot, then `other_views`."""
    return {view.key: view for view in (*_VIEWS, *other_views())}


@cache
def other_views() -> tuple[View, ...]:
    """Return the views of packages with an entry point ``annot.views``. An error in their rows is an `AnnotError`."""
    extensions = loaded("annot.views", View)
    return tuple(
        replace(plugin.target, rows=partial(plugin.require, partial(_checked_rows, plugin.target)))
        for plugin in extensions
    )


def _checked_rows(view: View, attribution: Attribution) -> pl.DataFrame:
    """Return the rows of a view of another package."""
    rows = view.rows(attribution)
    if not isinstance(rows, pl.DataFrame):
        raise TypeError(f"the rows must be a polars DataFrame, got a {type(rows).__name__}")
    needed = () if view.layout == "advice" else _LAYER if view.label == "layer" else (view.label,)
    if missing := [name for name in needed if name not in rows.columns]:
        raise ValueError(f"the rows lack the column {missing[0]}")
    return rows


def find_view(by: str, columns: str = "time", *, each: bool = False) -> View:
    """Return the view with a row and a group of columns.

    Args:
        by: what a row is: ``layer`` or ``layers``, ...; or the key of a view.
        columns: one of `COLUMN_GROUPS`; ``all`` is the time of views without further columns.
        each: single executions instead of sums.

    Raises:
        TypeError: `by` is not a str.
        ValueError: the view does not exist.

    Example:
        >>> find_view("layers", "roofline").key
        'layer_roofline'
    """
    if not isinstance(by, str):
        raise TypeError(f"by must be a str, got {by!r}")
    if columns not in COLUMN_GROUPS:
        raise ValueError(f"columns must be one of {', '.join(COLUMN_GROUPS)}, got {columns!r}")
    if by in views() and columns == "time" and not each:
        return views()[by]
    subjects = list(dict.fromkeys(view.by for view in views().values()))
    subject = by if by in subjects else by.removesuffix("s")
    if subject not in subjects:
        raise ValueError(f"by must be one of {', '.join(subjects)}, got {by!r}")
    groups = {view.group: view for view in views().values() if view.by == subject}
    if each and columns != "time":
        raise ValueError(f"each cannot be combined with columns {columns}")
    group = "each" if each else columns
    if group == "all":
        return groups.get("all") or next(iter(groups.values()))
    if group not in groups:
        asked = "each" if each else f"columns {columns}"
        only = ", ".join(name for name in groups if name != "each")
        raise ValueError(f"{asked} is not available by {subject}, only columns {only}")
    return groups[group]


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
    "calls gpu_ns gpu_self_ns gpu_mean_ns gpu_min_ns gpu_max_ns gpu_busy_ns gpu_idle_ns host_ns host_self_ns kernels",
    "kernels_total copies flops bytes params intensity flops_per_s bytes_per_s precision roof_share bound tc_ns reason",
    "memory_change_bytes memory_peak_bytes",
)


_COUNTERS: Final = (
    "stall_share stall_reason instructions load_store_share l1_throughput l1_hit_rate l2_throughput l2_hit_rate",
    "l2_read_bytes_per_s l2_write_bytes_per_s dram_read_bytes_per_s dram_write_bytes_per_s dram_throughput",
)


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
        "layer_kernels": of_names(("phase kind tensor_cores calls", "gpu_ns=Time", "gpu_self_ns=Self", "mean_ns")),
        "kernel_layers": of_names(("phase", "gpu_ns=Time", Column("main_ns", "Share", "share"), "calls mean_ns")),
        "facts": of_names(_FACTS),
        "counters": of_names(_COUNTERS),
        "ranks": _RANKS,
        "across": ACROSS.values(),
        "compared": COMPARED.values(),
        "events": _EVENTS,
    }
    return {name: as_data(columns) for name, columns in tables.items()}
