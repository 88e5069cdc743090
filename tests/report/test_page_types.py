"""The scripts of the page: how its modules become one script, and TypeScript's checker."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from annot.report.page import render

PAGE = Path(render.__file__).parent
INSTALLED = Path(__file__).parents[2] / "build/node_modules/.bin"


def bundled(modules: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the script of modules, of which the first one imports the others."""
    monkeypatch.setattr(render, "_asset", lambda name: modules[name.removesuffix(".js")])
    return render.bundled.__wrapped__(next(iter(modules)))


def in_node(script: str) -> str:
    """Return what a script prints."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("needs node")
    return subprocess.run([node, "-e", script], capture_output=True, text=True, check=True).stdout


def test_each_module_runs_once_with_names_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules run in the order of their imports, and share only what they export."""
    modules = {
        "main": "import {a, A} from './a.js';\nimport {b} from './b.js';\n// note\nconst own = 'main';\n"
        "console.log(own, a(), b(), A);\n",
        "a": "import {b} from './b.js';\nconst own = 'a';\nexport const A = 1;\nexport function a() {\n"
        "  return own + b();\n}\n",
        "b": "console.log('once');\nconst own = 'b';\nexport function b() {\n  return own;\n}\n",
    }
    script = bundled(modules, monkeypatch)
    assert "// note" not in script
    assert in_node(script + "console.log(typeof own, typeof a);") == "once\nmain ab b 1\nundefined undefined\n"


def test_circles_of_imports_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    modules = {"a": "import {b} from './b.js';\n", "b": "import {a} from './a.js';\n"}
    with pytest.raises(ValueError, match="a circle of imports: a → b → a"):
        bundled(modules, monkeypatch)


def test_imports_of_names_without_export_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    modules = {"a": "import {b, c} from './b.js';\n", "b": "export const b = 1;\nconst c = 2;\n"}
    with pytest.raises(ValueError, match=r"a\.js imports c, which b\.js does not export"):
        bundled(modules, monkeypatch)


def test_all_scripts_are_in_the_page() -> None:
    """No script is left over, and no statement of a module remains in the one script."""
    script = render.bundled("shell")
    assert all(f"const {path.stem}_module = " in script for path in PAGE.glob("*.js"))
    assert re.findall(r"^(?:import|export)\b.*", script, re.MULTILINE) == []


def checked(folder: Path) -> list[str]:
    """Return what the checker says about the scripts in a folder."""
    tsc = shutil.which("tsc", path=f"{INSTALLED}{os.pathsep}{os.environ['PATH']}")
    if tsc is None:
        pytest.skip("needs TypeScript, which `make lint` installs with npm into build/")
    command = [tsc, "--project", "jsconfig.json"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    problems = re.findall(r"^(\w+\.js)\(\d+,\d+\): error (TS\d+)", done.stdout, re.MULTILINE)
    assert bool(problems) == bool(done.returncode), done.stdout + done.stderr
    return [" ".join(problem) for problem in problems]


@pytest.mark.slow
def test_scripts_have_no_type_errors(tmp_path: Path) -> None:
    """The checker sees each module with those that it imports: it finds two errors in a copy, and no others."""
    folder = shutil.copytree(PAGE, tmp_path / "page")
    (folder / "shell.js").write_text((folder / "shell.js").read_text().replace("\nstart();", "\nstart(1);"))
    (folder / "broken.js").write_text("import {fixed} from './units.js';\n")
    assert checked(folder) == ["broken.js TS6133", "shell.js TS2554"]
