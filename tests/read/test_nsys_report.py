"""Reports of Nsight Systems, read through the export of an installed Nsight Systems."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from commands import NO_NSYS, needs_nsys

from annot import AnnotError
from annot.read.nsys import nsys_rep, sqlite_export
from annot.util.installed_tools import find_nsys

MAGIC = b"NVIDIA Tegra Profiler Report "
NEW = MAGIC + b"2026@4@1@191-264138605071v0.\n"

CODE = """
import annot
with annot.trace("outer", domain="mine", payload=7), annot.trace("inner"):
    annot.mark("here")
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real capture; %-signs in its name mean nothing."""
    nsys = find_nsys()
    assert nsys is not None
    folder = tmp_path_factory.mktemp("report")
    command = [str(nsys.path), "profile", "--trace=nvtx", "--sample=none", "--cpuctxsw=none", f"--output={folder}/x"]
    for _ in range(3):  # on a busy machine it was seen to give up
        done = subprocess.run([*command, sys.executable, "-c", CODE], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return (folder / "x.nsys-rep").rename(folder / "a b %h.qdrep")
    pytest.fail(f"Nsight Systems captures nothing: {done.stdout}{done.stderr}")


def _refusal(path: Path) -> str:
    with pytest.raises(AnnotError) as caught:
        nsys_rep.read(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert "\n" not in message
    return message


@needs_nsys
def test_report_is_its_export(report: Path, tmp_path: Path) -> None:
    """A report gives the profile that its own export gives, and neither it nor its folder is changed."""
    before = report.read_bytes()
    assert nsys_rep.sniff(report, before[:65536])
    profile = nsys_rep.read(report)
    assert report.read_bytes() == before
    assert list(report.parent.iterdir()) == [report]
    assert profile.ranges["text"].to_list() == ["outer", "inner"]
    assert profile.ranges["payload"].to_list() == ["7", None]
    assert profile.marks["text"].to_list() == ["here"]
    assert (profile.meta["source"], profile.meta["format"]) == (str(report), "nsys_report")
    exported = tmp_path / "x.sqlite"
    nsys = find_nsys()
    assert nsys is not None
    subprocess.run([str(nsys.path), "export", "--type=sqlite", f"--output={exported}", str(report)], check=True)
    assert profile.ranges.equals(sqlite_export.read(exported).ranges)


@needs_nsys
def test_export_beside_the_report_is_not_trusted(report: Path, tmp_path: Path) -> None:
    """A file that only has the name of the export is not read."""
    copy = tmp_path / "x.nsys-rep"
    copy.write_bytes(report.read_bytes())
    copy.with_suffix(".sqlite").write_bytes(b"of another run")
    assert nsys_rep.read(copy).ranges.height == 2
    assert copy.with_suffix(".sqlite").read_bytes() == b"of another run"


@needs_nsys
def test_damaged_report(report: Path, tmp_path: Path) -> None:
    """What Nsight Systems says of a cut report is in the sentence."""
    copy = tmp_path / "x.nsys-rep"
    copy.write_bytes(report.read_bytes()[:5000])
    assert "cannot be exported by Nsight Systems" in _refusal(copy)


@needs_nsys
def test_report_of_a_newer_version(report: Path, tmp_path: Path) -> None:
    """The version that is needed stands in the first line of a report."""
    copy = tmp_path / "x.nsys-rep"
    rest = report.read_bytes().split(b"\n", 1)[1]
    copy.write_bytes(MAGIC + b"2099@4@1@191-264138605071v0.\n" + rest)
    nsys = find_nsys()
    assert nsys is not None
    assert f"requires Nsight Systems 2099.4.1 or newer. {nsys.path} is {nsys.version_text}" in _refusal(copy)


@pytest.mark.parametrize(
    ("first_line", "needed"),
    [
        (NEW, "requires Nsight Systems 2026.4.1 or newer, which was not found"),
        (MAGIC + b"1.\n", "requires Nsight Systems, which was not found"),
    ],
)
def test_no_nsight_systems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first_line: bytes, needed: str) -> None:
    """Without Nsight Systems the sentence says which is needed, where it is and what else helps."""
    monkeypatch.setenv("ANNOT_NSYS", NO_NSYS)
    path = tmp_path / "x"
    path.write_bytes(first_line + b"\x0bLocal (CLI)")
    assert nsys_rep.sniff(path, path.read_bytes())
    message = _refusal(path)
    assert needed in message
    assert "https://developer.nvidia.com/nsight-systems" in message
    assert "nsys export --type=sqlite" in message


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (
            "echo 'Exportation error: Report was created in Nsight Systems version (2023.4.1), newer than your current "
            "version (2022.1.1).' >&2; exit 1",
            "requires Nsight Systems 2023.4.1 or newer",
        ),
        ("printf 'one\\n\\ntwo\\rthree\\nfour\\n'; exit 1", "2022.1.1: two / three / four"),
        ("kill -9 $$", "2022.1.1: nsys exited with status -9"),
        ('printf x > "${5#--output=}"; exit 3', "2022.1.1: nsys exited with status 3"),
        ("exit 0", "2022.1.1: nsys exited with status 0"),
    ],
)
def test_answers_of_nsight_systems(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, expected: str
) -> None:  # fmt: skip
    """Whatever a failing export says or does is one sentence."""
    nsys = tmp_path / "nsys"
    version = "NVIDIA Nsight Systems version 2022.1.1.1-abc"
    nsys.write_text(f'#!/bin/sh\nif [ "$1" = --version ]; then echo "{version}"; exit; fi\n{answer}\n')
    nsys.chmod(0o755)
    monkeypatch.setenv("ANNOT_NSYS", str(nsys))
    path = tmp_path / "x.nsys-rep"
    path.write_bytes(MAGIC + b"1.\n")
    assert expected in _refusal(path)


def test_other_files_are_no_reports(tmp_path: Path) -> None:
    """The name of a file does not make it a report."""
    path = tmp_path / "x.nsys-rep"
    for content in (b"SQLite format 3\x00", b"whatever", b""):
        path.write_bytes(content)
        assert not nsys_rep.sniff(path, content)
