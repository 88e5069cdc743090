"""The pages of the documentation site. `make docs` builds it and checks its links."""

from __future__ import annotations

import importlib.util
import re
import sys
from types import ModuleType

import pytest
from documents import ROOT

from annot.cli.guide import CHAPTERS
from annot.cli.main import COMMANDS

pytestmark = pytest.mark.skipif(not (ROOT / "mkdocs.yml").exists(), reason="annot is installed, without its checkout")


@pytest.fixture(scope="module")
def pages() -> ModuleType:
    """The script that collects the pages."""
    specification = importlib.util.spec_from_file_location("pages", ROOT / "docs/pages.py")
    assert specification
    assert specification.loader
    module = sys.modules["pages"] = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_navigation_has_every_guide() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2].partition("\ntheme:")[0]
    assert sorted(re.findall(r"guide/(\S+)\.md", navigation)) == sorted(CHAPTERS)


def test_mentions_of_guides_are_links(pages: ModuleType) -> None:
    """In text only: code and existing links stay, and a command with options is no mention."""
    text = "`annot guide tags` [`annot guide tags`](x.md) `annot guide try --x`\n```text\n`annot guide try`\n```"
    linked = "[`annot guide tags`](guide/tags.md)"
    assert pages.linked(text, "index.md") == text.replace("`annot guide tags`", linked, 1)
    assert pages.linked(text, "guide/try.md") == text.replace("`annot guide tags`", linked.replace("guide/", ""), 1)


def test_links_fit_the_folders_of_the_site(pages: ModuleType) -> None:
    assert pages.linked("[a](annot/guide/try.md)", "index.md") == "[a](guide/try.md)"


def test_page_of_commands_has_every_command(pages: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    titles = re.findall(r"^## annot ?(.*)$", pages.commands(), re.M)
    assert titles == ["", *COMMANDS]


def test_pictures_have_the_output_and_its_colors(pages: ModuleType) -> None:
    picture = pages.terminal("\x1b[31mconv1\x1b[0m 3 < 4\n", "annot run.sqlite")
    assert picture.startswith("<svg")
    assert "conv1" in picture
    assert "&lt;" in picture
    assert "\x1b" not in picture
    assert re.search(r"fill: #[0-9a-f]{6}", picture)


def test_profiles_of_the_gallery_are_in_the_checkout(pages: ModuleType) -> None:
    assert [one.source for one in pages.GALLERY if not (ROOT / "tests/data" / one.source).exists()] == []
