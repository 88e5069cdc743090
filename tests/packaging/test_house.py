"""The layout of the package, and the words of its texts."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import annot

PACKAGE = Path(annot.__file__).parent
ROOT = PACKAGE.parent
WORDS = re.compile(r"\b(twins?|roads?|dialects?|intake|trunk|spelt|loose)\b", re.IGNORECASE)
"""Words that the field uses for nothing that annot does."""


def sources(*suffixes: str) -> Iterator[Path]:
    """Yield the files of the package with these suffixes, and the README."""
    yield from (path for path in PACKAGE.rglob("*") if path.suffix in suffixes)
    if ".md" in suffixes:
        yield ROOT / "README.md"


def modules() -> Iterator[tuple[Path, str]]:
    """Yield each module with its docstring."""
    for path in sources(".py"):
        yield path, ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""


def test_every_folder_of_modules_is_a_room() -> None:
    """At most four modules lie beside the packages; each package says in one line what it holds."""
    assert len(list(PACKAGE.glob("*.py"))) <= 4
    for folder in {path.parent for path in sources(".py")} - {PACKAGE / "collect/site"}:
        docstring = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))) or ""
        assert re.match(r"[^\n]+[.:](\n|$)", docstring), folder


def test_pip_installs_annot_nvtx() -> None:
    """No file of the repository lets pip install `annot`, which is another project's name on package indexes."""
    wrong = re.compile(r"pip install [^\n`&;|]*(?<![\w./@-])annot(?![\w/-])|(?<![\w.-])annot\\?\[[a-z]")
    tracked = subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True).split("\0")
    for path in (ROOT / name for name in tracked if name and not name.startswith("tests/data/")):
        if path.is_file() and path != Path(__file__):
            assert not wrong.search(path.read_text(encoding="utf-8", errors="replace")), path


def test_a_module_docstring_names_the_module() -> None:
    """It opens with a noun phrase or an imperative."""
    assert [path for path, docstring in modules() if re.match(r"(What|Which|Where|How)\b", docstring)] == []
    assert [path for path, docstring in modules() if not docstring and path.name != "__main__.py"] == []


@pytest.mark.skipif(not (ROOT / "README.md").exists(), reason="annot is installed, without its checkout")
def test_words() -> None:
    """Texts and names use the words of the field."""
    found = {
        f"{path.relative_to(ROOT)}:{number}: {match[0]}"
        for path in sources(".py", ".pyi", ".c", ".h", ".js", ".css", ".html", ".md")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        for match in WORDS.finditer(line)
    }
    assert found == set()


def test_a_sweep_is_a_grid_of_runs() -> None:
    """No algorithm has that name."""
    where = {
        path.relative_to(PACKAGE).parts for path in sources(".py", ".c", ".h") if "sweep" in path.read_text().lower()
    }
    assert {parts for parts in where if parts[0] not in ("sweep", "cli")} == set()


def test_frameworks_do_not_meet() -> None:
    """PyTorch's package does not know TensorFlow's, and C code names no module of PyTorch's package."""
    assert [path for path in (PACKAGE / "torch").glob("*.py") if "annot.tf" in path.read_text(encoding="utf-8")] == []
    assert [path for path in sources(".c") if '"annot.torch' in path.read_text(encoding="utf-8")] == []
