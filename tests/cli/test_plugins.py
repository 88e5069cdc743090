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
    [
        ("class Mine: pass", "lacks NAME, sniff, read (`annot guide extending`)"),
        ("import no_such", "failed with ModuleNotFoundError: No module named 'no_such'"),
    ],
)
def test_reader_that_cannot_be_used(code: str, said: str, tmp_path: Path) -> None:
    """annot leaves it out, with one sentence that names its package."""
    environ = _install(tmp_path / "site", "their_reader", code, "mine = their_reader")
    done = _report(training(device=True).write(tmp_path / "run.sqlite"), environ)
    assert done.returncode == 0
    assert (
        done.stderr == f"annot: warning: the reader their_reader of the package their-reader is left out: it {said}\n"
    )


@pytest.mark.parametrize(
    ("sniffs", "reads", "status", "said"),
    [
        ("1 / 0", "", 0, "annot: warning: {} is left out: it failed with ZeroDivisionError: division by zero\n"),
        ("True", "1 / 0", 1, "annot: error: {} failed with ZeroDivisionError: division by zero\n"),
        ("True", "7", 1, "annot: error: {path}: {} returned a int, not a Profile\n"),
        ("True", "raise_('x is damaged')", 1, "annot: error: x is damaged\n"),
    ],
    ids=["sniff", "read", "no profile", "damaged"],
)
def test_reader_that_fails(sniffs: str, reads: str, status: int, said: str, tmp_path: Path) -> None:
    """A reader that cannot tell its files is left out; one that fails to read ends the report in one sentence."""
    code = f"""
from annot import AnnotError

NAME = "mine"

def raise_(text):
    raise AnnotError(text)

def sniff(path, head):
    return {sniffs}

def read(path):
    return {reads or None}
"""
    path = training(device=True).write(tmp_path / "run.sqlite")
    done = _report(path, _install(tmp_path / "site", "their_reader", code, "mine = their_reader"))
    assert done.returncode == status
    assert done.stderr == said.format("the reader their_reader of the package their-reader", path=path)


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
    title = "annot: warning: the view their:view of the package their-reader is left out: it is a int, not a View"
    assert refused.stderr.startswith(title)
    assert refused.returncode == 0


def test_view_that_fails(tmp_path: Path) -> None:
    """Its own table is one sentence, and the page lacks it with a warning."""
    code = """
from annot.report.views import View


def rows(attribution):
    raise KeyError("power")


view = View("lengths", by="length", columns=("calls",), rows=rows, heading="Lengths", label="power")
"""
    environ = _install(tmp_path / "site", "their", code, "lengths = their:view", "annot.views")
    profile = training(device=True).write(tmp_path / "run.sqlite")
    failed = "the view their:view of the package their-reader failed with KeyError: 'power'\n"
    table = _report(profile, environ, "--by", "length")
    assert (table.returncode, table.stderr) == (1, f"annot: error: {failed}")
    page = _report(profile, environ, "-o", str(tmp_path / "page.html"), "--format", "html")
    assert page.returncode == 0
    assert page.stderr.startswith(f"annot: warning: The page lacks a table: {failed}")
    assert _report(profile, environ).stderr == ""


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


@pytest.mark.parametrize(
    ("result", "said"),
    [
        ("1 / 0", "failed with ZeroDivisionError: division by zero"),
        ("'Do less.'", "returned str instead of Advice"),
    ],
)
def test_advice_that_fails(result: str, said: str, tmp_path: Path) -> None:
    """annot leaves the rule out, says so once, and gives its own advice."""
    environ = _install(
        tmp_path / "site", "theirs", f"def many(facts):\n    return {result}", "m = theirs:many", "annot.advice"
    )
    profile = training(device=True).write(tmp_path / "run.sqlite")
    done = _report(profile, environ, "--by", "advice")
    assert done.stdout == _report(profile, dict(os.environ), "--by", "advice").stdout
    assert done.stderr == f"annot: warning: the advice theirs:many of the package their-reader is left out: it {said}\n"


@pytest.mark.parametrize(
    ("result", "said"),
    [
        ("call.missing", "failed with AttributeError: "),
        ("7", "returned int instead of Cost"),
        ("call.shape(9)[7]", ""),
    ],
)
def test_formula_that_fails(result: str, said: str, tmp_path: Path) -> None:
    """The work of the layer is unknown. An index outside a shape is no failure."""
    environ = _install(
        tmp_path / "site", "theirs", f"def scale(call):\n    return {result}", "Scale = theirs:scale", "annot.formulas"
    )
    profile = SqliteProfile()
    profile.layer("norm Scale [8,64]f32 |fwd", 0, 100)
    path = profile.write(tmp_path / "run.sqlite")
    done = _report(path, environ, "--columns", "work")
    assert done.stdout == _report(path, dict(os.environ), "--columns", "work").stdout
    title = f"annot: warning: the formula theirs:scale of the package their-reader is left out: it {said}"
    assert done.stderr.startswith(title) if said else not done.stderr


def test_formula_of_another_package(tmp_path: Path) -> None:
    """The name of the entry point is the class of the layer."""
    environ = _install(tmp_path / "site", "theirs", FORMULA, "Scale = theirs:scale", "annot.formulas")
    profile = SqliteProfile()
    profile.layer("norm Scale [8,64]f32 |fwd", 0, 100)
    path = profile.write(tmp_path / "run.sqlite")
    assert ",512," in _report(path, environ, "--columns", "work").stdout
    assert ",512," not in _report(path, dict(os.environ), "--columns", "work").stdout


@pytest.mark.parametrize(
    ("result", "said"),
    [
        ("Advice('r', 'a', 'e', 'c', 'lots')", "ValueError: saves must be a number from 0 to 1, got 'lots'"),
        ("Advice('r', 'a', 'e', 'c', float('nan'))", "ValueError: saves must be a number from 0 to 1, got nan"),
        ("Advice('r', 'a', 'e', 'c', 1.01)", "ValueError: saves must be a number from 0 to 1, got 1.01"),
        ("Advice('r', 'a', 'e', 'c', 0.1, None)", "TypeError: layers must be a list of str, got None"),
        ("Advice('r', 'a', 7, 'c', 0.1)", "TypeError: evidence must be a str, got 7"),
        ("exit(3)", "SystemExit: 3"),
        ("int('1\\n2')", "ValueError: invalid literal for int() with base 10: '1\\n2'"),
        ("(_ for _ in ()).throw(ValueError('a\\nb\\x1b'))", "ValueError: a b "),
    ],
)
def test_rule_that_gives_nonsense(result: str, said: str, tmp_path: Path) -> None:
    """annot leaves the rule out, with one line."""
    code = f"from annot.analyze.advice import Advice\n\ndef rule(facts):\n    return {result}\n"
    environ = _install(tmp_path / "site", "their_rule", code, "rule = their_rule:rule", "annot.advice")
    done = _report(training(device=True).write(tmp_path / "run.sqlite"), environ, "--by", "advice")
    assert done.returncode == 0
    title = "the advice their_rule:rule of the package their-reader"
    assert done.stderr == f"annot: warning: {title} is left out: it failed with {said}\n"


@pytest.mark.parametrize(
    ("result", "said"),
    [
        ("'text'", "TypeError: the rows must be a polars DataFrame, got a str"),
        ("pl.DataFrame({'calls': [1]})", "ValueError: the rows lack the column power"),
        ("exit(3)", "SystemExit: 3"),
    ],
)
def test_view_that_gives_nonsense(result: str, said: str, tmp_path: Path) -> None:
    """Its table is one line."""
    code = f"""
import polars as pl
from annot.report.views import View

view = View("lengths", by="length", columns=("calls",), rows=lambda attribution: {result}, label="power")
"""
    environ = _install(tmp_path / "site", "their_view", code, "lengths = their_view:view", "annot.views")
    done = _report(training(device=True).write(tmp_path / "run.sqlite"), environ, "--by", "length")
    assert done.returncode == 1
    assert done.stderr == f"annot: error: the view their_view:view of the package their-reader failed with {said}\n"
