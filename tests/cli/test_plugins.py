"""Readers, views, advice and formulas of other packages: found by their entry points."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from sqlite_profile import SqliteProfile, training

import annot

READER = """
import polars as pl
from annot.profile import Profile

NAME = "mine"


def sniff(path, head):
    return head.startswith(b'{"traceEvents": "of mine')


def read(path):
    ranges = pl.DataFrame({"id": [0], "process": [1], "thread": [1], "text": ["fc"], "start": [0], "end": [7]})
    return Profile.build({"source": str(path), "format": NAME, "notes": ["read by mine"]}, ranges=ranges)
"""


def _install(folder: Path, module: str, code: str, entry: str, group: str = "annot.readers") -> dict[str, str]:
    """Put a package with an entry point into a folder; return the environment that has it."""
    path = folder / f"{module.replace('.', '/')}.py"
    path.parent.mkdir(parents=True)
    path.write_text(code)
    info = folder / "their_reader-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-reader\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{entry}\n")
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}


def _report(profile: Path, environ: dict[str, str], *more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "annot", "report", str(profile), "--format", "csv", *more]
    folder = profile if profile.is_dir() else profile.parent  # where the guide's module writes its example
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environ, check=False)


def test_reader_of_another_package(tmp_path: Path) -> None:
    """A package that declares a reader makes its format known to `annot report`, even where annot has one like it."""
    environ = _install(tmp_path / "site", "their_reader", READER, "mine = their_reader")
    profile = tmp_path / "x.json"
    profile.write_text('{"traceEvents": "of mine"}')
    assert _report(profile, environ).stdout.splitlines()[1].startswith('fc,"",other,1,7,7,')
    assert "fc" not in _report(profile, dict(os.environ)).stdout


def test_reader_of_the_guide(tmp_path: Path) -> None:
    """The reader and the entry point that the guide shows work as they stand there."""
    guide = (Path(annot.__file__).parent / "guide/extending.md").read_text(encoding="utf-8")
    code, declared = re.findall(r"```(?:python|toml)\n(.*?)```", guide, re.S)[:2]
    entry = tomllib.loads(declared)["project"]["entry-points"]["annot.readers"]["lines"]
    profile = tmp_path / "x.lines"
    profile.write_text('{"layer": "fc", "start": 0, "end": 900}\n')
    environ = _install(tmp_path / "site", entry.partition(":")[0], code, f"lines = {entry}")
    assert _report(profile, environ).stdout.splitlines()[1].startswith('fc,"",other,1,900,900,')


@pytest.mark.parametrize(
    ("code", "said"),
    [("class Mine: pass", "lacks NAME, sniff, read. See"), ("import no_such", "cannot be loaded: No module")],
)
def test_reader_that_cannot_be_used(code: str, said: str, tmp_path: Path) -> None:
    """A reader that is none is one sentence with the package that it comes from."""
    environ = _install(tmp_path / "site", "their_reader", code, "mine = their_reader")
    done = _report(tmp_path, environ)
    assert done.returncode == 1
    assert done.stderr.startswith(f"annot: error: the reader their_reader of the package their-reader {said}")
    assert done.stderr.count("\n") == 1


def test_view_of_the_guide(tmp_path: Path) -> None:
    """The view and the entry point that the guide shows work as they stand there, in a table and in a file."""
    guide = (Path(annot.__file__).parent / "guide/extending.md").read_text(encoding="utf-8")
    code, declared = re.findall(r"```(?:python|toml)\n(.*?)```", guide, re.S)[2:4]
    entry = tomllib.loads(declared)["project"]["entry-points"]["annot.views"]["lengths"]
    code = code.partition("print(")[0]
    environ = _install(tmp_path / "site", entry.partition(":")[0], code, f"lengths = {entry}", "annot.views")
    profile = training(device=True).write(tmp_path / "run.sqlite")
    assert _report(profile, environ, "--by", "length").stdout.splitlines()[0] == "power,calls,gpu_ns"
    table = _report(profile, environ, "--by", "length", "--format", "table").stdout
    assert re.search(r"Kernels by duration, ms per step\nPower +Calls +GPU", table)
    page = tmp_path / "page.html"
    assert _report(profile, environ, "-o", str(page), "--format", "html").returncode == 0
    assert '"heading":"Kernels by duration"' in page.read_text(encoding="utf-8")
    assert _report(profile, dict(os.environ), "--by", "length").returncode == 2
    refused = _report(profile, _install(tmp_path / "other", "their", "view = 7", "v = their:view", "annot.views"))
    assert refused.stderr.startswith(
        "annot: error: the view their:view of the package their-reader is a int, not a View"
    )


ADVICE = """
from annot.analyze.advice import Advice


def many(facts):
    return Advice("many", "Do less.", "there is work", "pass", 0.5, ["fc"])
"""
FORMULA = """
from annot.analyze.work.call import Cost


def scale(call):
    return Cost(flops=call.count(), inputs=call.bytes_of(), outputs=call.bytes_of())
"""


def test_advice_of_another_package(tmp_path: Path) -> None:
    """A rule of a package is asked with those of annot."""
    environ = _install(tmp_path / "site", "theirs", ADVICE, "many = theirs:many", "annot.advice")
    profile = training(device=True).write(tmp_path / "run.sqlite")
    assert "\nmany,Do less.,there is work," in _report(profile, environ, "--by", "advice").stdout
    assert "Do less." not in _report(profile, dict(os.environ), "--by", "advice").stdout


def test_formula_of_another_package(tmp_path: Path) -> None:
    """The name of the entry point is the class of the layer."""
    environ = _install(tmp_path / "site", "theirs", FORMULA, "Scale = theirs:scale", "annot.formulas")
    profile = SqliteProfile()
    profile.layer("norm Scale [8,64]f32 |fwd", 0, 100)
    path = profile.write(tmp_path / "run.sqlite")
    assert ",512," in _report(path, environ, "--columns", "work").stdout
    assert ",512," not in _report(path, dict(os.environ), "--columns", "work").stdout
