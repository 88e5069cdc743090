"""Times of tests in the JSON format of pytest-benchmark.

A round is a run of a test, its time is the median time of a step in that run, and its iterations are the steps.
"""

from __future__ import annotations

import datetime
import platform
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from annot.analyze.comparison.digest import Digest
from annot.emit.machine import cpu_name
from annot.report.export.pytest_benchmark import entry, whole_document


def benchmark(name: str, fullname: str, params: Mapping[str, Any] | None, runs: Sequence[Digest]) -> dict[str, Any]:
    """Return the entry of a test.

    Args:
        name: name of the test in its file.
        fullname: the node id.
        params: the values of its parameters; None: a test without parameters.
        runs: the runs. Runs without step times are left out.
    """
    row = entry(name, fullname, params, [seconds for run in runs if (seconds := _step_seconds(run))])
    row["stats"]["iterations"] = round(statistics.median(run.steps.height for run in runs))
    return row


def document(benchmarks: Sequence[Mapping[str, Any]], commit: str | None, dirty: bool | None) -> dict[str, Any]:
    """Return the whole document, with facts about this machine.

    Args:
        benchmarks: entries of tests with step times.
        commit: the commit of the tested code; None: unknown.
        dirty: whether tracked files differ from the commit; None: unknown.
    """
    machine = {
        "node": platform.node(),
        "processor": platform.processor(),
        "machine": platform.machine(),
        "python_implementation": platform.python_implementation(),
        "python_implementation_version": platform.python_version(),
        "python_version": platform.python_version(),
        "release": platform.release(),
        "system": platform.system(),
        "cpu": {"brand_raw": cpu_name()},
    }
    facts = {"id": commit or "unversioned", "dirty": bool(dirty)}
    return whole_document(benchmarks, machine, facts, datetime.datetime.now(datetime.UTC).isoformat())


def _step_seconds(run: Digest) -> float:
    """The median time of a step of a run; 0: unknown."""
    times = run.steps["step_ns"].drop_nulls().to_list()
    return statistics.median(times) / 1e9 if times else 0.0
