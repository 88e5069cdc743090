"""Profiles as JSON of pytest-benchmark: a benchmark per layer and phase, and its command reads the file."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sqlite_profile import SqliteProfile, training

from annot.cli.main import main


def _entries(profile: Path, *words: str) -> dict[str, dict[str, Any]]:
    """Return the benchmarks that annot writes for a profile, by name."""
    out = profile.with_suffix(".json")
    assert main(["report", str(profile), "--format", "pytest-benchmark", "-o", str(out), "--force", *words]) == 0
    return {entry["name"]: entry for entry in json.loads(out.read_text())["benchmarks"]}


def test_layers_of_a_profile(tmp_path: Path) -> None:
    """Each layer has its time in each step on the GPU, and the step its wall-clock time."""
    entries = _entries(training(device=True).write(tmp_path / "run.sqlite"))
    assert entries["step"]["stats"]["data"] == pytest.approx([0.00212, 0.00212])
    backward = entries["features.0 Conv2d[backward]"]
    assert backward["stats"]["data"] == pytest.approx([0.0015, 0.0015])
    assert backward["fullname"] == backward["name"]
    assert (backward["group"], backward["param"], backward["params"]) == ("backward", "backward", {"phase": "backward"})
    assert entries["(model) AlexNet[forward]"]["stats"]["mean"] == pytest.approx(0.00122)
    assert "Data wait[data]" not in entries  # it takes no GPU time
    assert all(entry["stats"]["rounds"] > 0 for entry in entries.values())


def test_selected_steps_are_the_rounds(tmp_path: Path) -> None:
    entries = _entries(training(device=True).write(tmp_path / "run.sqlite"), "--steps", "1")
    assert {entry["stats"]["rounds"] for entry in entries.values()} == {1}


def test_profile_without_steps_is_one_round(tmp_path: Path) -> None:
    """It has host times where no GPU did anything."""
    profile = SqliteProfile()
    profile.layer("fc Linear [4,8]f32 |fwd", 0, 3_000_000)
    entries = _entries(profile.write(tmp_path / "x.sqlite"))
    assert entries["fc Linear[forward]"]["stats"]["data"] == [0.003]
    assert "step" not in entries


def test_compare_of_pytest_benchmark_reads_profiles(tmp_path: Path) -> None:
    pytest.importorskip("pytest_benchmark", reason="pytest-benchmark is not installed")
    for name in ("a", "b"):
        _entries(training(device=True).write(tmp_path / f"{name}.sqlite"))
    command = ["-m", "pytest_benchmark", "compare", "a.json", "b.json", "--group-by=name", "--columns=mean,rounds"]
    done = subprocess.run([sys.executable, *command], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "benchmark 'features.0 Conv2d[backward]': 2 tests" in done.stdout
    assert "benchmark 'step': 2 tests" in done.stdout
