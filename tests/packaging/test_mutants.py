"""The tool that changes annot's modules and lists the changes that no test notices."""

from __future__ import annotations

import ast
import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import mutants
import pytest
from mutant_tests import Processes
from mutations import NOTE, mutations, note_blocks

UNITS = "annot/report/units.py"
CODE = """
LEAST: Final[int] = 1
SHARE = 0.5 + 0.0
def f(a: int | None = 2, *, up: bool = True) -> int | None:
    if not a:
        raise ValueError("a | b")
    b = min(a, 3) * 4 if a is not None and a >= LEAST else -a
    zip(a, b, strict=True)
    return b
"""
BLOCKS = """def f(a=5):
    '''Text.'''
    if a > 10:
        '''Comment.'''
        a = 20
    else:
        a = 30
    return a
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
        "+ becomes -",
        "0 becomes -0.1",
        "0 becomes 0.1",
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


def test_a_mutation_is_in_the_block_that_its_line_runs_in() -> None:
    """The line of its first statement names a block. A default of a parameter is in no block of the function."""
    tree = ast.parse(BLOCKS)
    assert {mutation.change: mutation.block for mutation in mutations(tree)} == {
        "5 becomes 4": 0, "5 becomes 6": 0, "> becomes >=": 2, "10 becomes 9": 2, "10 becomes 11": 2,
        "20 becomes 19": 4, "20 becomes 21": 4, "30 becomes 29": 7, "30 becomes 31": 7, "returns None": 2,
    }  # fmt: skip
    executed: list[tuple[str, int]] = []
    names: dict[str, Any] = {NOTE: executed.append}
    note_blocks(tree, "m")
    exec(compile(tree, "blocks.py", "exec"), names)
    assert executed == []
    assert names["f"].__doc__ == "Text."
    assert names["f"](11) == 20
    assert executed == [("m", 2), ("m", 4)]
    assert names["f"](10) == 30
    assert executed == [("m", 2), ("m", 4), ("m", 2), ("m", 7)]


@pytest.mark.slow
def test_tests_of_units_kill_their_mutants(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The examples alone notice too few of them."""
    monkeypatch.chdir(Path(mutants.__file__).parents[2])
    assert mutants.main([UNITS, "--sample", "10", "--jobs", "2"]) == 0
    assert "10 of 10 mutants killed: 100.0 %" in capsys.readouterr().out
    monkeypatch.setattr(mutants, "ROOMS", (mutants.Room(UNITS, ()),))
    assert mutants.main([UNITS, "--sample", "10"]) == 1
    survivors = capsys.readouterr().out.count(f"survived: {UNITS}:")
    assert survivors > 2


@pytest.mark.slow
def test_tests_that_never_end_or_end_their_process_fail(tmp_path: Path) -> None:
    processes = Processes(tmp_path)
    assert processes.run(None, subprocess.call, ["echo", "printed"]) == (0, "printed\n")
    assert processes.run(None, os._exit, 3)[0] == 3
    assert processes.run(1, re.fullmatch, "(?:a|a)*b", "a" * 60)[0] == -signal.SIGXCPU
    assert processes.run(0.2, signal.pause)[0] == -signal.SIGKILL
