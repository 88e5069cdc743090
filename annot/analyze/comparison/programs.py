"""Whether two runs have the same layers, kernels and calls of layers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import polars as pl

from annot.analyze.comparison.digest import Digest
from annot.analyze.comparison.fused import fused_layers
from annot.analyze.comparison.pairs import (
    Difference,
    Pair,
    differ_by_step,
    is_gone,
    is_rarer,
    layer_sums,
    layers_by_step,
)
from annot.labels.tag import COMPILED
from annot.util.weak_keys import once_for_each

_LAYER: Final = ("name", "phase")
_LEAST: Final = 0.1
"""Kernels and calls count if those that differ take more than this share of a run."""
_SMALL: Final = 0.01
"""Share of a run from which ranges of other tools with numbers in their names count."""
_CLOCK: Final = 2.0
"""The clock of a GPU at work changes by a smaller factor. Without layers, a greater one is another model."""
_LONGEST: Final = 60
_NUMBER: Final = re.compile(r"(?<![A-Za-z\d])\d+|#")
"""Number of a repeated layer, or the sign that stands for it; the 2 of Conv2d is none."""


def layers(pair: Pair) -> Difference:
    """Return which layers only one of the runs has, or which run in fewer of its steps."""
    clauses, shares = [], []
    for name, table, run in zip(pair.names, _only(pair), pair.runs, strict=True):
        gone = table.filter("counts").sort("ns", *_LAYER, descending=[True, False, False])
        if gone.is_empty():
            continue
        share = int(gone["ns"].sum()) / max(_whole(run, pair.time), 1)
        layer = gone.row(0, named=True)
        numbers = _folds(pair, layer["name"])
        clauses.append(f"layers only in {name} take {_percent(share)} of its time, such as {_name(layer)}{numbers}")
        shares.append(share)
    return Difference("; ".join(clauses), max(shares)) if clauses else _in_fewer_steps(pair)


def _in_fewer_steps(pair: Pair) -> Difference:
    """Return which layers run in every step of one of the runs, and in fewer steps of the other than by chance."""
    sides = [_layers_of(run, pair.time) for run in pair.runs]
    rows = sides[0].join(sides[1], on=_LAYER, suffix="_b").sort("ns", *_LAYER, descending=[True, False, False])
    few = [_is_rarer_than_always(*counts) for counts in rows.select("steps", "of", "steps_b", "of_b").iter_rows()]
    rows = rows.filter(pl.Series(few, dtype=pl.Boolean))
    if rows.is_empty():
        return Difference()
    row = rows.row(0, named=True)
    counts = [f"{row[f'steps{of}']:,} of {row[f'of{of}']:,}" for of in ("", "_b")]
    words = f"{counts[0]} steps of {pair.names[0]} and in {counts[1]} of {pair.names[1]}"
    return Difference(f"{_name(row)} runs in {words}", int(rows["ns"].sum()) / max(_whole(pair.runs[0], pair.time), 1))


def _is_rarer_than_always(steps: int, of: int, others: int, of_others: int) -> bool:
    if steps >= of:
        return is_rarer(others, of_others, steps, of)
    return others >= of_others and is_rarer(steps, of, others, of_others)


def rare(pair: Pair) -> Iterator[str]:
    """Yield a sentence about layers of one run that ran in few of its steps."""
    for name, table in zip(pair.names, _only(pair), strict=True):
        few = table.filter(~pl.col("counts"), pl.col("steps") < pl.col("of")).sort(
            "ns", *_LAYER, descending=[True, False, False]
        )
        if few.height:
            layer = few.row(0, named=True)
            yield f"only {name} runs {_name(layer)}, in {layer['steps']:,} of {layer['of']:,} steps"


def names_layers(run: Digest, pair: Pair) -> bool:
    """Return whether at least half of the time of a run is in layers."""
    return 2 * _outside(run, pair.time) <= _whole(run, pair.time)


def _only(pair: Pair) -> list[pl.DataFrame]:
    """Return the layers that each run has alone: name, phase, ns, steps, of, and whether the difference counts."""
    sides = [_layers_of(run, pair.time) for run in pair.runs]
    names = [side.select("name", "phase").rows() for side in sides]
    fused = fused_layers(*names)
    alone = []
    for mine, other in ((0, 1), (1, 0)):
        table = sides[mine].filter([name not in fused[mine] for name in names[mine]])
        table = table.join(sides[other], on=_LAYER, how="anti")
        others, whole = pair.runs[other].steps.height, _whole(pair.runs[mine], pair.time)
        chance = [is_gone(steps, of, others) for steps, of in table.select("steps", "of").iter_rows()]
        has_number = (pl.col("module") == "") & pl.col("name").str.contains("#", literal=True)
        counts = pl.Series("counts", chance, pl.Boolean) & ~(has_number & (pl.col("ns") < _SMALL * whole))
        alone.append(table.with_columns(counts.alias("counts")))
    return alone


def _layers_of(run: Digest, time: str) -> pl.DataFrame:
    """Return name, phase, module, ns, steps (with time), of (steps of its processes) of the layers with time."""
    return layer_sums(run).select(*_LAYER, "module", "of", ns=time, steps=f"{time}_steps").filter(pl.col("ns") > 0)


def _whole(run: Digest, time: str) -> int:
    return int(run.times[time].sum() or 0)


def _outside(run: Digest, time: str) -> int:
    """Return the time in no layer."""
    return _whole(run, time) - int(layer_sums(run)[time].sum() or 0)


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.005 else "less than 1%"


def _name(row: dict[str, Any]) -> str:
    return f"{row['name'] or '(model)'} {row['phase']}"


def _folds(pair: Pair, name: str) -> str:
    """Return the numbers of repeated layers in both runs, as `` (h.*: 12 and 24)``; empty unless they differ."""
    fold = _NUMBER.sub("*", name)
    counts = [
        sum(_NUMBER.sub("*", layer) == fold for layer in layers_by_step(run)["layer"].unique()) for run in pair.runs
    ]
    return f" ({fold}: {counts[0]:,} and {counts[1]:,})" if all(counts) and counts[0] != counts[1] else ""


def kernels(pair: Pair) -> Difference:
    """Return what differs between the kernels, if half of the GPU time of a run is in no layer."""
    if pair.time != "gpu_ns" or all(names_layers(run, pair) for run in pair.runs):
        return Difference()
    sides = [run.kernels.group_by("name").agg(pl.col("calls").sum(), ns=pl.col("gpu_ns").sum()) for run in pair.runs]
    clauses, shares = [], []
    for name, mine, other in zip(pair.names, sides, reversed(sides), strict=True):
        alone = mine.join(other, on="name", how="anti").sort("ns", "name", descending=[True, False])
        share = int(alone["ns"].sum()) / max(int(mine["ns"].sum()), 1)
        if share > _LEAST:
            example = alone["name"][0][:_LONGEST]
            clauses.append(f"kernels only in {name} take {_percent(share)} of its time, such as {example}")
            shares.append(share)
    if clauses:
        return Difference("; ".join(clauses), max(shares))
    return _numbers_of_kernels(pair, sides) or _longer_kernels(pair, sides)


def _numbers_of_kernels(pair: Pair, sides: Sequence[pl.DataFrame]) -> Difference:
    """Return how often kernels run that take more than `_LEAST` of the time, in a step or in the whole run."""
    steps = [run.steps.height for run in pair.runs]
    both = sides[0].join(sides[1], on="name", suffix="_b").sort("ns", "name", descending=[True, False])
    rate, other = pl.col("calls") / steps[0], pl.col("calls_b") / steps[1]
    apart = both.with_columns(rate=rate, rate_b=other).filter(
        (rate - other).abs() > _LEAST * pl.max_horizontal(rate, other)
    )
    share = int(apart["ns"].sum()) / max(int(both["ns"].sum()), 1)
    if share <= _LEAST:
        return Difference()
    row = apart.row(0, named=True)
    each = " in a step" if pair.per_step else ""
    counts = f"{row['rate']:,.4g} and {row['rate_b']:,.4g}"
    return Difference(f"the numbers of kernels differ{each}: {row['name'][:_LONGEST]} {counts}", share)


def _longer_kernels(pair: Pair, sides: Sequence[pl.DataFrame]) -> Difference:
    """Return by which factor the kernels take longer, if no clock explains it and nothing else tells models apart."""
    means = [int(side["ns"].sum()) / max(int(side["calls"].sum()), 1) for side in sides]
    factor = max(means) / max(min(means), 1)
    if factor < _CLOCK or any(run.inputs["text"].count() for run in pair.runs):
        return Difference()
    longer = pair.names[0 if means[0] > means[1] else 1]
    words = f"without layers and shapes, kernels of the same names that take {factor:,.3g} times as long in {longer}"
    return Difference(f"{words} are those of another model")


def calls(pair: Pair) -> Difference:
    """Return which layers are called more often in one of the runs, in a step or else in the whole run."""
    sides = [_calls_of(run).rename({pair.time: "ns"}) for run in pair.runs]
    rows = sides[0].join(sides[1], on=_LAYER, suffix="_b").sort("ns", *_LAYER, descending=[True, False, False])
    other = [differ_by_step(a, b) for a, b in rows.select("calls", "calls_b").iter_rows()]
    apart = rows.filter(pl.Series(other, dtype=pl.Boolean))
    share = int(apart["ns"].sum()) / max(_whole(pair.runs[0], pair.time), 1)
    if apart.is_empty() or share <= (_SMALL if pair.per_step else _LEAST):
        return Difference()
    row = apart.row(0, named=True)
    counts = " and ".join(_number(row[name]) for name in ("calls", "calls_b")) + _folds(pair, row["name"])
    if pair.per_step:
        return Difference(f"the numbers of calls in a step differ: {_name(row)} {counts}", share)
    return Difference(f"neither run has steps, and the numbers of calls differ: {_name(row)} {counts}", share)


def _number(values: Sequence[int]) -> str:
    """Return the median of the calls in a step."""
    return f"{sorted(values)[len(values) // 2]:,}"


@once_for_each
def _calls_of(run: Digest) -> pl.DataFrame:
    """Return name, phase, times and calls (of each step with calls) of layers outside compiled graphs."""
    layers = layers_by_step(run).filter(~pl.col("module").str.starts_with(COMPILED))
    rows = layers.group_by(*_LAYER, "step").agg(pl.col("calls", "gpu_ns", "host_ns").sum())
    return rows.filter(pl.col("calls") > 0).group_by(_LAYER).agg("calls", pl.col("gpu_ns", "host_ns").sum())
