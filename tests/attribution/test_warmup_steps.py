"""Steps in ranges named warm-up: no steps of the run if the program measures other work."""

from __future__ import annotations

from pathlib import Path

import pytest
from shared_data import unpacked
from tables import MAIN, Rows

from annot.attribution.attribute import attribute
from annot.attribution.summary import by_step, summarize
from annot.runs.run import Run


def _benchmark(*others: tuple[str, int, int], count: int = 4) -> Rows:
    """Warm-up steps of 100 ns in a range around all of them, and other ranges."""
    rows = Rows().range("Benchmark", 0, 10_000).range("Warm-up", 0, 100 * count)
    for step in range(count):
        rows.range(f"Warm-up Step {step}", 100 * step, 100 * step + 100).kernel(
            100 * step + 10, (100 * step + 20, 100 * step + 80)
        )
    for text, start, end in others:
        rows.range(text, start, end).kernel(start + 1, (start + 2, end - 2))
    return rows


def test_warmup_before_a_benchmark() -> None:
    """The steps that repeat are the warm-up: the run has none, says why, and its time is that of the measurement."""
    profile = _benchmark(("Forward only", 1000, 3000)).build()
    steps = attribute(profile).steps
    assert (steps.table.height, steps.missing.partition(";")[0]) == (
        0,
        "all ranges with a usual name lie in ranges named warm-up",
    )
    verdict = Run(profile).verdict
    assert verdict.startswith("Run 2.60 µs without warm-up on one GPU: the GPU idles 23%")
    assert summarize(attribute(profile))["warmup_gpu_ns"] == 4 * 60
    text = str(Run(profile).view(brief=True))
    assert "GPU time by layer with warm-up, µs" in text
    assert "0.24 µs of it in warm-up" in text


def test_gpu_time_of_layers_in_the_warmup() -> None:
    """A layer inside a warm-up range counts, by whatever name, and the same layer after it does not."""
    rows = Rows().range("warmup", 0, 100).range("fc Linear |fwd", 10, 90).kernel(20, (30, 70))
    rows.range("fc Linear |fwd", 200, 300).kernel(210, (220, 290))
    assert summarize(attribute(rows.build()))["warmup_gpu_ns"] == 40


@pytest.mark.parametrize("others", [[], [("Warm-up rest", 500, 600)]])
def test_without_other_work_they_are_steps(others: list[tuple[str, int, int]]) -> None:
    """Ranges around the warm-up, or inside, are no other work."""
    assert by_step(attribute(_benchmark(*others).build()))["warmup"].to_list() == [True] * 4


def test_measured_steps_after_warmup_steps() -> None:
    """Steps of both kinds keep their numbers, and the warm-up is left out of their times."""
    rows = _benchmark()
    for step in range(4, 8):
        rows.range(f"Step {step}", 1000 + 50 * step, 1050 + 50 * step)
    steps = by_step(attribute(rows.build()))
    assert steps["warmup"].to_list() == [True] * 4 + [False] * 4


def test_a_repeating_pattern_in_the_warmup() -> None:
    """Also a pattern that repeats is no step if it lies in the warm-up."""
    rows = Rows().range("warmup", 0, 1000)
    for call in range(5):
        rows.range("read", 100 * call, 100 * call + 50).range("compute", 100 * call + 50, 100 * call + 100)
    assert attribute(rows.build()).steps.table.height == 5
    steps = attribute(rows.range("measured", 1000, 1500, thread=MAIN).build()).steps
    assert (steps.table.height, steps.missing.partition(";")[0]) == (
        0,
        "the pattern of ranges that repeats lies in ranges named warm-up",
    )


def test_a_step_range_selects_them() -> None:
    """The user may name the ranges."""
    profile = _benchmark(("Forward only", 1000, 3000)).build()
    assert attribute(profile, step_range="Warm-up Step #").steps.table.height == 4


def test_a_real_benchmark(tmp_path: Path) -> None:
    """Five warm-up steps, then ten forward passes: 645 of 676 ms are those of the forward passes."""
    run = Run(unpacked("nsys/jsun_lm_fwd_bwd.2025.1.sqlite.gz", tmp_path))
    assert run.verdict.startswith("Run 676 ms without warm-up on RTX 3070 Ti: the GPU is busy 95%")
    assert "Benchmark Forward Only › Forward" in run.verdict
    assert run.meta["steps"] == 0
