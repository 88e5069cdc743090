"""The program of a profile: its command, folder and script."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

from annot.util.program import Program


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "pkg").mkdir()
    for name in ("train.py", "run.sh", "other.py", "pkg/train.py", "pkg/__main__.py"):
        (tmp_path / name).write_text(f"# {name}")
    return tmp_path


@pytest.mark.parametrize(
    ("command", "script"),
    [
        ("python train.py --steps 9", "train.py"), ("torchrun --nproc-per-node 2 train.py other.py", "train.py"),
        ("python -m pkg.train", "pkg/train.py"), ("python -m pkg", "pkg/__main__.py"), ("./run.sh", "run.sh"),
        ("sh run.sh", "run.sh"), ("python missing.py other.py", "other.py"), ("python -c pass", ""),
        ("python -m unknown", ""), ("pkg", ""), ("a\0b", ""),
    ],
)  # fmt: skip
def test_the_script_of_a_command(command: str, script: str, folder: Path) -> None:
    program = Program.of(command.split(" "), str(folder))
    assert program.script == (hashlib.sha256(f"# {script}".encode()).hexdigest() if script else "")
    assert (program.command, program.folder) == (tuple(command.split(" ")), str(folder))


def test_an_absolute_path_and_the_current_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    here = Program.of(["python", "train.py"])
    assert here == Program.of(["python", "train.py"], str(folder))
    assert Program.of(["python", str(folder / "train.py")], "/").script == here.script


def test_large_files_are_not_read(folder: Path) -> None:
    with (folder / "large.py").open("wb") as file:
        file.truncate((1 << 24) + 1)
    assert Program.of(["python", "large.py"], str(folder)).script == ""
    os.truncate(folder / "large.py", 1 << 24)
    assert Program.of(["python", "large.py"], str(folder)).script != ""


def test_the_texts_of_a_program_are_read_back(folder: Path) -> None:
    program = Program.of(["python", "train.py", "a b", "'", ""], str(folder))
    assert Program.parse(program.facts()) == program


@pytest.mark.parametrize(
    "facts",
    [{}, {"command": ""}, {"command": 7}, {"command": "python 'train.py"}, {"command": "python\x1b[31m train.py"},
     {"command": "python " + "x" * (1 << 16)}, {"command": ["python"]}],
)  # fmt: skip
def test_texts_of_a_profile_that_are_no_command(facts: dict[str, Any]) -> None:
    assert Program.parse(facts) is None
    folder = Program.parse({"command": "python train.py", "folder": 7, "script": None})
    assert folder == Program(("python", "train.py"), "", "")
