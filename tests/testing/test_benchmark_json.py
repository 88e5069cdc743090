"""Results as JSON of pytest-benchmark: the numbers are its numbers, and its command reads the file."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from annot.analyze.comparison.digest import TABLES, Digest
from annot.testing.benchmark_json import benchmark, document


def run_with_steps(*milliseconds: float) -> Digest:
    """Return a run of which only the times of its steps matter."""
    tables = {name: pl.DataFrame(schema=dict(schema)) for name, schema in TABLES.items()}
    rows = [{"step": step, "process": 0, "step_ns": round(1e6 * time)} for step, time in enumerate(milliseconds)]
    tables["steps"] = pl.DataFrame(rows, schema=dict(TABLES["steps"]))
    return Digest(meta={}, **tables)


TIMES = (11.0, 13.0, 12.0, 40.0, 12.5, 11.5)
RUNS = [run_with_steps(time, time, 90 * time) for time in TIMES]


def test_round_is_the_median_step_of_a_run() -> None:
    stats = benchmark("test_a", "tests/x.py::test_a", None, RUNS)["stats"]
    assert stats["data"] == pytest.approx([time / 1000 for time in TIMES])
    assert stats["rounds"] == len(TIMES)
    assert stats["iterations"] == 3


def test_statistics_are_those_of_pytest_benchmark() -> None:
    """All but quartiles, which it computes with a method of its own."""
    theirs_of = pytest.importorskip("pytest_benchmark.stats", reason="pytest-benchmark is not installed").Stats
    stats = benchmark("test_a", "tests/x.py::test_a", None, RUNS)["stats"]
    theirs = theirs_of()
    for time in stats["data"]:
        theirs.update(time)
    expected = theirs.as_dict()
    assert stats.keys() == expected.keys() | {"data", "iterations"}
    quartiles = {"q1", "q3", "iqr"}
    same = {name: value for name, value in expected.items() if name not in quartiles}
    assert {name: stats[name] for name in same} == {
        name: value if isinstance(value, str) else pytest.approx(value) for name, value in same.items()
    }
    assert stats["q1"] <= stats["median"] <= stats["q3"]
    assert stats["iqr_outliers"] == 1


def test_one_run() -> None:
    stats = benchmark("test_a", "x.py::test_a", None, RUNS[:1])["stats"]
    assert {stats[name] for name in ("min", "max", "mean", "median", "q1", "q3", "ld15iqr", "hd15iqr")} == {0.011}
    assert stats["stddev"] == stats["iqr"] == 0


def test_run_without_step_times_is_no_round() -> None:
    assert benchmark("test_a", "x.py::test_a", None, [run_with_steps(), RUNS[0]])["stats"]["rounds"] == 1


def test_parameters_are_texts() -> None:
    entry = benchmark("test_a[fp16-2]", "x.py::test_a[fp16-2]", {"dtype": object, "size": 2}, RUNS)
    assert entry["param"] == "fp16-2"
    assert entry["params"]["size"] == "2"
    json.dumps(entry)


def test_compare_of_pytest_benchmark_reads_it(tmp_path: Path) -> None:
    pytest.importorskip("pytest_benchmark", reason="pytest-benchmark is not installed")
    for number, factor in ((1, 1), (2, 3)):
        runs = [run_with_steps(*(factor * time for time in TIMES)) for _ in range(4)]
        text = json.dumps(document([benchmark("test_a", "tests/x.py::test_a", None, runs)], "ab" * 20, True))
        (tmp_path / f"000{number}_runs.json").write_text(text)
    command = ["-m", "pytest_benchmark", "compare", "0001_runs.json", "0002_runs.json", "--columns=mean,rounds,ops"]
    done = subprocess.run([sys.executable, *command], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines() if "0001_" in line or "0002_" in line]
    assert len(rows) == 2
    assert {row[2] for row in rows} == {"12.2500", "36.7500"}, done.stdout


def test_value_that_github_action_benchmark_reads() -> None:
    """With the tool pytest, it shows `stats.ops` of `fullname`, the standard deviation, the mean and the rounds."""
    shown: dict[str, Any] = document([benchmark("test_a", "tests/x.py::test_a", None, RUNS)], None, None)
    (entry,) = shown["benchmarks"]
    assert entry["fullname"] == "tests/x.py::test_a"
    assert entry["stats"]["ops"] == pytest.approx(1000 / statistics.mean(TIMES))
    assert entry["stats"]["stddev"] == pytest.approx(statistics.stdev(TIMES) / 1000)
    assert entry["stats"]["mean"] == pytest.approx(statistics.mean(TIMES) / 1000)
    assert shown["commit_info"]["id"] == "unversioned"
