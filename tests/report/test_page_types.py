"""The scripts of the page under TypeScript's checker."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from annot.report.page.render import as_page

pytestmark = pytest.mark.slow
INSTALLED = Path(__file__).parents[2] / "build/node_modules/.bin"
OPTIONS = (
    "--noEmit", "--allowJs", "--checkJs", "--strict", "false", "--noUnusedLocals", "--noImplicitThis", "--target",
    "es2022", "--lib", "es2023,dom,dom.iterable",
)  # fmt: skip


def checked(script: str, folder: Path) -> list[str]:
    """Return what the checker says, with the line of the script that it is about."""
    tsc = shutil.which("tsc", path=f"{INSTALLED}{os.pathsep}{os.environ['PATH']}")
    if tsc is None:
        pytest.skip("needs TypeScript, which `make test-rest` installs with npm into build/")
    (folder / "page.js").write_text(script)
    done = subprocess.run([tsc, *OPTIONS, "page.js"], cwd=folder, capture_output=True, text=True, check=False)
    found = re.findall(r"^page\.js\((\d+),\d+\): error (.*)$", done.stdout, re.MULTILINE)
    assert bool(found) == bool(done.returncode), done.stdout + done.stderr
    lines = script.splitlines()
    return [f"{problem}  {lines[int(number) - 1].strip()}" for number, problem in found]


def test_names_of_functions_are_unique() -> None:
    """The scripts share one scope, in which a second function of a name replaces the first; `tsc` accepts that."""
    script = as_page({"kind": "report", "runs": []}, "x").decode()
    names = re.findall(r"^(?:async )?function\*? (\w+)", script, re.MULTILINE)
    assert len(names) > 100
    assert len(set(names)) == len(names)


def test_scripts_have_no_type_errors(tmp_path: Path) -> None:
    """All scripts are in one function, so that the checker sees each function with its callers."""
    script = as_page({"kind": "report", "runs": []}, "x").decode().rpartition("<script>")[2].partition("</script>")[0]
    assert checked(script, tmp_path) == []
    broken = script.replace("\nstart();", "\nstart(1);\nunitFor([1]).length;")
    assert [problem.partition(":")[0] for problem in checked(broken, tmp_path)] == ["TS2554", "TS2339"]
