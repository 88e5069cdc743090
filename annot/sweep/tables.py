"""Tables of a sweep: the table of all runs, and the smaller tables behind the charts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import polars as pl

from annot.analyze.work.layer_work import layer_work
from annot.attribution.attribute import Attribution, known
from annot.attribution.layer_tables import by_layer
from annot.attribution.nesting import KEY
from annot.attribution.steps import of_main_kind, step_slice
from annot.attribution.summary import by_step, step_statistics
from annot.errors import AnnotError
from annot.labels import layer_path
from annot.runs.run import Run
from annot.runs.selection import Selection
from annot.sweep.grid import Sweep
from annot.sweep.runs import Result, run_folder

_WORK: Final = ("flops", "bytes_read", "bytes_written", "params")
_OF_RUN: Final = {
    "run": pl.String,
    "status": pl.Int64,
    "problem": pl.String,
    "seconds": pl.Float64,
    "steps": pl.Int64,
    "step_ns": pl.Int64,
    "step_gpu_ns": pl.Int64,
}
_TIMES: Final = ("host_ns", "host_self_ns", "gpu_ns", "gpu_self_ns", "gpu_busy_ns")
_OF_LAYER: Final[dict[str, type[pl.DataType]]] = {
    **dict.fromkeys(KEY, pl.String),
    **dict.fromkeys(("calls", *_TIMES, "kernels", *_WORK), pl.Int64),
}
_DERIVED: Final = (
    "number",
    "all",
    "on_device",
    "items_per_s",
    "bytes",
    "intensity",
    "flops_per_s",
    "square",
    "fixed_ns",
    "time_ns",
    "forward_ns",
    "backward_ns",
    "ratio",
    "other_step_ns",
    "speedup",
)
RESERVED: Final = frozenset((*_OF_RUN, *_OF_LAYER, *_DERIVED))
"""Column names of the tables in this module. A parameter cannot have one of these names."""


def table_of_runs(sweep: Sweep, folder: Path, results: Sequence[Result]) -> pl.DataFrame:
    """Return the table of all runs, see `sweep_table`. A run with an unreadable profile counts as failed.

    Args:
        sweep: the sweep.
        folder: its output folder.
        results: the result of each run.
    """
    runs = []
    for run, result in zip(sweep.runs, results, strict=True):
        problem, rows = result.problem, None
        if problem is None and result.profile is not None:
            try:
                rows = _rows(run_folder(folder, run) / result.profile, sweep.steps)
            except AnnotError as error:
                problem = str(error)
            else:
                problem = None if rows.height else "no ranges were recorded"
        facts = {"run": run.key, "status": result.status, "problem": problem, "seconds": result.seconds}
        runs.append((run.parameters, facts, rows))
    return sweep_table(runs)


def _rows(profile: Path, steps: str) -> pl.DataFrame:
    selection = step_slice(steps)
    whole = Run(profile)
    selected = whole.attribution.steps.table[selection].height
    measured = (Run(profile, Selection(steps=selection)) if selected else whole).attribution
    return run_rows(measured, layer_work(measured))


def run_rows(attribution: Attribution, work: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of one run: a row per layer, module and phase.

    The columns are steps (their number), step_ns and step_gpu_ns (medians of the time and the GPU time of a step,
    null without steps), those of `annot.correlate`, and of `work`: flops, bytes_read, bytes_written, params
    (null if unknown).
    """
    keys = ("layer", "module", "phase")
    rows = by_layer(attribution).join(work.select(*keys, *_WORK), on=keys, how="left", maintain_order="left")
    steps = by_step(attribution)
    lengths = step_statistics(steps) if known(attribution.meta) else None
    gpu = of_main_kind(steps)["gpu_ns"].median()
    return rows.select(
        pl.lit(steps.height, pl.Int64).alias("steps"),
        pl.lit(lengths and lengths["median"], pl.Int64).alias("step_ns"),
        pl.lit(gpu).cast(pl.Int64).alias("step_gpu_ns"),
        *_OF_LAYER,
    )


def sweep_table(runs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any], pl.DataFrame | None]]) -> pl.DataFrame:
    """Return the table of all runs, each with its parameters, its result and its rows or None.

    The columns are run, status, problem, seconds, one per parameter, and those of `run_rows`. A run without rows is one
    row with null in those columns. A parameter that a run lacks is null.
    """
    names = list(dict.fromkeys(name for parameters, _, _ in runs for name in parameters))
    schema = {"number": pl.Int64, **_OF_RUN}
    tables = [pl.DataFrame(schema=schema | _OF_LAYER)]
    for number, (_, result, rows) in enumerate(runs):
        row = pl.DataFrame([{"number": number, **result}], schema={name: schema[name] for name in ("number", *result)})
        tables.append(row if rows is None or rows.is_empty() else row.join(rows, how="cross"))
    values = [_column(name, [parameters.get(name) for parameters, _, _ in runs]) for name in names]
    grid = pl.DataFrame([pl.Series("number", range(len(runs)), pl.Int64), *values])
    table = pl.concat(tables, how="diagonal").join(grid, on="number", how="left", maintain_order="left")
    result_columns, measured = [*_OF_RUN][:4], [*_OF_RUN][4:]
    return table.select(*result_columns, *names, *measured, *_OF_LAYER)


def _column(name: str, values: list[Any]) -> pl.Series:
    """Return the column of a parameter; a column of mixed types becomes strings."""
    types = {type(value) for value in values if value is not None}
    if len(types) > 1 and not types <= {int, float}:
        values = [None if value is None else str(value) for value in values]
    return pl.Series(name, values, strict=False) if types != {int, float} else pl.Series(name, values, pl.Float64)


def read_runs(path: Path) -> tuple[pl.DataFrame, list[str]]:
    """Return the runs of another sweep, see `per_run`, and their parameters.

    Args:
        path: output folder of the sweep, or its table.

    Raises:
        AnnotError: the file is not a table of annot sweep.
    """
    path = path / "table.parquet" if path.is_dir() else path
    try:
        parameters = json.loads(pl.read_parquet_metadata(path)["annot"])["parameters"]
        return per_run(pl.read_parquet(path), parameters), parameters
    except (OSError, KeyError, TypeError, ValueError, pl.exceptions.PolarsError) as error:
        raise AnnotError(f"{path} is not a table of annot sweep: {str(error).splitlines()[0]}") from None


def per_run(table: pl.DataFrame, parameters: Sequence[str], batch: str | None = None) -> pl.DataFrame:
    """Return a row per run with steps.

    Args:
        table: rows of `sweep_table`.
        parameters: names of the parameters.
        batch: parameter with the number of samples per step.

    Returns:
        run, the parameters, steps, step_ns, step_gpu_ns, on_device (whether the run has GPU time), items_per_s (null
        without `batch`), and summed over all layers: flops and bytes per step, and params. The sums are null if the
        work of any innermost layer is unknown, because a partial sum would look like the total.
    """
    moved = pl.sum_horizontal("bytes_read", "bytes_written", ignore_nulls=False)
    weights = pl.when(pl.col("phase") == "forward").then("params")
    sums = {"flops": pl.col("flops"), "bytes": moved, "params": weights}
    runs = (
        _mark_unknown(table.filter(pl.col("step_ns").is_not_null()))
        .group_by("run", *parameters, maintain_order=True)
        .agg(
            pl.col("steps", "step_ns", "step_gpu_ns").first(),
            (pl.col("gpu_self_ns").sum() > 0).alias("on_device"),
            *(pl.when(~pl.col("unknown").any()).then(value.sum()).alias(name) for name, value in sums.items()),
        )
    )
    items = pl.col(batch) * 1e9 / pl.col("step_ns") if batch else pl.lit(None, pl.Float64)
    return runs.with_columns(pl.col("flops", "bytes") / pl.col("steps"), items.alias("items_per_s"))


def _mark_unknown(table: pl.DataFrame) -> pl.DataFrame:
    """Add unknown: whether a row is an innermost layer with unknown work; true for all rows of a run without work."""
    layers = table.select("run", "layer").unique().group_by("run").agg("layer")
    inside = [_innermost(names) for names in layers["layer"].to_list()]
    innermost = layers.select("run", pl.Series("layer", inside, pl.List(pl.String)), innermost=True)
    innermost = innermost.explode("layer").drop_nulls("layer")
    rows = table.join(innermost, on=["run", "layer"], how="left", maintain_order="left")
    computes = pl.col("phase").is_in(["forward", "backward", "recompute"])  # an optimizer step alone does not count
    missing = pl.col("flops").is_null() & (pl.col("module") != "") & pl.col("innermost") & computes
    no_work = pl.when(computes).then("flops").is_null().all().over("run")
    return rows.with_columns(unknown=missing.fill_null(False) | no_work)


def backward_ratio(table: pl.DataFrame, parameters: Sequence[str], most: int = 40) -> pl.DataFrame:
    """Return the ratio of backward time to forward time of each innermost layer, for each run.

    At most `most` layers are kept: those with the longest time over all runs. The rows have run, the parameters, layer,
    forward_ns and backward_ns (per call; GPU time if the run has any, else host time) and ratio, in the order in which
    the layers ran.
    """
    time = pl.when(pl.col("gpu_self_ns").sum().over("run") > 0).then("gpu_ns").otherwise("host_ns")
    rows = table.with_columns(time.alias("time_ns")).filter(pl.col("module").fill_null("") != "")
    rows = rows.filter(pl.col("layer").is_in(_innermost(rows["layer"].unique().to_list())))
    each = [
        (pl.col("time_ns").filter(phase=phase).sum() / pl.col("calls").filter(phase=phase).sum()).alias(f"{phase}_ns")
        for phase in ("forward", "backward")
    ]
    pairs = rows.group_by("run", *parameters, "layer", maintain_order=True).agg(each)
    both = pl.col("forward_ns", "backward_ns")  # a phase without calls gives 0 / 0
    pairs = pairs.filter(pl.all_horizontal(both.is_finite() & (both > 0)))
    total = pairs.group_by("layer").agg(pl.sum_horizontal("forward_ns", "backward_ns").sum().alias("total"))
    longest = total.sort("total", "layer", descending=[True, False]).head(most)["layer"].to_list()
    pairs = pairs.filter(pl.col("layer").is_in(longest))
    return pairs.with_columns(ratio=pl.col("backward_ns") / pl.col("forward_ns"))


def _innermost(layers: list[str]) -> list[str]:
    """Return the layers without inner layers."""
    outer = {above for layer in layers for above in layer_path.above(layer)}
    return [layer for layer in layers if layer and layer not in outer]


def against_hidden(runs: pl.DataFrame, hidden: str, others: Sequence[str]) -> pl.DataFrame:
    """Return the runs with a width, with square (width²) and fixed_ns, the step time at width 0.

    fixed_ns is the intercept of the least-squares line of step_ns over square, for runs with equal other parameters;
    null with fewer than two widths.
    """
    square = pl.col(hidden).cast(pl.Float64).pow(2)
    table = runs.with_columns(square.alias("square"), pl.lit(0).alias("all")).drop_nulls("square")
    slope = pl.when(pl.col("square").n_unique() > 1).then(pl.cov("square", "step_ns") / pl.col("square").var())
    fixed = pl.col("step_ns").mean() - slope * pl.col("square").mean()
    lines = table.group_by("all", *others).agg(fixed.alias("fixed_ns"))
    return table.join(lines, on=["all", *others], how="left", nulls_equal=True, maintain_order="left").drop("all")


def roofline(runs: pl.DataFrame) -> pl.DataFrame:
    """Return the runs with known work, with intensity (FLOP per byte) and flops_per_s.

    flops_per_s is over the GPU time of a step if the run has GPU time, else over the step time.
    """
    time = pl.when("on_device").then("step_gpu_ns").otherwise("step_ns")
    known_work = runs.filter((pl.col("flops") > 0) & (pl.col("bytes") > 0) & (time > 0))
    return known_work.with_columns(
        intensity=pl.col("flops") / pl.col("bytes"), flops_per_s=pl.col("flops") * 1e9 / time
    )


def speedup(first: pl.DataFrame, second: pl.DataFrame, parameters: Sequence[str]) -> pl.DataFrame:
    """Return the runs of the first sweep that match one of the second, with other_step_ns and speedup.

    Two runs match if they agree on all shared `parameters` that vary within one of the sweeps. Above 1, the first is
    faster.
    """
    varying = [name for name in parameters if max(first[name].n_unique(), second[name].n_unique()) > 1]
    # Integers and floats of the two sweeps compare equal.
    numbers = [name for name in varying if first.schema[name].is_numeric() and second.schema[name].is_numeric()]
    keys = [pl.col(name).cast(pl.Float64 if name in numbers else pl.String).alias(f"key {name}") for name in varying]
    keys = keys or [pl.lit("").alias("key of all")]
    other = second.select(*keys, pl.col("step_ns").alias("other_step_ns"))
    names = other.columns[:-1]
    other = other.unique(names, keep="first")
    both = first.with_columns(keys).join(other, on=names, nulls_equal=True, maintain_order="left")
    return both.drop(names).with_columns(speedup=pl.col("other_step_ns") / pl.col("step_ns"))
