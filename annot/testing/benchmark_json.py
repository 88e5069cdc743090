"""Results in the JSON format of pytest-benchmark, for the tools that read it.

A round is a run of a test, its time is the median time of a step in that run, and its iterations are the steps.
Source: `pytest_benchmark.plugin.pytest_benchmark_generate_json` and `pytest_benchmark.stats.Stats` of version 5.
"""

from __future__ import annotations

import datetime
import platform
import statistics
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

from annot.analyze.comparison.digest import Digest
from annot.emit.machine import cpu_name


def benchmark(name: str, fullname: str, params: Mapping[str, Any] | None, runs: Sequence[Digest]) -> dict[str, Any]:
    """Return the entry of a test.

    Args:
        name: name of the test in its file.
        fullname: the node id.
        params: the values of its parameters; None: a test without parameters.
        runs: the runs. Runs without step times are left out.
    """
    times = [seconds for run in runs if (seconds := _step_seconds(run))]
    return {
        "group": None,
        "name": name,
        "fullname": fullname,
        "params": params and {key: str(value) for key, value in params.items()},
        "param": fullname.partition("[")[2].removesuffix("]") or None,
        "extra_info": {},
        "options": {},
        "stats": _statistics(times) | {"iterations": round(statistics.median(run.steps.height for run in runs))},
    }


def document(benchmarks: Sequence[Mapping[str, Any]], commit: str | None, dirty: bool | None) -> dict[str, Any]:
    """Return the whole document, with facts about this machine.

    Args:
        benchmarks: entries of tests with step times.
        commit: the commit of the tested code; None: unknown.
        dirty: whether tracked files differ from the commit; None: unknown.
    """
    return {
        "machine_info": {
            "node": platform.node(),
            "processor": platform.processor(),
            "machine": platform.machine(),
            "python_implementation": platform.python_implementation(),
            "python_implementation_version": platform.python_version(),
            "python_version": platform.python_version(),
            "release": platform.release(),
            "system": platform.system(),
            "cpu": {"brand_raw": cpu_name()},
        },
        "commit_info": {"id": commit or "unversioned", "dirty": bool(dirty)},
        "benchmarks": list(benchmarks),
        "datetime": datetime.datetime.now(datetime.UTC).isoformat(),
        "version": f"annot {version('annot')}",
    }


def _step_seconds(run: Digest) -> float:
    """The median time of a step of a run; 0: unknown."""
    times = run.steps["step_ns"].drop_nulls().to_list()
    return statistics.median(times) / 1e9 if times else 0.0


def _statistics(times: Sequence[float]) -> dict[str, Any]:
    """The statistics of the times of the runs, in seconds; the quartiles are those of the sample itself."""
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
        "data": list(times),
    }
