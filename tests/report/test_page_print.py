"""The printed page, A4 in landscape: every column of the screen is on the paper, none is cut."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from chromium import Page
from report_pages import page_of
from tables import Rows

pytest_plugins = ["report_page_fixtures"]
pytestmark = pytest.mark.slow
PAPER = 1047
"""Width of the paper without its margins, 277 mm at 96 pixels per inch."""

# Visible column heads, and those that end beyond the paper or whose text is wider than its cell.
HEADS = "[...document.querySelectorAll('main thead th')].filter(one => one.offsetWidth).map(one => one.innerText)"
CUT = """[...document.querySelectorAll('main :is(th, td, pre, svg, h1, p, li)')].filter(one => {
  const box = one.getBoundingClientRect();
  const inside = one.matches('th, td, pre') && one.scrollWidth > one.clientWidth + 1;
  return box.width && (box.right > innerWidth + 1 || inside);
}).map(one => one.outerHTML.slice(0, 200))"""
SCROLLED = "[...document.querySelectorAll('.scroll')].filter(one => one.scrollWidth > one.clientWidth + 1).length"


@pytest.fixture
def printed(fresh: Page) -> Iterator[Page]:
    yield fresh
    fresh.send("Emulation.setEmulatedMedia", media="screen")


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the page of deep layers with long names, in all phases, and of kernels with long names."""
    rows, path = Rows(), ""
    for depth in range(9):
        path = f"{path}.a_block_with_a_long_name_{depth}".lstrip(".")
        rows.range(f"{path} TransformerEncoderLayer [8,1024,4096]bf16 |fwd", depth, 4_000_000_000 - depth)
    rows.kernel(20, (30, 3_900_000_000), name="void at::native::vectorized_elementwise_kernel<4, " + "x" * 400)
    for phase, start in (("bwd", 5), ("recompute", 6), ("opt", 7)):
        rows.range(f"{path} TransformerEncoderLayer |{phase}", start * 10**9, start * 10**9 + 900_000_000)
        rows.kernel(start * 10**9 + 5, (start * 10**9 + 9, start * 10**9 + 800_000_000), name="gemm")
    return page_of(rows.build(), tmp_path_factory.mktemp("printed"))


@pytest.mark.parametrize("view", ["summary", "layers", "layer/0", "kernels", "steps", "timeline", "advice", "icicle"])
def test_no_column_is_cut(printed: Page, deep: Path, view: str) -> None:
    printed.open(deep, view, width=1400)
    printed.wait("document.querySelector('main h1')")
    on_screen = printed.run(HEADS)
    printed.send("Emulation.setEmulatedMedia", media="print")
    printed.send("Emulation.setDeviceMetricsOverride", width=PAPER, height=700, deviceScaleFactor=1, mobile=False)
    assert printed.run(HEADS) == on_screen
    assert printed.run(CUT) == []
    assert printed.run(SCROLLED) == 0
