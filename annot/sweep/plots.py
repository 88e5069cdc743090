"""Charts of a sweep, from the tables of `annot.sweep.tables`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import polars as pl

from annot.report.charts.chart import Chart, Series
from annot.report.charts.profile_charts import roofs
from annot.sweep.grid import Sweep
from annot.sweep.tables import against_hidden, backward_ratio, roofline, speedup

_MS: Final = pl.col("step_ns") / 1e6


def charts(
    sweep: Sweep, table: pl.DataFrame, runs: pl.DataFrame, against: tuple[pl.DataFrame, Sequence[str]] | None = None
) -> dict[str, Chart]:
    """Return the charts that have data: time, speed, hidden, backward, roofline, speedup.

    Args:
        sweep: the sweep.
        table: rows of `annot.sweep.tables.sweep_table`.
        runs: rows of `annot.sweep.tables.per_run`.
        against: rows of `annot.sweep.tables.per_run` of another sweep, and its parameters.
    """
    batch, hidden = sweep.parameter("batch"), sweep.parameter("hidden")
    color = sweep.parameter("color") or next(iter(sweep.parameters), None)
    drawn: dict[str, Chart] = {}
    if batch:
        others = [name for name in sweep.parameters if name != batch]
        drawn |= batch_charts(runs, batch, others)
    if hidden:
        others = [name for name in sweep.parameters if name != hidden]
        drawn["hidden"] = hidden_chart(against_hidden(runs, hidden, others), hidden, others)
    ratios = backward_ratio(table, sweep.parameters)
    if ratios.height:
        drawn["backward"] = backward_chart(ratios, sweep.parameters)
    achieved = roofline(runs)
    if achieved.height:
        given = {name: value for name, value in sweep.plots.items() if isinstance(value, int | float)}
        drawn["roofline"] = roofline_chart(achieved, color, given)
    if against is not None:
        other, theirs = against
        both = [name for name in sweep.parameters if name in theirs]
        drawn["speedup"] = speedup_chart(speedup(runs, other, both), color)
    return drawn


def batch_charts(runs: pl.DataFrame, batch: str, others: Sequence[str]) -> dict[str, Chart]:
    """Return the step time and the throughput over the batch size, a line per combination of the other parameters."""
    quantities = {
        "time": ("Step time", "ms", _MS),
        "speed": ("Throughput", "samples per second", pl.col("items_per_s")),
    }
    return {
        name: Chart(title, batch, unit, _series(runs, others, pl.col(batch), y), lines=True, log_x=True, log_y=True)
        for name, (title, unit, y) in quantities.items()
    }


def hidden_chart(runs: pl.DataFrame, hidden: str, others: Sequence[str]) -> Chart:
    """Return the step time over the square of the width, with the time at width 0 in the legend."""
    lines = _series(runs, others, pl.col("square"), _MS)
    fixed = runs.group_by(pl.lit(0), *others, maintain_order=True).agg(pl.col("fixed_ns").first())["fixed_ns"]
    series = [
        line if ns is None else Series(f"{line.name} ({ns / 1e6:.3g} ms at 0)".strip(), line.points)
        for line, ns in zip(lines, fixed, strict=True)
    ]
    return Chart(f"Step time over {hidden}²", f"{hidden}²", "ms", series, lines=True, least_y=0)


def backward_chart(ratios: pl.DataFrame, parameters: Sequence[str]) -> Chart:
    """Return the ratio of backward time to forward time of each layer, a line per run."""
    layers = ratios["layer"].unique(maintain_order=True).to_list()
    position = pl.col("layer").replace_strict(layers, range(len(layers)))
    series = _series(ratios, parameters, position, pl.col("ratio"))
    return Chart("Backward time / forward time", "layer", "ratio", series, lines=True, categories=layers, least_y=0)


def roofline_chart(runs: pl.DataFrame, color: str | None, given: Mapping[str, float]) -> Chart:
    """Return the FLOP/s over FLOP per byte of each run, with the roofs peak_flops and peak_bandwidth, if known."""
    series = _series(*_colored(runs, color), pl.col("intensity"), pl.col("flops_per_s"))
    flops = {"peak FLOP/s": given["peak_flops"]} if "peak_flops" in given else {}
    guides = roofs(flops, given.get("peak_bandwidth"), runs["intensity"].drop_nulls())
    title = f"Roofline of {runs.height} runs"
    return Chart(title, "FLOP per byte", "FLOP/s", series, log_x=True, log_y=True, guides=guides)


def speedup_chart(pairs: pl.DataFrame, color: str | None) -> Chart:
    """Return the speedup of each run over the other sweep, by the step time of the other sweep."""
    series = _series(*_colored(pairs, color), pl.col("other_step_ns") / 1e6, pl.col("speedup"))
    ends = [x for line in series for x, _ in line.points]
    guides = [Series("equal", [(min(ends), 1.0), (max(ends), 1.0)])] if ends else []
    return Chart(
        "Speedup", "step time of the other sweep, ms", "speedup", series, log_x=True, log_y=True, guides=guides
    )


def _colored(table: pl.DataFrame, color: str | None) -> tuple[pl.DataFrame, list[str]]:
    """The table sorted by the parameter that sets the color, and this parameter."""
    return (table.sort(color, nulls_last=True), [color]) if color else (table, [])


def _series(table: pl.DataFrame, by: Sequence[str], x: pl.Expr, y: pl.Expr) -> list[Series]:
    """Return the points by x, a series for each combination of some parameters; rows without a value are left out."""
    points = table.select(*by, x.cast(pl.Float64).alias("x axis"), y.cast(pl.Float64).alias("y axis"))
    groups = points.drop_nulls("x axis").group_by(*by, pl.lit(0), maintain_order=True)
    return [
        Series(
            ", ".join(f"{name}={value}" for name, value in zip(by, key, strict=False) if value is not None),
            rows.select("x axis", "y axis").drop_nulls().sort("x axis", maintain_order=True).rows(),
        )
        for key, rows in groups
    ]
