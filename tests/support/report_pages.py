"""Report pages, and helpers that read them in a real browser."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from chromium import Page

from annot.cli.main import main
from annot.profile import Profile
from annot.report.page.render import as_page
from annot.runs.run import Run

VIEWS = ("summary", "layers", "icicle", "layer/0", "kernels", "kernel/0", "roofline", "steps", "timeline")


def written(profile: Path, *options: str) -> Path:
    out = profile.with_suffix(".html")
    assert main(["report", str(profile), "--format", "html", "-o", str(out), *options]) == 0
    return out


def page_data(profile: Profile, name: str, **options: Any) -> dict[str, Any]:
    """Return the data of the page of a profile that was made by a test; `options` of `run_data`."""
    run = Run(profile)
    run.path = name
    return run.page(**options)


def page_of(profile: Profile, folder: Path, **options: Any) -> Path:
    out = folder / "made.html"
    out.write_bytes(as_page(page_data(profile, "made", **options), "made"))
    return out


def tree_of(page: Page) -> dict[str, list[str]]:
    """Return the cells of each visible line of the layer tree, by label."""
    script = (
        "[...document.querySelectorAll('.tree tr[data-place]')].map(row => [row.querySelector('.name').textContent,"
        "[...row.querySelectorAll('td.number')].map(cell => cell.innerText)])"
    )
    return dict(page.run(script))


def column_of(page: Page, title: str) -> list[str]:
    heads = page.run("[...document.querySelectorAll('.tree thead th.number')].map(one => one.textContent.trim())")
    place = heads.index(title)
    return [cells[place] for cells in tree_of(page).values()]


def choose(page: Page, name: str, value: str) -> None:
    """Select an option and send the change event, as a browser does."""
    page.run(
        f"(() => {{ const one = document.getElementById('{name}'); one.value = {json.dumps(value)};"
        "one.dispatchEvent(new Event('change', {bubbles: true})); })()"
    )


def violations(page: Page) -> list[list[str]]:
    """Return which rules of axe-core the page violates, with the first element of each. Skip the test without it."""
    package = find_spec("axe_core_python")
    if package is None or package.origin is None:
        pytest.skip("needs axe-core: pip install axe-core-python")
    page.run(f"{Path(package.origin).with_name('axe.min.js').read_text()}; 0")
    found: list[list[str]] = page.run(
        "axe.run(document).then(found => found.violations.map(one => [one.id, one.nodes[0].html]))"
    )
    return found


def frames(page: Page) -> None:
    """Wait until the page has drawn pending changes."""
    page.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")
