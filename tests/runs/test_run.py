"""How often a `Run` attributes its profile."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from large_profile import LAYERS, PER_LAYER, write_profile

from annot.attribution.attribute import attribute
from annot.runs import run
from annot.runs.run import Run


@pytest.mark.parametrize(("steps", "times"), [(1, 1), (4, 2)])
def test_profile_without_steps_is_attributed_once(
    steps: int, times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page of a file that is read in blocks needs the steps after the warm-up and the whole run: one if no steps."""
    path = tmp_path / "run.sqlite"
    write_profile(path, steps * (1 + LAYERS * (1 + 2 * PER_LAYER)))
    if times == 1:
        with sqlite3.connect(path) as connection:
            connection.execute("DELETE FROM NVTX_EVENTS WHERE text LIKE 'Batch%'")
    chosen: list[object] = []

    def counted(*arguments: Any, **options: Any) -> Any:
        chosen.append(options["steps"])
        return attribute(*arguments, **options)

    monkeypatch.setattr(run, "_IN_MEMORY", 0)
    monkeypatch.setattr(run, "attribute", counted)
    made = Run(path)
    assert (made.page()["runs"][0]["meta"]["steps"] > 0) == (times == 2)
    assert len(chosen) == times
    assert (made.attribution is made.attribution_for(made._table.view)) == (times == 1)
    assert len(chosen) == times
