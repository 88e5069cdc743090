"""Work of layers in a step: time, calls, inputs, kernels and operations; medians of the runs of one side."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import median, quantiles
from typing import Final, TypeAlias, TypeVar

import polars as pl

from annot.analyze.comparison.digest import Digest
from annot.analyze.work.formulas import expected
from annot.attribution.column_ops import NONE
from annot.attribution.nesting import KEY, Key
from annot.labels.tag import parse

Call: TypeAlias = tuple[Key, str, str]
"""A layer, the shapes and dtypes of its inputs, and its parameters."""

Timed: TypeAlias = Mapping[str, tuple[float, float]]
"""Calls and time (ns) in a step by name."""

_T = TypeVar("_T", bound=Hashable)
_LARGEST: Final = 1 << 63
"""Largest amount of work of a call. Only a damaged profile exceeds it."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """Work of some layers in a step.

    Args:
        ns: time of the layers, the median of the steps.
        calls: number of calls of each layer.
        inputs: number of calls with each input; calls with unknown inputs are absent.
        activities: kernels and copies if GPU times are compared, else the operations that the profile has.
    """

    ns: float = 0.0
    calls: Mapping[Key, float] = field(default_factory=dict)
    inputs: Mapping[Call, float] = field(default_factory=dict)
    activities: Timed = field(default_factory=dict)

    @cached_property
    def flops(self) -> float:
        """FLOPs of the calls whose FLOPs follow from their inputs."""
        return sum(calls * _flops(call) for call, calls in self.inputs.items())

    @cached_property
    def elements(self) -> float:
        """Number of elements in the inputs of all calls."""
        return sum(calls * elements(text) for (_, text, _), calls in self.inputs.items())


def work_of_rows(runs: Sequence[Digest], rows: Sequence[Key], time: str) -> list[Work]:
    """Return the work of each row, and last the work of the whole run.

    A layer counts to its own row, or to that of the innermost layer around it that has a row.

    Args:
        runs: the runs of one side, at least one.
        rows: layer, module and phase of each row.
        time: the compared time, gpu_ns or host_ns.
    """
    of_runs = [_of_run(run, rows, time) for run in runs]
    return [_of_side([works[row] for works in of_runs]) for row in range(len(rows) + 1)]


def self_times(runs: Sequence[Digest], time: str) -> dict[Key, float]:
    """Return the self time (ns) of each layer in a step, the median of the steps and of the runs."""
    of_runs: list[dict[Key, float]] = []
    for run in runs:
        keys = run.nodes.select(*KEY, node=pl.int_range(pl.len(), dtype=pl.Int32))
        sums = run.times.join(keys, on="node").group_by(*KEY, "step").agg(pl.col(time).sum())
        rows = sums.group_by(KEY).agg(pl.col(time).median())
        of_runs.append({(layer, module, phase): ns for layer, module, phase, ns in rows.iter_rows()})
    return _medians(of_runs)


def step_parts(runs: Sequence[Digest]) -> dict[str, float]:
    """Return the time (ns) of each part of a step, the median of the runs; empty: unknown."""
    return _medians([run.meta.get("parts") or {} for run in runs])


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Times of the steps; each number is the median of the runs.

    Args:
        ns: time of a step.
        spread: interquartile range as a fraction of the median.
        drift: median of the second half of the steps as a multiple of that of the first half.
    """

    ns: float
    spread: float
    drift: float

    @classmethod
    def of(cls, runs: Sequence[Digest]) -> StepTimes | None:
        """Return the times of the steps of one side; None: a run has fewer than four steps with known times."""
        times = [run.steps["step_ns"].drop_nulls().to_list() for run in runs]
        if not all(len(each) >= 4 and all(each) for each in times):
            return None
        figures = []
        for each in times:
            first, middle, third = quantiles(each)
            half = len(each) // 2
            figures.append((middle, (third - first) / middle, median(each[half:]) / median(each[:half])))
        return cls(*map(median, zip(*figures, strict=True)))


def _of_run(run: Digest, rows: Sequence[Key], time: str) -> list[Work]:
    """The work of each row in a run, and of the whole run."""
    row_of, steps = _rows_of_nodes(run, rows), max(run.steps.height, 1)
    keys: list[Key] = run.nodes.select(KEY).rows()
    calls = [defaultdict[Key, float](float) for _ in range(len(rows) + 1)]
    inputs = [defaultdict[Call, float](float) for _ in calls]
    activities = [defaultdict[str, tuple[float, float]](lambda: (0.0, 0.0)) for _ in calls]
    for node, count in enumerate(run.nodes["calls"]):
        for row in row_of[node]:
            calls[row][keys[node]] += count / steps
    texts = run.inputs.drop_nulls("text").select("node", "text", "parameters", "calls")
    for node, text, parameters, count in texts.iter_rows():
        for row in row_of[node]:
            inputs[row][keys[node], text, parameters or ""] += count / steps
    table = run.kernels if time == "gpu_ns" else run.operations
    for node, name, count, ns in table.select("node", "name", "calls", time).iter_rows():
        for row in row_of[node]:
            before = activities[row][name]
            activities[row][name] = before[0] + count / steps, before[1] + ns / steps
    times = _times(run, row_of, time, len(calls))
    return [
        Work(ns=times[row], calls=calls[row], inputs=inputs[row], activities=activities[row])
        for row in range(len(calls))
    ]


def _rows_of_nodes(run: Digest, rows: Sequence[Key]) -> dict[int, list[int]]:
    """The rows that each node counts to: the row of its layer, if any, and the whole run; -1: no layer."""
    numbers, whole = {key: number for number, key in enumerate(rows)}, len(rows)
    own: list[int] = []
    for parent, layer, module, phase in run.nodes.select("parent", *KEY).iter_rows():
        own.append(numbers.get((layer, module, phase), NONE if parent == NONE else own[parent]))
    return {NONE: [whole]} | {node: [whole] if row == NONE else [row, whole] for node, row in enumerate(own)}


def _times(run: Digest, row_of: Mapping[int, list[int]], time: str, count: int) -> list[float]:
    """The time (ns) of each row, the median of the steps."""
    pairs = [(node, row) for node, of_node in row_of.items() for row in of_node]
    places = pl.DataFrame(pairs, {"node": pl.Int32, "row": pl.Int32}, orient="row")
    sums = run.times.join(places, on="node").group_by("row", "step").agg(pl.col(time).sum())
    medians = dict(sums.group_by("row").agg(pl.col(time).median()).iter_rows())
    return [medians.get(row) or 0.0 for row in range(count)]


def _of_side(works: Sequence[Work]) -> Work:
    names = {name for work in works for name in work.activities}
    each = {name: [work.activities.get(name, (0.0, 0.0)) for work in works] for name in names}
    return Work(
        ns=median(work.ns for work in works),
        calls=_medians([work.calls for work in works]),
        inputs=_medians([work.inputs for work in works]),
        activities={
            name: (median(calls for calls, _ in pairs), median(ns for _, ns in pairs)) for name, pairs in each.items()
        },
    )


def _medians(numbers: Sequence[Mapping[_T, float]]) -> dict[_T, float]:
    """The median of each number; a number that is absent is 0."""
    names: Iterable[_T] = dict.fromkeys(name for each in numbers for name in each)
    return {name: median(each.get(name) or 0.0 for each in numbers) for name in names}


def _flops(call: Call) -> int:
    (layer, module, phase), text, parameters = call
    tag = parse(" ".join(("layer", *filter(None, (text, parameters)), "|fwd")))
    # The phase is that of a tag, as the inputs come from its label.
    work = None if tag is None else expected(replace(tag, layer=layer, module=module, phase=phase))  # type: ignore[arg-type]
    return 0 if work is None else min(max(work.flops, 0), _LARGEST)


def elements(text: str) -> int:
    """Return the number of elements of all tensors in a text in the format of `annot.labels.tag`.

    A size that is unknown counts as 1.

    Example:
        >>> elements("[4,8]f32 [8]f32")
        40
    """
    tag = parse(f"layer {text} |fwd")
    shapes = () if tag is None else (tensor.shape for tensor in tag.tensors)
    return min(sum(math.prod(1 if size is None else size for size in shape) for shape in shapes), _LARGEST)
