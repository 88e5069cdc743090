"""The HTML page on a screen of 400 pixels: what matters is in sight without moving tables to the side."""

from __future__ import annotations

from pathlib import Path

import pytest
from chromium import Page
from report_pages import page_of
from sqlite_profile import SqliteProfile
from tables import Rows

from annot.cli.main import main

pytest_plugins = ["report_page_fixtures"]
pytestmark = pytest.mark.slow
WIDTH = 400


def _outside(page: Page, selector: str) -> list[str]:
    """The texts of elements, of which there are some, that end beyond the right edge of what holds them."""
    return list(
        page.run(
            f"(() => {{ const all = [...document.querySelectorAll({selector!r})];"
            "if (!all.length) return ['nothing']; return all.filter(one => one.getBoundingClientRect().right >"
            "(one.closest('.scroll') ?? document.body).getBoundingClientRect().right + 1)"
            ".map(one => one.innerText); })()"
        )
    )


@pytest.mark.parametrize(
    ("view", "seen"),
    [
        ("layers", ".tree .col-share"),
        ("layer/0", ".facts td"),
        ("kernels", "main section:last-of-type :is(th, td):nth-child(-n+7)"),
        ("timeline", "main section tbody td"),
    ],
)
def test_times_are_in_sight(fresh: Page, tmp_path: Path, view: str, seen: str) -> None:
    """Also of layers that lie deep and of kernels whose names are long."""
    rows, path = Rows(), ""
    for depth in range(9):
        path = f"{path}.block{depth}".lstrip(".")
        rows.range(f"{path} TransformerEncoderLayer |fwd", depth, 4_000_000_000 - depth)
    rows.kernel(20, (30, 3_900_000_000), name="void at::native::vectorized_elementwise_kernel<4, " + "x" * 400)
    fresh.open(page_of(rows.build(), tmp_path), view, width=WIDTH)
    fresh.wait(f"document.querySelector({seen!r})")
    assert _outside(fresh, seen) == []


def test_all_views_can_be_chosen(fresh: Page, trained: Path) -> None:
    """No link to a view hides beyond the edge."""
    fresh.open(trained, width=WIDTH)
    assert _outside(fresh, "#head nav a") == []


def test_texts_of_pictures_can_be_read(fresh: Page, trained: Path) -> None:
    """They have 9 pixels or more. The picture is wider than its frame, which the keyboard scrolls."""
    fresh.open(trained, "steps", width=WIDTH)
    assert fresh.run("document.querySelector('.drawing text').getBoundingClientRect().height") >= 9
    assert fresh.run("document.documentElement.scrollWidth <= innerWidth")
    fresh.run("document.querySelector('.chart .scroll').focus()")
    fresh.press("ArrowRight")
    fresh.wait("document.querySelector('.chart .scroll').scrollLeft > 0")


def test_what_became_slower_is_in_sight(fresh: Page, tmp_path: Path) -> None:
    """Of a comparison: what it is, by how much, and the speedup."""
    paths = []
    for name, length in (("a", 300), ("b", 700)):
        run = SqliteProfile()
        run.layer(f"encoder.{'layers.' * 9}fc TransformerEncoderLayer |fwd", 0, 900_000)
        run.call(10, 20, 1)
        run.kernel(30, 1_000_000_000 * length, 1)
        paths.append(str(run.write(tmp_path / f"{name}.sqlite")))
    out = tmp_path / "comparison.html"
    assert main(["compare", *paths, "--format", "html", "-o", str(out)]) == 0
    fresh.open(out, width=WIDTH)
    heads = fresh.texts("main thead th")
    shown = [place for place, text in enumerate(heads, 1) if text.strip() in ("Speedup",) or "B − A" in text]
    assert len(shown) == 2
    for place in shown:
        assert _outside(fresh, f"main tbody td:nth-child({place})") == []
