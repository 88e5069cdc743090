"""Charts of a profile: steps, longest layers, roofline."""

from __future__ import annotations

from typing import Any, Final

import polars as pl

from annot.analyze.roofline import layer_roofline
from annot.attribution import Attribution, by_step
from annot.report.charts.chart import Chart, Series
from annot.report.layer_tree import LAYER_PHASES, MODEL

__all__ = ["layer_chart", "pictures", "roofline_chart", "step_chart"]

_LAYERS: Final = 20
_STEP_TIMES: Final = ("host_ns", "forward_ns", "backward_ns", "optimizer_ns", "data_ns", "gpu_ns")
_NAMES: Final = {"host_ns": "step", "gpu_ns": "GPU"}


def pictures(attribution: Attribution, rows: pl.DataFrame) -> dict[str, Chart]:
    """Return the charts with data, by name: steps, layers, roofline.

    Args:
        attribution: the profile.
        rows: layers, the result of `annot.attribution.by_layer`.
    """
    charts = {
        "steps": step_chart(by_step(attribution)),
        "layers": layer_chart(rows),
        "roofline": roofline_chart(layer_roofline(attribution, None)),
    }
    return {name: chart for name, chart in charts.items() if any(one.points for one in chart.series)}


def step_chart(steps: pl.DataFrame) -> Chart:
    """Return a chart of the time of each step and of its parts, in ms.

    Args:
        steps: result of `annot.attribution.by_step`.
    """
    used = [name for name in _STEP_TIMES if (steps[name].sum() or 0) > 0]
    series = [
        Series(
            _NAMES.get(name, name.removesuffix("_ns")),
            [(float(step), ns / 1e6) for step, ns in steps.select("step", name).drop_nulls().sort("step").iter_rows()],
        )
        for name in used
    ]
    return Chart("Time of each step", "step", "ms", series, lines=True, least_y=0)


def layer_chart(rows: pl.DataFrame) -> Chart:
    """Return a chart of the layers with the most self time, by phase, in ms.

    Args:
        rows: layers, the result of `annot.attribution.by_layer`.
    """
    time = "gpu_self_ns" if rows["gpu_self_ns"].sum() else "host_self_ns"
    layers = rows.filter(pl.col("phase").is_in(LAYER_PHASES) & ((pl.col("layer") != "") | (pl.col("module") != "")))
    name = pl.when(pl.col("layer") == "").then(pl.lit(MODEL)).otherwise("layer")
    layers = layers.select(name.alias("layer"), "phase", (pl.col(time) / 1e6).alias("ms")).drop_nulls("ms")
    sums = layers.group_by("layer", maintain_order=True).agg(pl.col("ms").sum()).filter(pl.col("ms") > 0)
    longest = sums.sort("ms", descending=True, maintain_order=True).head(_LAYERS)["layer"].to_list()
    position = {layer: float(number) for number, layer in enumerate(longest)}
    shown = layers.filter(pl.col("layer").is_in(longest))
    shown = shown.group_by("phase", "layer", maintain_order=True).agg(pl.col("ms").sum())
    series = [
        Series(str(phase), [(position[layer], ms) for _, layer, ms in part.iter_rows()])
        for (phase,), part in shown.group_by("phase", maintain_order=True)
    ]
    title = "Self time of the longest layers" if sums.height > _LAYERS else "Self time of layers"
    return Chart(title, "", "ms", series, categories=longest, least_y=0)


def roofline_chart(rows: pl.DataFrame) -> Chart:
    """Return a chart of FLOP/s over FLOP per byte, one point per layer and phase.

    Args:
        rows: result of `annot.analyze.roofline.layer_roofline`.
    """
    known = rows.drop_nulls(["intensity", "flops_per_s"])
    parts: list[tuple[tuple[Any, ...], pl.DataFrame]] = [*known.group_by("phase", maintain_order=True)]
    series = [Series(str(phase), [*part.select("intensity", "flops_per_s").iter_rows()]) for (phase,), part in parts]
    return Chart("Roofline of layers", "FLOP per byte", "FLOP/s", series, log_x=True, log_y=True)
