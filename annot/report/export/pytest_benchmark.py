"""Times in the JSON format of pytest-benchmark, for the tools that read it.

In the file of a profile, a benchmark is a layer in one phase, or the step, and a round is a step without warm-up in
which the layer runs.

Source: `pytest_benchmark.plugin.pytest_benchmark_generate_json` and `pytest_benchmark.stats.Stats` of version 5.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import polars as pl

from annot.analyze.gpu_activities import by_layer_and_step, has_gpu_activities
from annot.analyze.peaks import gpu_name
from annot.attribution.attribute import Attribution
from annot.attribution.layer_tables import by_layer
from annot.attribution.nesting import KEY
from annot.attribution.steps import steady_steps
from annot.attribution.summary import by_step
from annot.errors import AnnotError
from annot.report.tree import row_label
from annot.util.distribution import version


def layer_benchmarks(attribution: Attribution, source: str) -> Iterator[bytes]:
    """Yield the document of a profile: total times of layers on the GPU, or without GPU activity on the host; steps.

    The only round of a profile without steps is the whole profile.

    Raises:
        AnnotError: the profile has neither of these times. `source` is its name.
    """
    benchmarks = [entry(name, name, {"phase": phase}, times, phase) for name, phase, times in _rounds(attribution)]
    if not benchmarks:
        raise AnnotError(f"{source} has neither GPU times nor host times")
    meta = attribution.meta
    machine = {"gpu": gpu_name(meta), "cpu": {"brand_raw": meta.get("cpu", "")}, **meta.get("software", {})}
    yield json.dumps(whole_document(benchmarks, machine, {"id": "unversioned"}, None), indent=4).encode()


def _rounds(attribution: Attribution) -> Iterator[tuple[str, str, list[float]]]:
    """Yield name, phase and times (seconds) of each benchmark."""
    steps, rows = steady_steps(by_step(attribution)), by_layer(attribution)
    if lengths := [ns / 1e9 for ns in steps["step_ns"].drop_nulls() if ns > 0]:
        yield "step", "step", lengths
    time = "gpu_ns" if has_gpu_activities(attribution) else "host_ns"
    rounds = by_layer_and_step(attribution).filter(pl.col("step").is_in(steps["step"].implode()))
    rounds = (rows if steps.is_empty() else rounds).filter(pl.col(time) > 0)
    times = rounds.group_by(KEY).agg(pl.col(time) / 1e9)
    for row in rows.select(KEY).join(times, on=KEY, maintain_order="left").iter_rows(named=True):
        yield f"{' '.join(filter(None, row_label(row)))}[{row['phase']}]", row["phase"], row[time]


def entry(
    name: str, fullname: str, params: Mapping[str, Any] | None, times: Sequence[float], group: str | None = None
) -> dict[str, Any]:
    """Return a benchmark with the statistics of the times of its rounds, in seconds."""
    return {
        "group": group,
        "name": name,
        "fullname": fullname,
        "params": params and {key: str(value) for key, value in params.items()},
        "param": fullname.partition("[")[2].removesuffix("]") or None,
        "extra_info": {},
        "options": {},
        "stats": _statistics(times),
    }


def whole_document(
    benchmarks: Sequence[Mapping[str, Any]], machine: Mapping[str, Any], commit: Mapping[str, Any], date: str | None
) -> dict[str, Any]:
    """Return the document with benchmarks, facts about machine and commit, and the date of the run; None: unknown."""
    return {
        "machine_info": machine,
        "commit_info": commit,
        "benchmarks": benchmarks,
        "datetime": date,
        "version": f"annot {version()}",
    }


def _statistics(times: Sequence[float]) -> dict[str, Any]:
    """The statistics of the times of the rounds, in seconds; the quartiles are those of the sample itself."""
    if not times:
        return {"rounds": 0, "data": []}
    ordered, mean = sorted(times), statistics.mean(times)
    q1, median, q3 = statistics.quantiles(times, n=4, method="inclusive") if len(times) > 1 else 3 * ordered
    stddev = statistics.stdev(times) if len(times) > 1 else 0.0
    inside = [time for time in ordered if q1 - 1.5 * (q3 - q1) <= time <= q3 + 1.5 * (q3 - q1)]
    far = sum(abs(time - mean) > stddev for time in times)
    return {
        "min": ordered[0],
        "max": ordered[-1],
        "mean": mean,
        "stddev": stddev,
        "rounds": len(times),
        "median": median,
        "iqr": q3 - q1,
        "q1": q1,
        "q3": q3,
        "iqr_outliers": len(times) - len(inside),
        "stddev_outliers": far,
        "outliers": f"{far};{len(times) - len(inside)}",
        "ld15iqr": inside[0],
        "hd15iqr": inside[-1],
        "ops": 1 / mean,
        "total": sum(times),
        "iterations": 1,
        "data": list(times),
    }
