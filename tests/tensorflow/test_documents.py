"""README and guides: the blocks that need Keras on TensorFlow."""

from __future__ import annotations

from typing import Any

import pytest
from commands import needs_recorder
from documents import Section, run_all, sections

SECTIONS = sections(of_keras=True)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What came of each section."""
    pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
    return run_all(tmp_path_factory.mktemp("documents"), SECTIONS, "tensorflow")


@pytest.mark.slow
@needs_recorder
@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.name)
def test_section_runs(section: Section, results: dict[str, Any]) -> None:
    """Its blocks run in order, and make ranges where they train, unless `annot run --layers` makes them."""
    result = results[section.name]
    assert result["error"] is None, result["error"]
    if "fit(" in str(section.blocks) and "--layers" not in str(section.blocks):
        assert result["ranges"] > 0
