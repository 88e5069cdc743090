"""Charts of a profile: steps, longest layers, roofline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import polars as pl

from annot.analyze.hardware_counters import default_peaks
from annot.analyze.peaks import Peaks
from annot.analyze.roofline import layer_roofline
from annot.analyze.tensor_cores import matrix_units, precision_words
from annot.attribution.attribute import Attribution
from annot.attribution.layer_tables import LAYER_PHASES, by_layer, by_line
from annot.attribution.summary import by_step
from annot.labels.tag import MODEL
from annot.report.charts.chart import SIZE, Chart, Mark, Series
from annot.report.tree import row_label, with_groups
from annot.report.units import amount, duration, unit_for

_LAYERS: Final = 20
_BESIDE: Final = ("optimizer", "data")
"""Phases outside layers that the chart of layers has, too."""
_BARS: Final = 320
"""Maximum number of bars: each has a few pixels."""
_LINE: Final = 100
"""Maximum number of bars with a line in front of them."""
_PROCESSES: Final = 8
_PHASES: Final = ("forward", "backward", "optimizer")
_WARMUP: Final = 0.45
"""Opacity of warm-up steps."""


def pictures(attribution: Attribution) -> dict[str, Chart]:
    """Return the charts of a profile that have data, by name: steps (of the first process), layers, roofline."""
    peaks = default_peaks(attribution)
    roofline = roofline_chart(layer_roofline(attribution, peaks), peaks)
    charts = dict(zip(("steps",), step_charts(by_step(attribution)), strict=False))
    charts |= {"layers": _layers(with_groups(by_layer(attribution), by_line(attribution))), "roofline": roofline}
    return {name: chart for name, chart in charts.items() if any(curve.points for curve in chart.series)}


def step_charts(steps: pl.DataFrame, size: tuple[int, int] = SIZE) -> list[Chart]:
    """Return a chart for each process, at most 8: a bar for each step, or for the longest of some neighbors.

    Args:
        steps: the result of `annot.attribution.by_step`.
        size: width and height of a chart.
    """
    processes = steps.partition_by("process", maintain_order=True)
    names = [f", process {number} of {len(processes)}" for number in range(1, len(processes) + 1)]
    shown = zip(processes[:_PROCESSES], names if len(names) > 1 else [""], strict=False)
    return [_steps(process_steps, name, size) for process_steps, name in shown]


def _steps(steps: pl.DataFrame, process: str, size: tuple[int, int]) -> Chart:
    """The time of each step of a process, by part, and the GPU time as a line."""
    host, every = steps["host_ns"].null_count() == 0, -(-steps.height // _BARS)
    rest = pl.col("host_ns") - pl.sum_horizontal(f"{phase}_ns" for phase in _PHASES)  # data is outside of the steps
    times = {phase: pl.col(f"{phase}_ns") for phase in ("data", *_PHASES)} | {"other": rest.clip(0)}
    times = times if host else {"GPU": pl.col("gpu_ns")}
    table = steps.with_row_index("place").select("place", "step", "warmup", on_gpu="gpu_ns", **times)
    table = table.with_columns(total=pl.sum_horizontal(*times), bar=pl.col("place") // every)
    table = table.sort("total", descending=True, maintain_order=True).group_by("bar").first().sort("bar")
    table = table.with_columns(x=steps["step"][0] + table["bar"] * every + (every - 1) / 2)
    unit = unit_for(table["total"])
    series = [_phase_series(table, phase, unit.ns) for phase in times if table[phase].sum()]
    on_gpu = Series("GPU", table.select("x", pl.col("on_gpu") / unit.ns).rows())
    title, axis = f"{'Host' if host else 'GPU'} time of each step{process}", "step"
    axis += f" (a bar is the longest of {every})" if every > 1 else ""
    guides = [on_gpu] if host and 1 < table.height <= _LINE and table["on_gpu"].sum() else []
    return Chart(title, axis, unit.name, series, bars=every, guides=guides, size=size)


def _phase_series(steps: pl.DataFrame, phase: str, unit: int) -> Series:
    """A part of the steps, with its share of each step."""
    points, marks = [], []
    for x, step, warmup, ns, total in steps.select("x", "step", "warmup", phase, "total").iter_rows():
        points.append((x, ns / unit))
        text = f"Step {step}: {phase} {duration(ns)} of {duration(total)}{' (warm-up)' if warmup else ''}"
        marks.append(Mark(text, opacity=_WARMUP if warmup else 1))
    return Series(phase, points, marks)


def _layers(rows: pl.DataFrame) -> Chart:
    """The layers, folds, optimizers and data waits with the most self time, by phase, in ms."""
    time = "gpu_self_ns" if rows["gpu_self_ns"].sum() else "host_self_ns"
    named = (pl.col("layer") != "") | (pl.col("module") != "")
    is_shown = pl.col("phase").is_in(_BESIDE) | (pl.col("phase").is_in(LAYER_PHASES) & named)
    layers = rows.filter(is_shown)
    names = [row["group"] or row_label(row)[0] for row in layers.rows(named=True)]
    layers = layers.select(pl.Series("layer", names, pl.String), "phase", (pl.col(time) / 1e6).alias("ms"))
    layers = layers.drop_nulls("ms")
    layers = layers.group_by("phase", "layer", maintain_order=True).agg(pl.col("ms").sum())
    sums = layers.group_by("layer", maintain_order=True).agg(pl.col("ms").sum()).filter(pl.col("ms") > 0)
    longest = sums.sort("ms", descending=True, maintain_order=True).head(_LAYERS)["layer"].to_list()
    position = {layer: float(number) for number, layer in enumerate(longest)}
    series = [
        Series(str(phase), [(position[layer], ms) for _, layer, ms in phase_rows.iter_rows()])
        for (phase,), phase_rows in layers.filter(pl.col("layer").is_in(longest)).group_by("phase", maintain_order=True)
    ]
    title = "Self time of the longest layers" if sums.height > _LAYERS else "Self time of layers"
    return Chart(title, "", "ms", series, bars=1, categories=longest)


def roofline_chart(rows: pl.DataFrame, peaks: Peaks, size: tuple[int, int] = SIZE) -> Chart:
    """Return FLOP/s over FLOP per byte, a point per layer and phase, below the roofs of the precisions in use.

    Args:
        rows: the result of `annot.analyze.roofline.layer_roofline`, with the target of each point in a column ``link``
            if it has one.
        peaks: peaks of the device.
        size: width and height of the chart.
    """
    rows = rows.filter((pl.col("intensity") > 0) & (pl.col("flops_per_s") > 0)).sort("time_ns", descending=True)
    longest, series = rows["time_ns"].max() or 1, []
    for (phase,), phase_rows in rows.group_by("phase", maintain_order=True):  # short layers in front of long ones
        marks = [_mark(row, longest) for row in phase_rows.iter_rows(named=True)]
        series.append(Series(str(phase), phase_rows.select("intensity", "flops_per_s").rows(), marks))
    title, guides = "Roofline of layers, larger dots take more time", _used_roofs(rows, peaks)
    return Chart(title, "FLOP per byte", "FLOP/s", series, log_x=True, log_y=True, guides=guides, size=size)


def _mark(row: dict[str, Any], longest: Any) -> Mark:
    bound = f", bound by {row['bound']}" if row["bound"] else ""
    speed = (
        f"{amount(row['flops_per_s'])}FLOP/s at {amount(row['intensity'])} FLOP per byte, {duration(row['time_ns'])}"
    )
    text = f"{row['layer'] or MODEL} {row['module']} {row['phase']}: {speed}{bound}"
    return Mark(text, 4 + 10 * (row["time_ns"] / longest) ** 0.5, 0.6, row.get("link", ""))


def _used_roofs(rows: pl.DataFrame, peaks: Peaks) -> list[Series]:
    used = {name: flops for name, flops in peaks.flops.items() if name == "any" or name in rows["precision"]}
    named = used or dict(list(peaks.flops.items())[:1])
    units = matrix_units({"devices": [{"name": peaks.device}]})
    words = {name: f"{precision_words(name, units)} {amount(flops)}FLOP/s" for name, flops in named.items()}
    named = {words[name].removeprefix("any "): flops for name, flops in named.items()}
    return roofs(named, peaks.bandwidth, rows["intensity"])


def roofs(flops: Mapping[str, float], bandwidth: float | None, intensities: Iterable[float]) -> list[Series]:
    """Return the roofs of a roofline: what a device reaches at most, over the range of the intensities.

    Args:
        flops: peak FLOP/s by name of the roof.
        bandwidth: memory bandwidth in bytes/s; None: unknown.
        intensities: FLOP per byte of the points.

    Example:
        >>> roofs({"f32": 10.0}, 2.0, [1.0])
        [Series(name='f32', points=[(1.0, 2.0), (5.0, 10.0), (10.0, 10.0)], marks=())]
    """
    corners = [peak / bandwidth for peak in flops.values()] if bandwidth else []
    places = [*intensities, *(corner / 2 for corner in corners), *(corner * 2 for corner in corners)]
    if not places:
        return []
    low, high = min(places), max(places)
    if not bandwidth:
        return [Series(name, [(low, peak), (high, peak)]) for name, peak in flops.items()]
    if not flops:
        return [Series("memory", [(low, low * bandwidth), (high, high * bandwidth)])]
    return [
        Series(name, [(low, low * bandwidth), (peak / bandwidth, peak), (high, peak)]) for name, peak in flops.items()
    ]
