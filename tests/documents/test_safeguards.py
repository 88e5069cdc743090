"""The guide's page of safeguards names code and tests that exist, and each file of the emit wing with a safeguard."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from documents import ROOT

PAGE = (ROOT / "annot/guide/safeguards.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (?!what can happen)(?!-)(.*) \| (.*) \| (.*) \|$", PAGE, re.M)
EMIT_WING = ("emit", "torch", "tf", "keras", "collect", "native/emit", "native/recorder", "native/tf_ops")
SAFEGUARD = re.compile(
    r"guard\.\w+\(|guard\.exit_method|fork_safe\(|pthread_atfork|^ *except |\bclient\.warn_once\(", re.M
)
_DEFINED_IN_C = re.compile(r"^\w[^\n(=;]*?(\w+)(?=\(| =|;$)", re.M)
HEADING = "| what can happen | handled in | shown by |"


@functools.cache
def names_in(path: Path) -> frozenset[str]:
    """Return the names of the functions, classes, methods and global variables that a file defines."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".c":
        return frozenset(_DEFINED_IN_C.findall(re.sub(r"__attribute__\(\(.*?\)\) ", "", text)))
    return frozenset(_defined(ast.parse(text).body, ""))


def _defined(statements: list[ast.stmt], prefix: str) -> Iterator[str]:
    for statement in statements:
        if isinstance(statement, ast.ClassDef | ast.FunctionDef):
            yield prefix + statement.name
        if isinstance(statement, ast.ClassDef):
            yield from _defined(statement.body, f"{prefix}{statement.name}.")
        targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        yield from (prefix + target.id for target in targets if isinstance(target, ast.Name))


def missing(cell: str, folder: Path) -> list[str]:
    """Return the names in a cell of a table, each `file::name`, that the folder lacks."""
    places = re.findall(r"`([^`]+)`", cell)
    assert ", ".join(f"`{place}`" for place in places) == cell
    pairs = [place.split("::") for place in places]
    return [place for place, (file, name) in zip(places, pairs, strict=True) if name not in names_of(folder / file)]


def names_of(path: Path) -> frozenset[str]:
    """Return the names that a file defines; none if there is no such file."""
    return names_in(path) if path.is_file() else frozenset()


def test_code_and_tests_exist() -> None:
    """The second column names functions of the package, the third tests."""
    lines = [line for line in PAGE.splitlines() if line.startswith("|") and line != HEADING and line != "|---|---|---|"]
    assert len(ROWS) == len(lines) > 100
    for _, code, tests in ROWS:
        assert missing(code, ROOT / "annot") == []
        assert missing(tests, ROOT / "tests") == []
        assert re.findall(r"[:.](?!test_|py|Test)\w+", tests) == []


@pytest.mark.parametrize("folder", EMIT_WING)
def test_each_file_with_a_safeguard_is_listed(folder: str) -> None:
    """A file that catches exceptions, warns, completes cleanups or handles forks has a row."""
    files = [path for path in (ROOT / "annot" / folder).glob("**/*.[pc]*") if path.suffix in (".py", ".c")]
    guarded = [path for path in files if SAFEGUARD.search(path.read_text(encoding="utf-8"))]
    assert [path.name for path in guarded if f"`{path.relative_to(ROOT / 'annot')}::" not in PAGE] == []
