"""Charts of a sweep, from the tables of `annot.sweep.tables`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from annot.report.charts.chart import Chart, Series

__all__ = ["backward_chart", "hidden_chart", "roofline_chart", "speed_chart", "speedup_chart", "time_chart"]


def time_chart(runs: pl.DataFrame, batch: str, others: Sequence[str]) -> Chart:
    """Return the step time over the batch size, a line per combination of the other parameters.

    Args:
        runs: rows of `annot.sweep.tables.per_run`.
        batch: parameter with the batch size.
        others: the other parameters.
    """
    series = _lines(runs, batch, pl.col("step_ns") / 1e6, others)
    return Chart("Step time", batch, "ms", series, lines=True, log_x=True, log_y=True)


def speed_chart(runs: pl.DataFrame, batch: str, others: Sequence[str]) -> Chart:
    """Return the throughput over the batch size, a line per combination of the other parameters.

    Args:
        runs: rows of `annot.sweep.tables.per_run`.
        batch: parameter with the batch size.
        others: the other parameters.
    """
    series = _lines(runs, batch, pl.col("items_per_s"), others)
    return Chart("Throughput", batch, "samples per second", series, lines=True, log_x=True, log_y=True)


def hidden_chart(runs: pl.DataFrame, hidden: str, others: Sequence[str]) -> Chart:
    """Return the step time over the square of the width, with the time at width 0 in the legend.

    Args:
        runs: rows of `annot.sweep.tables.against_hidden`.
        hidden: parameter with the width.
        others: the other parameters.
    """
    fixed = [part["fixed_ns"][0] for _, part in _groups(runs, others, ["fixed_ns"], complete=False)]
    lines = _lines(runs, "square", pl.col("step_ns") / 1e6, others)
    series = [
        one if ns is None else Series(f"{one.name} ({ns / 1e6:.3g} ms at 0)".strip(), one.points)
        for one, ns in zip(lines, fixed, strict=True)
    ]
    return Chart(f"Step time over {hidden}²", f"{hidden}²", "ms", series, lines=True, least_y=0)


def backward_chart(ratios: pl.DataFrame, parameters: Sequence[str]) -> Chart:
    """Return the ratio of backward time to forward time of each layer, a line per run.

    Args:
        ratios: rows of `annot.sweep.tables.backward_ratio`.
        parameters: names of all parameters.
    """
    layers = ratios["layer"].unique(maintain_order=True).to_list()
    position = {layer: float(number) for number, layer in enumerate(layers)}
    series = [
        Series(_series_name(key, parameters), [(position[layer], ratio) for layer, ratio in part.iter_rows()])
        for key, part in _groups(ratios, parameters, ["layer", "ratio"])
    ]
    return Chart("Backward time / forward time", "layer", "ratio", series, lines=True, categories=layers, least_y=0)


def roofline_chart(runs: pl.DataFrame, color: str | None, roofs: Mapping[str, float]) -> Chart:
    """Return the roofline chart of all runs: FLOP/s over FLOP per byte.

    Args:
        runs: rows of `annot.sweep.tables.roofline`.
        color: parameter that sets the color; None: one color.
        roofs: peak_flops (FLOP/s) and peak_bandwidth (bytes/s), if known.
    """
    series = _by_color(runs, color, "intensity", "flops_per_s")
    title = f"Roofline of {runs.height} runs"
    return Chart(title, "FLOP per byte", "FLOP/s", series, log_x=True, log_y=True, guides=_roofs(runs, roofs))


def speedup_chart(pairs: pl.DataFrame, color: str | None) -> Chart:
    """Return the speedup of each run over the other sweep, by the step time of the other sweep.

    Args:
        pairs: rows of `annot.sweep.tables.speedup`.
        color: parameter that sets the color; None: one color.
    """
    ms = pairs.with_columns((pl.col("other_step_ns") / 1e6).alias("ms"))
    ends = [(low, 1.0) for low in (ms["ms"].min(), ms["ms"].max()) if isinstance(low, float)]
    guides = [Series("equal", ends)] if ends else []
    series = _by_color(ms, color, "ms", "speedup")
    return Chart(
        "Speedup", "step time of the other sweep, ms", "speedup", series, log_x=True, log_y=True, guides=guides
    )


def _lines(runs: pl.DataFrame, x: str, y: pl.Expr, others: Sequence[str]) -> list[Series]:
    table = runs.select(*others, pl.col(x).cast(pl.Float64).alias("x axis"), y.alias("y axis")).drop_nulls("x axis")
    return [
        Series(_series_name(key, others), list(part.sort("x axis").iter_rows()))
        for key, part in _groups(table, others, ["x axis", "y axis"])
    ]


def _by_color(runs: pl.DataFrame, color: str | None, x: str, y: str) -> list[Series]:
    by = [color] if color else []
    ordered = runs.sort(by, nulls_last=True) if by else runs
    return [Series(_series_name(key, by), list(part.iter_rows())) for key, part in _groups(ordered, by, [x, y])]


def _groups(
    table: pl.DataFrame, by: Sequence[str], columns: list[str], *, complete: bool = True
) -> list[tuple[tuple[Any, ...], pl.DataFrame]]:
    """Return the groups of a table by some columns; if `complete`, without rows that lack a value."""
    parts = [(key, part) for key, part in table.group_by(by, maintain_order=True)] if by else [((), table)]
    return [(key, part.select(columns).drop_nulls() if complete else part.select(columns)) for key, part in parts]


def _series_name(key: Sequence[Any], names: Sequence[str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in zip(names, key, strict=True) if value is not None)


def _roofs(runs: pl.DataFrame, roofs: Mapping[str, float]) -> list[Series]:
    """Return the compute roof and the memory roof over the range of intensities of the runs."""
    low, high = runs["intensity"].min(), runs["intensity"].max()
    if not isinstance(low, float) or not isinstance(high, float):
        return []
    flops, bandwidth = roofs.get("peak_flops"), roofs.get("peak_bandwidth")
    if flops and bandwidth:
        corner = flops / bandwidth
        low, high = min(low, corner / 2), max(high, corner * 2)
        return [Series("peak", [(low, low * bandwidth), (corner, flops), (high, flops)])]
    if flops:
        return [Series("peak FLOP/s", [(low, flops), (high, flops)])]
    return [Series("memory", [(low, low * bandwidth), (high, high * bandwidth)])] if bandwidth else []
