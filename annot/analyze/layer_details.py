"""All metrics of each layer: times, executions, Tensor Cores, work, roofline, memory and hardware counters."""

from __future__ import annotations

from typing import Final

import polars as pl

from annot.analyze.api_calls import calls_of
from annot.analyze.dlprof_reports import blocks_of, on_devices
from annot.analyze.gpu_activities import KEY
from annot.analyze.hardware_counters import layer_counters
from annot.analyze.kernel_kinds import layer_kernels
from annot.analyze.peak_sources import default_peaks
from annot.analyze.roofline import layer_roofline
from annot.analyze.tensor_cores import layer_tensor_cores
from annot.analyze.work import by_layer_with_work
from annot.attribution import by_layer, column_ops
from annot.attribution.attribute import Attribution, known

__all__ = ["by_detail"]

_CLOCKS: Final = ("host", "gpu")
_EXTREMES: Final = ("min", "max", "sum")
_SLICE: Final = 1 << 20
"""Ranges per slice. Slices keep temporary columns small."""


def by_detail(attribution: Attribution) -> pl.DataFrame:
    """Return all that is known about each layer, a row per layer, module class and phase.

    Returns:
        layer, module, phase, calls; tc_eligible, tc_used, reason: see `annot.analyze.tensor_cores`; host_ns, gpu_ns
        (total time) and their mean, min and max over the calls, where min and max are null if the calls do not add up
        to the total time, as for a layer with layers inside that run outside its calls; gpu_self_ns, of which tc_ns in
        kernels on Tensor Cores, matrix_ns in matrix multiplications and outside_ns in other kernels, listed in outside;
        launch_ns: CPU time of the API calls that launched the GPU activities of the layer itself; shapes. Then the
        other columns of `annot.correlate`, of `annot.analyze.roofline.layer_roofline` with the peaks of the profile's
        device, and, if the profile has them, of `annot.analyze.hardware_counters.layer_counters`.
    """
    rows = _dlprof(attribution)
    tables = [by_layer_with_work(attribution), layer_roofline(attribution, default_peaks(attribution)).drop("self_ns")]
    if (counters := layer_counters(attribution)) is not None:
        tables.append(counters)
    for table in tables:
        new = [name for name in table.columns if name not in rows.columns]
        rows = rows.join(table.select(*KEY, *new), on=KEY, how="left", maintain_order="left")
    return on_devices(rows, attribution)


def _dlprof(attribution: Attribution) -> pl.DataFrame:
    """Return DLProf's detailed report: a row per layer, module class and phase."""
    rows = by_layer(attribution).select(*KEY, "calls", "host_ns", "gpu_ns", "shapes")
    kernels = layer_kernels(attribution).select(*KEY, "matrix_ns", "outside_ns", "outside")
    for table in (layer_tensor_cores(attribution), kernels, _extremes(attribution), _launch_times(attribution)):
        rows = rows.join(table, on=KEY, how="left", maintain_order="left")
    calls = pl.when(pl.col("calls") > 0).then("calls")
    means = [(pl.col(f"{of}_ns") // calls).alias(f"{of}_mean_ns") for of in _CLOCKS]
    extremes = [
        pl.when(pl.col(f"{of}_sum_ns") == pl.col(f"{of}_ns")).then(f"{of}_{what}_ns").alias(f"{of}_{what}_ns")
        for of in _CLOCKS
        for what in ("min", "max")
    ]
    return rows.with_columns(*means, *extremes).select(
        *KEY, "calls", "tc_eligible", "tc_used",
        *(f"{of}{what}_ns" for of in _CLOCKS for what in ("", "_mean", "_min", "_max")),
        "gpu_self_ns", "tc_ns", "matrix_ns", "outside_ns", "outside", "launch_ns", "reason", "shapes",
    )  # fmt: skip


def _extremes(attribution: Attribution) -> pl.DataFrame:
    """The shortest and longest call of each layer and the sum of its calls, in CPU time and in GPU time."""
    forest = attribution.forest
    self_ns = attribution.range_work("gpu_self_ns").to_series()
    tree = forest.tree.select("path", "parent", "start", "end", gpu_ns=column_ops.fold(forest.tree["parent"], self_ns))
    keys, length = pl.Series("key", forest.nodes.keys, pl.Int64), (pl.col("end") - pl.col("start")).alias("host_ns")
    crossing = forest.crossing.select(length, gpu_ns=attribution.crossing_gpu_ns)
    crossing_key = forest.labels["key"].cast(pl.Int64).gather(forest.crossing["label"]).alias("key")
    extremes = [_call_extremes(crossing.with_columns(crossing_key))]
    for block in tree.iter_slices(_SLICE):
        outer = tree["path"].gather(column_ops.known(block["parent"]))
        calls = block.filter((block["path"] != column_ops.NONE) & block["path"].ne_missing(outer))
        extremes.append(_call_extremes(calls.select(length, "gpu_ns", keys.gather(calls["path"]))))
    merged = (getattr(pl.col(f"{of}_{what}_ns"), what)() for of in _CLOCKS for what in _EXTREMES)
    rows = pl.concat(extremes).drop_nulls("key").group_by("key").agg(merged)
    if not known(attribution.meta):
        rows = rows.with_columns(pl.lit(None, pl.Int64).alias(f"host_{what}_ns") for what in _EXTREMES)
    return forest.layers()[rows["key"]].hstack(rows.drop("key"))


def _call_extremes(calls: pl.DataFrame) -> pl.DataFrame:
    """The extremes of some calls by key; the table has key, host_ns and gpu_ns."""
    times = {f"{of}_{what}_ns": getattr(pl.col(f"{of}_ns"), what)() for of in _CLOCKS for what in _EXTREMES}
    return calls.group_by("key").agg(**times)


def _launch_times(attribution: Attribution) -> pl.DataFrame:
    """The time of the API calls of each layer; a call with several GPU activities (a CUDA graph) counts once."""
    calls, keys = calls_of(attribution), attribution.forest.layers_of_nodes()
    first = pl.Series("node", [None], pl.Int32).new_from_index(0, len(calls.ns))
    for block in blocks_of(attribution):
        row = calls.rows(block["process"], block["correlation"])
        launches = pl.DataFrame({"row": row, "node": block["node"]}).drop_nulls("row").unique("row", keep="first")
        new = launches.filter(first.gather(launches["row"]).is_null())
        first = first.scatter(new["row"], new["node"])
    sums = pl.DataFrame({"node": first, "launch_ns": calls.ns}).drop_nulls().group_by("node").agg(pl.all().sum())
    return keys[sums["node"]].hstack(sums).group_by(KEY).agg(pl.col("launch_ns").sum())
