"""Files that GitHub and citation tools read."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from documents import ROOT

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
FORMS = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"))

pytestmark = pytest.mark.skipif(not FORMS, reason="annot is installed, without its checkout")


@pytest.mark.parametrize("path", [path for path in FORMS if path.name != "config.yml"], ids=lambda path: path.stem)
def test_form_of_an_issue_has_what_github_requires(path: Path) -> None:
    """GitHub ignores a form without these keys, or with an id that is not unique."""
    form: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert form["name"]
    assert form["description"]
    assert {field["type"] for field in form["body"]} <= {"checkboxes", "dropdown", "input", "markdown", "textarea"}
    assert all(field["attributes"]["label"] for field in form["body"])
    names = [field["id"] for field in form["body"]]
    assert len(names) == len(set(names))
    assert any(field.get("validations", {}).get("required") for field in form["body"])


def test_citation_has_what_the_format_requires() -> None:
    """It names no version, which would have to follow that of the package."""
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert citation["license"] == project["license"]
    assert "version" not in citation
