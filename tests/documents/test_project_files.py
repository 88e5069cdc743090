"""Files that GitHub, package indexes and citation tools read."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from documents import ROOT
from packaging.version import Version
from release_matrix import PYTHONS, TENSORFLOW, TORCH, lowest, project, requirements

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
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert citation["license"] == project()["license"]
    assert "version" not in citation


def test_metadata_promises_the_releases_of_the_matrix() -> None:
    classifiers = {name for name in project()["classifiers"] if name.startswith("Programming Language :: Python :: 3.")}
    assert classifiers == {f"Programming Language :: Python :: {python}" for python in PYTHONS}
    extras = project()["optional-dependencies"]
    bounds = [lowest(requirement) for requirement in extras["torch"] + extras["tf"]]
    (tensorflow, keras, _), *_ = TENSORFLOW
    oldest = [f"torch=={TORCH[0]}", f"tensorflow=={tensorflow}", f"keras=={keras}"]
    assert bounds == [release.rpartition(".")[0] for release in oldest]


def test_lower_bounds_are_the_lowest_releases_in_the_guide() -> None:
    bounds = [lowest(requirement).split("==") for requirement in requirements() if ">=" in requirement]
    guide = (ROOT / "annot/guide/installation.md").read_text(encoding="utf-8").partition("| package |")[2]
    tried = re.findall(r"^\| ([\w-]+) \| ([\d.]+)", guide, re.MULTILINE)
    assert {name: Version(release) for name, release in tried} == {name: Version(release) for name, release in bounds}
