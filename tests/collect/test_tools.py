from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest

from annot.collect.collectors import choose
from annot.errors import AnnotError
from annot.util.installed_tools import Nsys, find_nsys, loses_nvtx_package, nvtx_version_of, parse_version, python_of


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(stat.S_IRWXU)
    return path


def answering(path: Path, version: str) -> Path:
    return program(path, f"#!/bin/sh\necho NVIDIA Nsight Systems version {version}\n")


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVIDIA Nsight Systems version 2022.4.2.1-df9881f", (2022, 4, 2)),
        ("NVIDIA Nsight Systems version 2026.1.1.204-261137354923v0", (2026, 1, 1)),
        ("NVIDIA Nsight Systems version 2020.3", (2020, 3)),
        ("nothing", ()),
    ],
)
def test_version(text, version):
    """The version is read from what nsys answers; an unknown answer is no error."""
    assert parse_version(text) == version


def test_named_nsys_is_the_only_one_tried(tmp_path):
    """ANNOT_NSYS wins over PATH, and if it does not answer there is no other."""
    named = answering(tmp_path / "named", "2024.2.3")
    on_path = answering(tmp_path / "bin" / "nsys", "2023.4.4")
    environ = {"PATH": str(on_path.parent)}
    assert find_nsys({**environ, "ANNOT_NSYS": str(named)}, tmp_path) == Nsys(named, (2024, 2, 3))
    assert find_nsys({**environ, "ANNOT_NSYS": str(tmp_path / "none")}, tmp_path) is None
    assert find_nsys(environ, tmp_path) == Nsys(on_path, (2023, 4, 4))


def test_usual_folders_newest_first_and_only_what_answers(tmp_path):
    """Off PATH the newest release in the usual folders is taken; one that fails is passed over."""
    opt = tmp_path / "opt/nvidia/nsight-systems"
    program(opt / "2025.10.1/bin/nsys", "#!/bin/sh\nexit 1\n")
    good = answering(opt / "2025.9.1/bin/nsys", "2025.9.1")
    answering(opt / "2025.3.1/bin/nsys", "2025.3.1")
    environ = {"PATH": str(tmp_path)}
    assert find_nsys(environ, tmp_path) == Nsys(good, (2025, 9, 1))
    assert find_nsys(environ, tmp_path / "empty") is None


def test_importer_is_looked_for_beside_the_real_program(tmp_path):
    """The host folder beside the folder of the real nsys, behind its links, is where Nsight looks."""
    nsys = answering(tmp_path / "install" / "target-linux-x64" / "nsys", "2022.4.2")
    link = tmp_path / "nsys"
    link.symlink_to(nsys)
    assert not Nsys(link, ()).imports_by_itself
    importer = program(tmp_path / "install" / "host-linux-x64" / "QdstrmImporter", "#!/bin/sh\n")
    assert Nsys(link, ()).imports_by_itself
    assert Nsys(link, ()).importer() == importer
    assert Nsys(link, ()).link_command() is None


def test_choose_falls_back_to_the_recorder(monkeypatch):
    """Without Nsight Systems auto is the recorder, and asking for it is one sentence with a way out."""
    monkeypatch.setenv("ANNOT_NSYS", "/nonexistent/nsys")
    assert choose("auto").name == "recorder"
    with pytest.raises(AnnotError, match=r"ANNOT_NSYS.*--collector recorder"):
        choose("nsys")
    with pytest.raises(ValueError, match="auto, nsys, recorder, torch, got 'perf'"):
        choose("perf")


def test_choose_takes_nsight_systems_where_it_answers(tmp_path, monkeypatch):
    """With an nsys that answers, auto is nsys."""
    monkeypatch.setenv("ANNOT_NSYS", str(answering(tmp_path / "nsys", "2024.2.3")))
    assert choose("auto").name == "nsys"


def test_python_of(tmp_path, monkeypatch):
    """Interpreters and scripts that name one are told from other programs."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    assert python_of(sys.executable) == Path(sys.executable)
    assert python_of(str(program(tmp_path / "tool", f"#!{sys.executable} -u\n"))) == Path(sys.executable)
    through_env = program(tmp_path / "script", "#!/usr/bin/env -S python3 -u\n")
    assert python_of(str(through_env)) == Path(sys.executable).parent / "python3"
    assert python_of("sh") is None
    assert python_of(str(program(tmp_path / "shell", "#!/bin/sh\n"))) is None
    assert python_of(str(program(tmp_path / "empty", ""))) is None


def test_nvtx_version_of_another_interpreter(tmp_path):
    """The package is looked up in the interpreter that will run, not in annot's own."""
    other = program(tmp_path / "python3", f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} -S "$@"\n')
    assert nvtx_version_of(other) is None
    metadata = tmp_path / "nvtx-0.2.11.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: nvtx\nVersion: 0.2.11\n")
    assert nvtx_version_of(other) == "0.2.11"


@pytest.mark.parametrize(
    ("nsys", "nvtx", "lost"),
    [
        ((2022, 4, 2), "0.2.11", False),
        ((2022, 4, 2), "0.2.12", True),
        ((2023, 4, 4), "0.2.17", True),
        ((2023, 4, 4), "0.10.0", True),
        ((2022, 4, 2), None, False),
        ((2025, 1, 1), "0.2.17", False),
    ],
)
def test_which_ranges_of_the_nvtx_package_are_lost(nsys, nvtx, lost):
    """From 0.2.12 on, under releases that do not implement nvtxDomainIsEnabled."""
    assert loses_nvtx_package(Nsys(Path("nsys"), nsys), nvtx) is lost
