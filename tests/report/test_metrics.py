"""Metrics for experiment trackers: names that these accept, and the numbers of the tables."""

from __future__ import annotations

import json
import math
import posixpath
import re
from pathlib import Path

import pytest
from ranked import write_ranks
from sqlite_profile import SqliteProfile, training

import annot
from annot.cli.main import main
from annot.runs.run import Run


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """Two steps of a small network with kernels."""
    return training(device=True).write(tmp_path / "run.sqlite")


def _check_names(metrics: dict[str, float]) -> None:
    """The rules of MLflow 2 and 3 for names (`mlflow.utils.validation`), also on Windows, and for values."""
    for name, number in metrics.items():
        assert re.fullmatch(r"[A-Za-z0-9_\-. /]{1,250}", name), name
        assert posixpath.normpath(name) == name
        assert not name.startswith(("/", ".."))
        assert math.isfinite(number)


def test_numbers_are_those_of_a_step(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(trained), "--format", "metrics"]) == 0
    metrics = json.loads(capsys.readouterr().out)
    assert metrics == Run(str(trained)).metrics()
    _check_names(metrics)
    rows = annot.open(str(trained)).view(draw=False).rows.filter(layer="features.0", phase="backward")
    assert metrics["layer/features.0/backward/gpu_ms"] * 1e6 == rows["gpu_ns"].item() == 1_500_000
    assert metrics["layer/features.0/backward/kernels"] == 1
    assert metrics["layer/model AlexNet/forward/gpu_ms"] == pytest.approx(1.22)
    assert metrics["run/gpu_ms"] == pytest.approx(3.48)
    assert metrics["run/step/median_ms"] == pytest.approx(2.12)


def test_sums_and_other_rows(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(trained), "--format", "metrics", "--total", "--by", "kernel"]) == 0
    metrics = json.loads(capsys.readouterr().out)
    assert metrics["kernel/conv_fwd/gpu_ms"] == pytest.approx(1.8)
    assert metrics["run/gpu_ms"] == pytest.approx(7.0)
    assert "layer/features.0/backward/gpu_ms" not in metrics


def test_unknown_numbers_are_left_out(tmp_path: Path) -> None:
    metrics = Run(training(device=False).write(tmp_path / "x.sqlite")).metrics()
    assert metrics["layer/features.0/forward/host_ms"] == pytest.approx(0.4)
    assert not [name for name in metrics if name.startswith("layer/features.0") and "gpu" in name]


def test_hostile_and_equal_names(tmp_path: Path) -> None:
    """Names that differ only in other characters stay apart."""
    profile = SqliteProfile()
    names = ["a:b", "a;b", "../../etc", "/root//x", "…", "x" * 400, "layer\n/forward"]
    for number, name in enumerate(names):
        profile.range(name, 1000 * number, 1000 * number + 100 * (number + 1))
    metrics = Run(profile.write(tmp_path / "x.sqlite")).metrics()
    _check_names(metrics)
    times = [number for name, number in metrics.items() if name.startswith("layer/") and name.endswith("/host_ms")]
    assert {round(1e6 * time) for time in times} >= {100 * (number + 1) for number in range(len(names))}


def test_each_rank_has_metrics(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_ranks(tmp_path / "ranks", 2)
    assert main(["report", str(tmp_path / "ranks"), "--format", "metrics", "--workers", "1"]) == 0
    metrics = json.loads(capsys.readouterr().out)
    _check_names(metrics)
    for rank in (0, 1):
        assert metrics[f"rank{rank}/layer/features.0/backward/gpu_ms"] == pytest.approx(1.5)


@pytest.mark.parametrize("words", ["--by kind", "--each", "--columns roofline"])
def test_rows_need_names(words: str, trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(trained), "--format", "metrics", *words.split()]) == 2
    assert "--format metrics cannot be combined with --by " in capsys.readouterr().err


def test_rows_need_names_in_python(trained: Path) -> None:
    with pytest.raises(ValueError, match="metrics need rows with names, got by kind"):
        Run(str(trained)).metrics("kind")
