"""`annot -v`: what annot does, as lines of logging on standard error."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest
from sqlite_profile import training

import annot
from annot.cli.main import main


@pytest.fixture
def profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Name of a profile in the working directory."""
    monkeypatch.chdir(tmp_path)
    training(device=True).write(tmp_path / "gpu.sqlite")
    return "gpu.sqlite"


def messages(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Return the messages on standard error, without their times."""
    lines = capsys.readouterr().err.splitlines()
    assert all(re.match(r"annot: \d+ ms annot[\w.]*: ", line) for line in lines), lines
    return [line.partition(": ")[2].partition(": ")[2] for line in lines]


@pytest.mark.parametrize("words", ["--verbose {}", "{} -v", "-v report {}"])
def test_report_says_what_it_does(words: str, profile: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words.format(profile).split(), "-o", "out.json", "--columns", "roofline"]) == 0
    said = messages(capsys)
    assert said[0] == "reading gpu.sqlite"
    assert "gpu.sqlite has the format nsys_sqlite (reader annot.read.nsys.sqlite_export)" in said
    assert "attributing GPU time to layers" in said
    assert "view layer_roofline of gpu.sqlite" in said
    assert any(line.startswith("peaks: ") for line in said)
    assert said[-2:] == [f"wrote {Path('out.json').resolve()}", "finished"]


def test_another_command(profile: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-v", "compare", profile, profile]) == 0
    assert messages(capsys).count("reading gpu.sqlite") >= 1


def test_nothing_without_the_option(profile: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Also after a command with it, and after one that fails."""
    assert main(["-v", "missing.sqlite"]) == 1
    assert main(["-v", profile]) == 0
    capsys.readouterr()
    assert main([profile]) == 0
    assert capsys.readouterr().err == ""


def test_program_that_imports_annot_configures_logging_itself(profile: str, caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("annot")
    assert (log.handlers, log.level) == ([], logging.NOTSET)
    with caplog.at_level(logging.INFO, logger="annot"):
        assert annot.open(profile).layers.height
    assert {record.name for record in caplog.records} == {"annot.read.formats", "annot.util.progress"}
