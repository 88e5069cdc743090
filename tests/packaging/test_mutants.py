"""The tool that changes annot's modules and lists the changes that no test notices."""

from __future__ import annotations

import ast
from pathlib import Path

import mutants
import pytest
from mutations import mutations

UNITS = "annot/report/units.py"
CODE = """
LEAST: Final[int] = 1
SHARE = 0.5
def f(a: int | None = 2, *, up: bool = True) -> int | None:
    if not a:
        raise ValueError("a | b")
    b = min(a, 3) * 4 if a is not None and a >= LEAST else -a
    zip(a, b, strict=True)
    return b
"""


def _changed(number: int) -> str:
    tree = ast.parse(CODE)
    mutations(tree)[number].apply()
    return ast.unparse(tree)


def test_each_mutation_changes_one_line_of_code() -> None:
    """Types, texts and `strict=` stay as they are."""
    before = ast.unparse(ast.parse(CODE)).splitlines()
    changes = []
    for number, mutation in enumerate(mutations(ast.parse(CODE))):
        after = _changed(number).splitlines()
        ((old, new),) = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
        changes.append(mutation.change)
        assert CODE.splitlines()[mutation.line - 1].split()[0] == old.split()[0] == new.split()[0]
    assert changes == [
        "1 becomes 0",
        "1 becomes 2",
        "0.5 becomes 0.45",
        "0.5 becomes 0.55",
        "True becomes False",
        "2 becomes 1",
        "2 becomes 3",
        "guard dropped",
        "negation dropped",
        "and becomes or",
        "is not becomes is",
        ">= becomes >",
        "min becomes max",
        "3 becomes 2",
        "3 becomes 4",
        "* becomes /",
        "4 becomes 3",
        "4 becomes 5",
        "returns None",
    ]
    guards = [mutation.change for mutation in mutations(ast.parse(CODE)) if mutation.guards]
    assert guards == ["guard dropped", "negation dropped"]


def test_each_room_has_mutants_and_tests() -> None:
    root = Path(mutants.__file__).parents[2]
    for room in mutants.ROOMS:
        assert mutants.mutants([room.path])
        assert all((root / path).exists() for path in room.tests)


@pytest.mark.slow
def test_tests_of_units_kill_their_mutants(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The tests of another room notice none of them."""
    monkeypatch.chdir(Path(mutants.__file__).parents[2])
    assert mutants.main([UNITS, "--sample", "10", "--jobs", "2"]) == 0
    assert capsys.readouterr().out.endswith("10 of 10 mutants killed\n")
    monkeypatch.setattr(mutants, "ROOMS", (mutants.Room(UNITS, ("tests/labels/test_layer_path.py",)),))
    monkeypatch.setattr(mutants.Mutant, "tests", property(lambda mutant: mutant.room.tests))
    assert mutants.main([UNITS, "--sample", "2"]) == 2
    assert capsys.readouterr().out.count(f"survived: {UNITS}:") == 2
