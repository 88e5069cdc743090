"""The command `annot report`, and what all commands share."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from sqlite_profile import training

from annot.cli import main


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Two steps of a small network with kernels."""
    return training(device=True).write(tmp_path / "run.sqlite")


def _annot(*words: object, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "annot", *map(str, words)]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **environment}, encoding="utf-8"
    )


def test_table_on_standard_output(source: Path) -> None:
    """The default is the table of layers, without colour where there is no terminal, with nothing on stderr."""
    result = _annot("report", source, COLUMNS="80")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("GPU time by layer, ms\nLayer ")
    assert "\x1b" not in result.stdout


def test_json_on_standard_output(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """JSON goes to standard output and nothing else does."""
    assert main(["report", str(source), "--format", "json", "--by", "kernel"]) == 0
    output = capsys.readouterr()
    assert {"name", "gpu_ns"} <= set(json.loads(output.out)["kernels"][0])
    assert output.err == ""


@pytest.mark.parametrize("form", ["table", "csv", "json", "parquet"])
def test_output_file(source: Path, tmp_path: Path, form: str, capsys: pytest.CaptureFixture[str]) -> None:
    """-o writes the file and prints nothing."""
    out = tmp_path / "out"
    assert main(["report", str(source), "--format", form, "-o", str(out)]) == 0
    assert capsys.readouterr() == ("", "")
    assert (b"PAR1" if form == "parquet" else b"features.0" if form != "table" else b"0 Conv2d") in out.read_bytes()


def test_existing_output_is_kept(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An existing file is only replaced with --force."""
    out = tmp_path / "out"
    out.write_text("precious")
    assert main(["report", str(source), "--format", "csv", "-o", str(out)]) == 1
    assert capsys.readouterr().err == f"annot: error: {out} exists; --force replaces it\n"
    assert out.read_text() == "precious"
    assert main(["report", str(source), "--format", "parquet", "-o", str(out), "--force"]) == 0
    assert pl.read_parquet(out).height > 10


def test_output_that_cannot_be_written(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder that does not exist is one sentence."""
    out = tmp_path / "no" / "out"
    assert main(["report", str(source), "--format", "csv", "-o", str(out)]) == 1
    assert capsys.readouterr().err == f"annot: error: {out} cannot be written: No such file or directory\n"


def test_parquet_needs_a_file(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Parquet on the terminal is wrong usage."""
    assert main(["report", str(source), "--format", "parquet"]) == 2
    assert "needs -o" in capsys.readouterr().err


def test_bad_profile_is_one_sentence(tmp_path: Path) -> None:
    """A file that is no profile ends in one line on stderr, nothing on stdout, and status 1."""
    (tmp_path / "x").write_text("hello")
    result = _annot("report", tmp_path / "x")
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith(f"annot: error: {tmp_path}/x is not a profile")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("words", [["report"], ["report", "x", "--by", "color"], ["fly"], ["--nonsense"], []])
def test_wrong_usage(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Wrong usage is status 2, with what is possible."""
    assert main(words) == 2
    output = capsys.readouterr()
    assert "usage: annot" in output.out + output.err


@pytest.mark.parametrize("words", [["--help"], ["report", "--help"], ["run", "--help"], ["doctor", "--help"]])
def test_help(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Help is status 0 on standard output."""
    assert main(words) == 0
    assert capsys.readouterr().out.startswith("usage: annot")


def test_help_shows_verbs_and_examples(capsys: pytest.CaptureFixture[str]) -> None:
    """The first thing that a person sees names every verb and shows commands to type."""
    main(["--help"])
    text = capsys.readouterr().out
    assert all(word in text for word in ("run", "report", "doctor", "annot run -- python train.py"))


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    """--version prints name and number."""
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.split()[0] == "annot"


def test_help_does_not_load_the_heavy_libraries() -> None:
    """Help comes without polars, torch or rich, neither for annot nor for its verb report."""
    code = (
        "import sys; from annot.cli import main; main(['report', '--help']); "
        "sys.exit(sum(name in sys.modules for name in ('polars', 'torch', 'rich', 'adbc_driver_manager')))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


def test_reader_that_has_had_enough(source: Path) -> None:
    """A pipe that closes early ends the command without a word."""
    command = [sys.executable, "-m", "annot", "report", str(source), "--format", "json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_full_disk_on_standard_output(source: Path) -> None:
    """Output that cannot be written is an error, not a traceback."""
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "annot", "report", str(source)]
        result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert result.returncode == 1
    assert result.stderr == "annot: error: [Errno 28] No space left on device\n"


def test_ascii_terminal(source: Path) -> None:
    """In a locale without Unicode the report is printed with replacements rather than not at all."""
    result = _annot("report", source, LC_ALL="C", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert (result.returncode, result.stderr) == (0, "")
    assert "0 Conv2d" in result.stdout
