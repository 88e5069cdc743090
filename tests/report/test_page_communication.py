"""The table of communication in the page."""

from __future__ import annotations

from pathlib import Path

import pytest
from chromium import Page
from report_pages import page_of
from step_rows import ALL_REDUCE, GEMM, Rows

pytest_plugins = ["report_page_fixtures"]

LINK = "[...document.querySelectorAll('nav a')].find(one => one.textContent === 'Communication by layer')"


@pytest.mark.slow
def test_communication_has_a_table(fresh: Page, trained: Path, tmp_path: Path) -> None:
    """The columns are those of the view, and a profile without collectives has no such table."""
    rows = Rows().range("net.a Linear |bwd", 0, 30).range("Collective all_reduce@dp:4 [1000]f32 |coll", 2, 20)
    rows.work(GEMM, 1, 2, 12).work(ALL_REDUCE, 5, 8, 40_000)
    fresh.open(page_of(rows.build(), tmp_path))
    fresh.run(f"{LINK}.click()")
    fresh.wait("document.querySelector('h1').textContent === 'Communication by layer'")
    table = fresh.run("[...document.querySelectorAll('#main tr')].map(row => [...row.cells].map(c => c.innerText))")
    assert [title.strip() for title in table[0]] == [
        "Layer", "Phase", "Exposed", "Waits", "Hidden", "Calls", "Launches", "Waits for", "Bytes", "Bus B/s",
    ]  # fmt: skip
    assert table[1][0].split() == ["net.a", "Linear"]
    assert table[1][5:7] == ["1", "all_reduce"]
    assert table[1][8:] == ["4.00 k", "150 M"]
    fresh.open(trained)
    assert fresh.run(f"{LINK} === undefined")
