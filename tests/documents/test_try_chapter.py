"""The chapter on `annot try` has each change of the registry, and the bench of it can make each change it names."""

from __future__ import annotations

import ast
import importlib.util
import re
from types import ModuleType

import pytest
from documents import ROOT

from annot.changes.change import Change
from annot.changes.registry import all_changes

_ROW = re.compile(r"^\| `([a-z0-9-]+)` \|.*\| ([^|]+) \|$", re.M)


def _rows(framework: str) -> dict[str, str]:
    """The last column of a table of the chapter, by change."""
    text = (ROOT / "annot/guide/try.md").read_text(encoding="utf-8")
    table = text.partition(f"| {framework} | by hand |")[2].partition("\n\n")[0]
    return dict(_ROW.findall(table))


def _losses(change: Change) -> str:
    """What the chapter says about the losses of a change: one digit of its tolerance."""
    if change.numbers != "rounding":
        return change.numbers
    mantissa, exponent = f"{change.tolerance:.0e}".split("e")
    small = f"{mantissa}e{int(exponent)}"
    return small if change.tolerance < 1e-3 else f"{100 * float(small):g} %"


@pytest.mark.parametrize(("framework", "title"), [("torch", "PyTorch"), ("keras", "Keras")])
def test_each_change_stands_in_the_table_with_its_losses(framework: str, title: str) -> None:
    changes = [change for change in all_changes().values() if change.framework == framework]
    assert _rows(title) == {change.name: _losses(change) for change in changes}


def _edits() -> ModuleType:
    spec = importlib.util.spec_from_file_location("try_edits", ROOT / "tests/bench/try_edits.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_edits_of_the_bench_fit_their_programs() -> None:
    """A replaced text occurs once, and the copy is another program of Python."""
    edits = _edits()
    for program, changes in edits.EDITS.items():
        assert set(changes) <= set(all_changes())
        text = (edits.PROGRAMS / f"{program}.py").read_text(encoding="utf-8")
        copies = {ast.dump(ast.parse(copy)) for copy in (text, *(edits.edited(program, name) for name in changes))}
        assert len(copies) == len(changes) + 1
    assert {path.stem for path in edits.PROGRAMS.glob("*.py")} == set(edits.EDITS)


def test_an_edit_that_does_not_fit_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    edits = _edits()
    monkeypatch.setitem(edits.EDITS["lstm"], "threads", (("torch", "keras"),))
    with pytest.raises(ValueError, match=r"^lstm, threads: expected one 'torch', got \d+$"):
        edits.edited("lstm", "threads")
