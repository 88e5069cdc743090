"""Where reports go: pipes, files on full disks, browsers, terminals without Unicode; and words that are misspelt."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlite_profile import SqliteProfile, training

from annot.cli.guide import chapter
from annot.cli.main import main
from annot.runs.run import Run

ANNOT = [sys.executable, "-m", "annot"]
LIMIT = 15_000
"""Bytes that a file may have in a process with a full disk."""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Two steps of a small network with kernels, with long names of a layer and a kernel."""
    profile = training(device=True)
    profile.layer(f"{'block.' * 30}fc Linear |fwd", 190_000, 200_000)
    return profile.write(tmp_path / "run.sqlite")


def _annot(*words: object, before: Callable[[], None] | None = None, **environment: str) -> tuple[int, str, str]:
    plain = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    done = subprocess.run(
        [*ANNOT, *map(str, words)], capture_output=True, text=True, check=False, env=plain | environment,
        preexec_fn=before,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def test_pipes_have_whole_names(source: Path, tmp_path: Path) -> None:
    """Without a terminal no name is cut, in a file neither; COLUMNS still sets a width."""
    whole = f"{'block.' * 30}fc Linear"
    assert whole in _annot(source, "--all")[1]
    assert whole in _annot("compare", "--all", source, source)[1]
    assert max(map(len, _annot(source, "--all", COLUMNS="80")[1].splitlines())) <= 80
    assert main(["report", str(source), "--all", "-o", str(tmp_path / "layers.txt")]) == 0
    assert whole in (tmp_path / "layers.txt").read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("report x -o out.xlsx", "annot report writes no .xlsx files: use .csv, .json, .jsonl, .ndjson, "),
        ("roofline x -o out.html", "annot roofline writes no .html files: use .csv, .json, "),
        ("compare x y -o out.json.gz", "annot compare writes no .gz files: use "),
        ("report x --open", "--open shows a page: use it with -o OUT.html"),
        ("report x -o out.csv --open", "--open shows a page: use it with -o OUT.html"),
    ],
)  # fmt: skip
def test_output_that_does_not_exist(words: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What cannot be written is wrong usage that lists what can be, before any reading."""
    assert main(words.split()) == 2
    assert capsys.readouterr().err.startswith(f"annot: error: {said}")


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("reprot run.sqlite", "report"),
        ("report run.sqlite --bye kernel", "--by"),
        ("run.sqlite --columms=work", "--columns"),
        ("report run.sqlite --columns roofine", "roofline"),
        ("run --colector recorder -- python", "--collector"),
        ("guide pytroch", "pytorch"),
    ],
)
def test_nearest_word_is_named(words: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A command, an option or a value with a typing error ends with the word that was meant."""
    assert main(words.split()) == 2
    assert capsys.readouterr().err.endswith(f"; did you mean {meant}?\n")
    assert main(["zzz"]) == 2
    output = capsys.readouterr().err
    assert "did you mean" not in output
    assert "\nannot: error: 'zzz' is neither a file nor a command (choose from " in output


# Python 3.11 keeps a module's byte code that the limit cuts, and every later import of the module fails.
_NO_BYTE_CODE = {"PYTHONDONTWRITEBYTECODE": "1"}


def _full_disk() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, LIMIT))


@pytest.mark.parametrize("name", ["page.html", "rows.json", "trace.json.gz"])
def test_full_disk_leaves_no_part(name: str, tmp_path: Path) -> None:
    """A file that does not fit is not there afterwards; with --force the old one stays."""
    profile = SqliteProfile()
    for number in range(2000):
        profile.layer(
            f"layer.{number * 7919 % 10_007} Linear [{number},{number**3}]f32 |fwd", 10 * number, 10 * number + 9
        )
    source, out = profile.write(tmp_path / "run.sqlite"), tmp_path / name
    for words in ([], ["--force"]):
        status, _, said = _annot(source, "-o", out, *words, before=_full_disk, **_NO_BYTE_CODE)
        assert (status, said) == (1, f"annot: error: {out} cannot be written: File too large\n")
        assert [path.name for path in tmp_path.iterdir() if path != source] == ([name] if words else [])
        out.write_text("old")
    assert out.read_text() == "old"


def test_full_disk_in_python(source: Path, tmp_path: Path) -> None:
    """`to_html` keeps the old page, too; a page that fits replaces it, with the permissions that it had."""
    out = tmp_path / "page.html"
    out.write_text("old")
    out.chmod(0o640)
    code = f"import annot; annot.open({str(source)!r}).to_html({str(out)!r})"
    command, environ = [sys.executable, "-c", code], {**os.environ, **_NO_BYTE_CODE}
    done = subprocess.run(command, capture_output=True, check=False, env=environ, preexec_fn=_full_disk)
    assert b"page.html cannot be written: File too large" in done.stderr
    assert out.read_text() == "old"
    Run(source).to_html(out)
    assert out.read_text().startswith("<!doctype html>")
    assert out.stat().st_mode & 0o777 == 0o640
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.html", "run.sqlite"]


@pytest.mark.parametrize("verb", ["report", "compare"])
def test_page_is_opened(verb: str, source: Path, tmp_path: Path) -> None:
    """--open gives the browser the address of the finished page, and says so where there is none."""
    browser, out = tmp_path / "browser", tmp_path / "a page.html"
    browser.write_text(f'#!/bin/sh\necho "$1" > {tmp_path}/opened\n')
    browser.chmod(0o755)
    words = [verb, *[source] * (1 + (verb == "compare")), "-o", out, "--open"]
    assert _annot(*words, BROWSER=f"{browser} %s") == (0, "", "")
    assert (tmp_path / "opened").read_text() == f"{out.as_uri()}\n"
    assert out.read_text().startswith("<!doctype html>")


def test_no_browser(source: Path, tmp_path: Path) -> None:
    """Without a browser the page is written, and a line names it."""
    out, empty = tmp_path / "page.html", tmp_path / "empty"
    empty.mkdir()
    status, _, said = _annot(source, "-o", out, "--open", PATH=str(empty), BROWSER="", DISPLAY="")
    assert (status, said) == (0, f"annot: no browser was found: open {out} in a browser\n")
    assert out.exists()


def test_terminal_without_unicode(source: Path) -> None:
    """ASCII has its own characters for signs and drawings, and columns stay below their heads."""
    ascii_only = {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    status, shown, said = _annot("compare", "--all", source, source, **ascii_only)
    assert (status, said) == (0, "")
    assert "speedup 1.000 +- 0.000" in shown
    head, first = shown.splitlines()[1:3]
    assert "+-" in head
    assert head.rstrip().index("Share") + 5 == first.index("%") + 1
    guide = _annot("guide", "attribution", **ascii_only)[1]
    assert " +---- Step 1 -----+  +---- Step 2 ------+ " in guide
    assert "`train > Step # > Backward`" in guide
    assert guide.count("?") == chapter("attribution").read_text(encoding="utf-8").count("?")


def test_links_and_modes(source: Path, tmp_path: Path) -> None:
    """A file replaces the target of a link and keeps its mode; a circle of links is one sentence."""
    target, link, loop = tmp_path / "target.json", tmp_path / "link.json", tmp_path / "loop.json"
    target.write_text("older")
    target.chmod(0o640)
    link.symlink_to(target)
    loop.symlink_to(loop)
    assert main(["report", str(source), "-o", str(link), "--force"]) == 0
    assert link.is_symlink()
    assert target.read_text() != "older"
    assert target.stat().st_mode & 0o777 == 0o640
    status, _, said = _annot("report", source, "-o", loop)
    assert status == 1
    assert said == f"annot: error: {loop} cannot be written: File exists\n"
