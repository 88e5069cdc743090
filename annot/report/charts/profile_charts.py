"""Charts of a profile: steps, longest layers, roofline."""

from __future__ import annotations

from typing import Final

import polars as pl

from annot.analyze.roofline import layer_roofline
from annot.attribution import Attribution, by_step
from annot.report.charts.chart import Chart, Series
from annot.report.folds import with_groups
from annot.report.layer_tree import LAYER_PHASES, row_label

__all__ = ["pictures"]

_LAYERS: Final = 20
_BESIDE: Final = ("optimizer", "data")
"""Phases outside layers that the chart of layers has, too."""
_STEP_TIMES: Final = ("host_ns", "forward_ns", "backward_ns", "optimizer_ns", "data_ns", "gpu_ns")
_NAMES: Final = {"host_ns": "step", "gpu_ns": "GPU"}


def pictures(attribution: Attribution, rows: pl.DataFrame) -> dict[str, Chart]:
    """Return the charts with data, by name: steps, layers, roofline.

    Args:
        attribution: the profile.
        rows: layers, the result of `annot.attribution.by_layer`.
    """
    charts = {
        "steps": _steps(by_step(attribution)),
        "layers": _layers(rows),
        "roofline": _roofline(layer_roofline(attribution, None)),
    }
    return {name: chart for name, chart in charts.items() if any(one.points for one in chart.series)}


def _steps(steps: pl.DataFrame) -> Chart:
    """The time of each step and of its parts, in ms."""
    series = []
    for name in _STEP_TIMES:
        times = steps.select("step", name).drop_nulls().sort("step")
        if times[name].sum() > 0:
            points = [(float(step), ns / 1e6) for step, ns in times.iter_rows()]
            series.append(Series(_NAMES.get(name, name.removesuffix("_ns")), points))
    return Chart("Time of each step", "step", "ms", series, lines=True, least_y=0)


def _layers(rows: pl.DataFrame) -> Chart:
    """The layers, folds, optimizers and data waits with the most self time, by phase, in ms."""
    time = "gpu_self_ns" if rows["gpu_self_ns"].sum() else "host_self_ns"
    named = (pl.col("layer") != "") | (pl.col("module") != "")
    is_shown = pl.col("phase").is_in(_BESIDE) | (pl.col("phase").is_in(LAYER_PHASES) & named)
    layers = with_groups(rows).filter(is_shown)
    names = [row["group"] or row_label(row)[0] for row in layers.rows(named=True)]
    layers = layers.select(pl.Series("layer", names, pl.String), "phase", (pl.col(time) / 1e6).alias("ms"))
    layers = layers.drop_nulls("ms")
    layers = layers.group_by("phase", "layer", maintain_order=True).agg(pl.col("ms").sum())
    sums = layers.group_by("layer", maintain_order=True).agg(pl.col("ms").sum()).filter(pl.col("ms") > 0)
    longest = sums.sort("ms", descending=True, maintain_order=True).head(_LAYERS)["layer"].to_list()
    position = {layer: float(number) for number, layer in enumerate(longest)}
    series = [
        Series(str(phase), [(position[layer], ms) for _, layer, ms in part.iter_rows()])
        for (phase,), part in layers.filter(pl.col("layer").is_in(longest)).group_by("phase", maintain_order=True)
    ]
    title = "Self time of the longest layers" if sums.height > _LAYERS else "Self time of layers"
    return Chart(title, "", "ms", series, categories=longest, least_y=0)


def _roofline(rows: pl.DataFrame) -> Chart:
    """FLOP/s over FLOP per byte, one point per layer and phase."""
    parts = rows.drop_nulls(["intensity", "flops_per_s"]).group_by("phase", maintain_order=True)
    series = [Series(str(phase), part.select("intensity", "flops_per_s").rows()) for (phase,), part in parts]
    return Chart("Roofline of layers", "FLOP per byte", "FLOP/s", series, log_x=True, log_y=True)
