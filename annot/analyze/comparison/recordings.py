"""Whether the recordings of two runs are complete."""

from __future__ import annotations

from typing import Final

import polars as pl

from annot.analyze.comparison.digest import Digest
from annot.analyze.comparison.pairs import Difference, Pair, layers_by_step, usual
from annot.attribution.gpu_time import UNATTRIBUTED
from annot.util.weak_keys import once_for_each

_MOST: Final = 0.5
"""Kernels of the layers with this share of all kernels vary by step, or are fewer, in one of the runs only."""
_FEWER: Final = 0.9
"""A call has fewer kernels if it has less than this share: numbers of kernels can depend on the data."""
_EMPTY: Final = 0.1
"""Share of the steps without a kernel or a layer that one run has more than the other."""


def truncated(pair: Pair) -> Difference:
    """Return which events a recording lacks: as its profile shows, or as the other run shows."""
    cuts = zip(pair.names, (run.meta["cut"] for run in pair.runs), strict=True)
    if cut := "; ".join(f"{name}: {sentence.rstrip('.')}" for name, sentence in cuts if sentence):
        return Difference(cut)
    if pair.per_step and (empty := _empty_steps(pair)):
        return empty
    if pair.time != "gpu_ns":
        return Difference()
    return (pair.per_step and _uneven_steps(pair)) or _fewer_kernels(pair)


def _empty_steps(pair: Pair) -> Difference:
    """Return how many steps have no kernel, or no layer in runs without GPU activity, if that differs."""
    on_gpu = pair.time == "gpu_ns"
    steps = [run.steps.height for run in pair.runs]
    busy = [int((run.steps["kernels"] > 0).sum()) if on_gpu else _steps_with_layers(run) for run in pair.runs]
    if abs(busy[0] / steps[0] - busy[1] / steps[1]) <= _EMPTY:
        return Difference()
    counts = (
        f"{all_ - few:,} of {all_:,} steps in {name}" for few, all_, name in zip(busy, steps, pair.names, strict=True)
    )
    return Difference(f"steps have no {'kernel' if on_gpu else 'layer'}: {' and '.join(counts)}")


def _steps_with_layers(run: Digest) -> int:
    return layers_by_step(run).filter(pl.col("module") != "")["step"].n_unique()


def _uneven_steps(pair: Pair) -> Difference:
    """Return in which run alone most kernels are in layers whose number of kernels varies from step to step."""
    shares = [_uneven(run) for run in pair.runs]
    if abs(shares[0] - shares[1]) <= _MOST:
        return Difference()
    name = pair.names[0 if shares[0] > shares[1] else 1]
    return Difference(f"only in {name}, layers have another number of kernels in each step: its recording lost some")


@once_for_each
def _uneven(run: Digest) -> float:
    rows = layers_by_step(run).group_by("layer", "phase", "step").agg(pl.col("activities").sum())
    rows = rows.filter(pl.col("activities") > 0)
    uneven = total = 0
    for counts in rows.group_by("layer", "phase").agg("activities")["activities"].to_list():
        low, high = usual(counts + [0] * (run.steps.height - len(counts)))
        total += sum(counts)
        uneven += sum(counts) if low < high else 0
    return uneven / max(total, 1)


def _fewer_kernels(pair: Pair) -> Difference:
    """Return in which run the calls of most layers have fewer kernels, all of them kernels that the other run has."""
    sides = [_kernels_of(run) for run in pair.runs]
    for fewer, more in ((0, 1), (1, 0)):
        rows = sides[more].join(sides[fewer], on=["layer", "phase"], suffix="_few")
        has_no_other = pl.col("names_few").list.set_difference("names").list.len() == 0
        rows = rows.filter(pl.col("kernels_few") < _FEWER * pl.col("kernels"), has_no_other)
        if int(rows["total"].sum()) > _MOST * int(sides[more]["total"].sum()):
            names = f"{pair.names[fewer]} than of {pair.names[more]}"
            return Difference(f"the same kernels run less often in most layers of {names}: its recording lost some")
    return Difference()


@once_for_each
def _kernels_of(run: Digest) -> pl.DataFrame:
    """Return layer, phase, names of its kernels, their number (total), and kernels per call, or else per step."""
    nodes = run.nodes.select("layer", "phase", "calls", node=pl.int_range(pl.len(), dtype=pl.Int32))
    called = nodes.group_by("layer", "phase").agg(called=pl.col("calls").sum())
    rows = run.kernels.filter("kernel").rename({"calls": "total"})
    rows = rows.join(nodes.filter(pl.col("layer") != UNATTRIBUTED), on="node")
    rows = rows.group_by("layer", "phase").agg(pl.col("name").unique().alias("names"), pl.col("total").sum())
    times = pl.when(pl.col("called") > 0).then("called").otherwise(max(run.steps.height, 1))
    return rows.join(called, on=["layer", "phase"]).with_columns(kernels=pl.col("total") / times)
