"""Pages of reports, and what tests ask of one in a real browser."""

from __future__ import annotations

import json
from pathlib import Path

from chromium import Page

from annot.cli import main
from annot.correlate import attribute
from annot.profile import Profile
from annot.report.page import as_page
from annot.report.page.data import report_data

VIEWS = ("summary", "layers", "layer/0", "kernels", "roofline", "steps", "timeline")


def written(profile: Path, *options: str) -> Path:
    out = profile.with_suffix(".html")
    assert main(["report", str(profile), "--format", "html", "-o", str(out), *options]) == 0
    return out


def page_of(profile: Profile, folder: Path) -> Path:
    out = folder / "made.html"
    out.write_bytes(as_page(report_data(attribute(profile), "made"), "made"))
    return out


def tree_of(page: Page) -> dict[str, list[str]]:
    """The cells of each line of the layer tree that is shown, by its label."""
    script = (
        "[...document.querySelectorAll('.tree tbody tr')].map(row => [row.querySelector('.name').textContent,"
        "[...row.querySelectorAll('td.number')].map(cell => cell.innerText)])"
    )
    return dict(page.run(script))


def column_of(page: Page, title: str) -> list[str]:
    heads = page.run("[...document.querySelectorAll('.tree thead th.number')].map(one => one.textContent.trim())")
    place = heads.index(title)
    return [cells[place] for cells in tree_of(page).values()]


def choose(page: Page, name: str, value: str) -> None:
    """Choose an option as a person does, whose browser then says that something changed."""
    page.run(
        f"(() => {{ const one = document.getElementById('{name}'); one.value = {json.dumps(value)};"
        "one.dispatchEvent(new Event('change', {bubbles: true})); })()"
    )


def frames(page: Page) -> None:
    """Let the page draw what was asked for."""
    page.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")
