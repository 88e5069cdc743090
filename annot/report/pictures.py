"""The pictures of one profile: its steps, its longest layers, its roofline."""

from __future__ import annotations

from typing import Any, Final

import polars as pl

from annot.analyze.roofline import layer_roofline
from annot.correlate import Attribution, by_step
from annot.report.chart import Chart, Series
from annot.report.tree import LAYER_PHASES, MODEL

__all__ = ["layer_chart", "pictures", "roofline_chart", "step_chart"]

_LAYERS: Final = 20
_STEP_TIMES: Final = ("host_ns", "forward_ns", "backward_ns", "optimizer_ns", "data_ns", "gpu_ns")
_NAMES: Final = {"host_ns": "step", "gpu_ns": "GPU"}


def pictures(attribution: Attribution, rows: pl.DataFrame) -> dict[str, Chart]:
    """Return the pictures for which there is something to show, by name: steps, layers, roofline.

    Args:
        attribution: the profile.
        rows: its layers, as `annot.correlate.by_layer` returns them.
    """
    charts = {
        "steps": step_chart(by_step(attribution)),
        "layers": layer_chart(rows),
        "roofline": roofline_chart(layer_roofline(attribution, None)),
    }
    return {name: chart for name, chart in charts.items() if any(one.points for one in chart.series)}


def step_chart(steps: pl.DataFrame) -> Chart:
    """Return how long each step took, and its parts.

    Args:
        steps: what `annot.correlate.by_step` returned.
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
    """Return the time of the layers that took the longest in themselves, forward and backward.

    Args:
        rows: the layers, as `annot.correlate.by_layer` returns them.
    """
    time = "gpu_self_ns" if rows["gpu_self_ns"].sum() else "host_self_ns"
    layers = rows.filter(pl.col("phase").is_in(LAYER_PHASES) & ((pl.col("layer") != "") | (pl.col("module") != "")))
    name = pl.when(pl.col("layer") == "").then(pl.lit(MODEL)).otherwise("layer")
    layers = layers.select(name.alias("layer"), "phase", (pl.col(time) / 1e6).alias("ms")).drop_nulls("ms")
    sums = layers.group_by("layer", maintain_order=True).agg(pl.col("ms").sum()).filter(pl.col("ms") > 0)
    longest = sums.sort("ms", descending=True, maintain_order=True).head(_LAYERS)["layer"].to_list()
    place = {layer: float(number) for number, layer in enumerate(longest)}
    shown = layers.filter(pl.col("layer").is_in(longest))
    shown = shown.group_by("phase", "layer", maintain_order=True).agg(pl.col("ms").sum())
    series = [
        Series(str(phase), [(place[layer], ms) for _, layer, ms in part.iter_rows()])
        for (phase,), part in shown.group_by("phase", maintain_order=True)
    ]
    title = "The longest layers" if sums.height > _LAYERS else "Layers"
    return Chart(f"{title}, without what lies below them", "", "ms", series, categories=longest, least_y=0)


def roofline_chart(rows: pl.DataFrame) -> Chart:
    """Return the FLOP/s of layers against their FLOP per byte.

    Args:
        rows: what `annot.analyze.roofline.layer_roofline` returned.
    """
    known = rows.drop_nulls(["intensity", "flops_per_s"])
    parts: list[tuple[tuple[Any, ...], pl.DataFrame]] = [*known.group_by("phase", maintain_order=True)]
    series = [Series(str(phase), [*part.select("intensity", "flops_per_s").iter_rows()]) for (phase,), part in parts]
    return Chart("Roofline of layers", "FLOP per byte", "FLOP/s", series, log_x=True, log_y=True)
