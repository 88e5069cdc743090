"""The pictures of a sweep: what `annot.analyze.sweep` worked out, as charts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from annot.report.chart import Chart, Series

__all__ = ["backward_chart", "hidden_chart", "roofline_chart", "speed_chart", "speedup_chart", "time_chart"]


def time_chart(runs: pl.DataFrame, batch: str, others: Sequence[str]) -> Chart:
    """Return the time of a step against the batch size, a line for each combination of the other parameters."""
    series = _lines(runs, batch, pl.col("step_ns") / 1e6, others)
    return Chart("Time of a step", batch, "ms", series, lines=True, log_x=True, log_y=True)


def speed_chart(runs: pl.DataFrame, batch: str, others: Sequence[str]) -> Chart:
    """Return samples per second against the batch size, a line for each combination of the other parameters."""
    series = _lines(runs, batch, pl.col("items_per_s"), others)
    return Chart("Speed", batch, "samples per second", series, lines=True, log_x=True, log_y=True)


def hidden_chart(runs: pl.DataFrame, hidden: str, others: Sequence[str]) -> Chart:
    """Return the time of a step against the square of the width; the legend says what is left of it without width.

    Args:
        runs: what `annot.analyze.sweep.against_hidden` returned.
        hidden: the parameter that is the width.
        others: the other parameters.
    """
    fixed = [part["fixed_ns"][0] for _, part in _groups(runs, others, ["fixed_ns"], complete=False)]
    lines = _lines(runs, "square", pl.col("step_ns") / 1e6, others)
    series = [
        one if ns is None else Series(f"{one.name} ({ns / 1e6:.3g} ms at 0)".strip(), one.points)
        for one, ns in zip(lines, fixed, strict=True)
    ]
    return Chart(f"Time of a step against {hidden}²", f"{hidden}²", "ms", series, lines=True, least_y=0)


def backward_chart(ratios: pl.DataFrame, parameters: Sequence[str]) -> Chart:
    """Return the time of backward over that of forward, layer by layer, a line for each run."""
    layers = ratios["layer"].unique(maintain_order=True).to_list()
    place = {layer: float(number) for number, layer in enumerate(layers)}
    series = [
        Series(_named(key, parameters), [(place[layer], ratio) for layer, ratio in part.iter_rows()])
        for key, part in _groups(ratios, parameters, ["layer", "ratio"])
    ]
    return Chart("Backward over forward", "layer", "ratio", series, lines=True, categories=layers, least_y=0)


def roofline_chart(runs: pl.DataFrame, color: str | None, roofs: Mapping[str, float]) -> Chart:
    """Return FLOP/s against FLOP per byte of all runs, below the roofs that are known.

    Args:
        runs: what `annot.analyze.sweep.roofline` returned.
        color: the parameter that chooses the colour; None: all have one.
        roofs: peak_flops (FLOP/s) and peak_bandwidth (bytes/s), if known.
    """
    series = _coloured(runs, color, "intensity", "flops_per_s")
    title = f"Roofline of {runs.height} runs"
    return Chart(title, "FLOP per byte", "FLOP/s", series, log_x=True, log_y=True, guides=_roofs(runs, roofs))


def speedup_chart(pairs: pl.DataFrame, color: str | None) -> Chart:
    """Return how many times as fast each run is as that of another sweep, against what the other needs for a step.

    Args:
        pairs: what `annot.analyze.sweep.speedup` returned.
        color: the parameter that chooses the colour; None: all have one.
    """
    ms = pairs.with_columns((pl.col("other_step_ns") / 1e6).alias("ms"))
    ends = [(low, 1.0) for low in (ms["ms"].min(), ms["ms"].max()) if isinstance(low, float)]
    guides = [Series("as fast", ends)] if ends else []
    series = _coloured(ms, color, "ms", "speedup")
    return Chart(
        "Speed-up", "step of the other sweep, ms", "times as fast", series, log_x=True, log_y=True, guides=guides
    )


def _lines(runs: pl.DataFrame, x: str, y: pl.Expr, others: Sequence[str]) -> list[Series]:
    table = runs.select(*others, pl.col(x).cast(pl.Float64).alias("x axis"), y.alias("y axis")).drop_nulls("x axis")
    return [
        Series(_named(key, others), list(part.sort("x axis").iter_rows()))
        for key, part in _groups(table, others, ["x axis", "y axis"])
    ]


def _coloured(runs: pl.DataFrame, color: str | None, x: str, y: str) -> list[Series]:
    by = [color] if color else []
    ordered = runs.sort(by, nulls_last=True) if by else runs
    return [Series(_named(key, by), list(part.iter_rows())) for key, part in _groups(ordered, by, [x, y])]


def _groups(
    table: pl.DataFrame, by: Sequence[str], columns: list[str], *, complete: bool = True
) -> list[tuple[tuple[Any, ...], pl.DataFrame]]:
    """The parts of a table in which some columns are the same; if complete, without rows that lack a value."""
    parts = [(key, part) for key, part in table.group_by(by, maintain_order=True)] if by else [((), table)]
    return [(key, part.select(columns).drop_nulls() if complete else part.select(columns)) for key, part in parts]


def _named(key: Sequence[Any], names: Sequence[str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in zip(names, key, strict=True) if value is not None)


def _roofs(runs: pl.DataFrame, roofs: Mapping[str, float]) -> list[Series]:
    """The flat roof of arithmetic and the slope of memory, over the intensities of the runs."""
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
