"""Fixtures for tests of report pages: a browser, and the page of a small network."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from chromium import Page, browser
from report_pages import written
from sqlite_profile import training


@pytest.fixture(scope="module")  # the history of a browser has 50 entries, and tests go back in it
def page() -> Iterator[Page]:
    with browser() as one:
        yield one


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the page of two steps of a small network."""
    folder = tmp_path_factory.mktemp("page")
    return written(training(device=True).write(folder / "run.sqlite"))


@pytest.fixture
def fresh(page: Page) -> Iterator[Page]:
    """Yield the page. At the end, check that it had no errors and made no network requests."""
    page.problems.clear()
    yield page
    assert page.problems == []
    assert [url for url in page.requests if not url.startswith(("file:", "data:", "blob:"))] == []
