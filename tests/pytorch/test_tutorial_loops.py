"""Loops as tutorials write them, recorded without an edit: steps, their times and shares are those of the loop."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import tutorial_loops
from commands import annot as run_annot
from commands import needs_recorder

from annot.runs.run import Run

pytestmark = [needs_recorder, pytest.mark.slow]


@pytest.mark.parametrize("name", tutorial_loops.LOOPS)
def test_loop(name: str, tmp_path: Path) -> None:
    """The number of steps is that of the loop, they fit into its time, and the lines of the table add up to 100 %."""
    words = ["run", "--layers", "-o", "run.sqlite", "--collector", "recorder", "--no-report", "--", sys.executable]
    done = run_annot(*words, str(Path(tutorial_loops.__file__)), name, cwd=tmp_path)
    assert done.returncode == 0, done.stderr.decode()
    steps, loop_ns = map(int, done.stdout.split())
    run = Run(tmp_path / "run.sqlite")
    report = run.view()
    assert report.meta["steps"] + report.meta["warmup_left_out"] == steps, report.meta["steps_found_by"]
    assert run.steps["step_ns"].sum() <= loop_ns
    if not steps:
        assert report.meta["steps_missing"].startswith("only layers repeat, without a backward pass or an optimizer")
    lines = [*report.tree, *report.others]
    assert sum(line.get("host_ns") or 0 for line in lines if not line.depth) == pytest.approx(report.whole)
    assert all((line.get("host_ns") or 0) <= (report.whole or 0) * (1 + 1e-9) for line in lines)
    assert report.scope == ""
