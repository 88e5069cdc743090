"""The command `annot calibrate`: the file, the folder, and what can be in its way."""

from __future__ import annotations

import fcntl
import json
import os
import stat
import sys
from pathlib import Path

import pytest

from annot.analyze.peaks import read_calibration
from annot.cli.main import main

torch = pytest.importorskip("torch", reason="PyTorch is not installed")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tmp_path / "data" / "annot" / "peaks" / "measured"


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Benchmarks of one small size: the same code, with numbers that are too low."""
    monkeypatch.setattr("annot.torch.measured_peaks._LONG", 0.0)
    monkeypatch.setattr("annot.torch.measured_peaks._SECONDS", 0.0)


@pytest.mark.usefixtures("short")
def test_a_file_per_device(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command prints what it measured and where it is; a second one replaces it."""
    threads = torch.get_num_threads()
    try:
        for _ in range(2):
            assert main(["calibrate", "--device", "cpu", "--threads", "1"]) == 0
    finally:
        torch.set_num_threads(threads)
    (file,) = folder.iterdir()
    contents = read_calibration(file)
    assert (contents.threads, "PyTorch" in contents.software) == (1, True)
    assert contents.flops["f32"] > 0
    out = capsys.readouterr().out
    printed = " ".join(out.split())
    assert f"Peaks: {contents.device}, 1 thread: " in printed
    assert f"(measured here on {contents.measured} with PyTorch {torch.__version__})" in printed
    assert f"Writtento{file}" in "".join(out.split())


@pytest.mark.usefixtures("short")
def test_a_file_for_another_machine(folder: Path, tmp_path: Path) -> None:
    """Only this file is written."""
    assert main(["calibrate", "--device", "cpu", "-o", str(tmp_path / "here.json")]) == 0
    assert json.loads((tmp_path / "here.json").read_bytes())["format"] == "annot peaks 1"
    assert not folder.exists()


def test_two_at_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The second would measure half of the device: it ends at once, with one line."""
    folder.mkdir(parents=True)
    held = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert main(["calibrate", "--device", "cpu"]) == 1
    finally:
        os.close(held)
    assert capsys.readouterr().err == "annot: error: another annot calibrate is running: wait until it ends\n"
    assert not list(folder.iterdir())


def test_folders_that_cannot_be_written(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command says so before it measures."""
    folder.parent.mkdir(parents=True)
    folder.write_text("a file in the way")
    assert main(["calibrate", "--device", "cpu"]) == 1
    assert capsys.readouterr().err == f"annot: error: {folder} cannot be written: File exists: use -o FILE\n"
    assert main(["calibrate", "--device", "cpu", "-o", str(tmp_path / "none" / "x.json")]) == 1
    assert "none cannot be written: No such file or directory" in capsys.readouterr().err
    monkeypatch.setenv("XDG_DATA_HOME", "")
    monkeypatch.setenv("HOME", "nowhere")
    assert main(["calibrate", "--device", "cpu"]) == 1
    assert "the home folder is unknown: use -o FILE" in capsys.readouterr().err


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_home_that_is_read_only(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder.mkdir(parents=True)
    folder.chmod(stat.S_IRUSR | stat.S_IXUSR)
    assert main(["calibrate", "--device", "cpu"]) == 1
    assert "measured cannot be written: Permission denied: use -o FILE" in capsys.readouterr().err


def test_devices_that_pytorch_lacks(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for device in ("cuda:77", "xla"):
        assert main(["calibrate", "--device", device]) == 1
        assert f"that PyTorch sees, got '{device}'" in capsys.readouterr().err
    assert main(["calibrate", "--device", "cuda", "--threads", "2"]) == 2
    assert main(["calibrate", "--threads", "0"]) == 2
    assert not folder.exists()


def test_pytorch_is_needed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["calibrate"]) == 1
    assert capsys.readouterr().err == "annot: error: annot calibrate needs PyTorch, which is not installed\n"
