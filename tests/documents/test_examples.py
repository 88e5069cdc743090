"""The examples in docstrings: each prints what it says."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest
from documents import ROOT

ROOMS = ("agents", "analyze", "attribution", "emit", "labels", "profile", "read", "report", "runs", "sweep", "util")


def _modules(room: str) -> list[str]:
    """The modules of a room with examples that need no framework."""
    paths = sorted((ROOT / "annot" / room).rglob("*.py"))
    paths = [path for path in paths if ">>> " in path.read_text(encoding="utf-8")]
    return [".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in paths]


@pytest.mark.parametrize("room", ROOMS)
def test_examples_print_what_they_say(room: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    modules = _modules(room)
    assert modules
    results = {name: doctest.testmod(importlib.import_module(name)) for name in modules}
    assert [name for name, result in results.items() if result.failed] == []
