"""Folders of the server: nothing outside is opened, whatever lies beside profiles."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from shared_data import unpacked
from sqlite_profile import training
from xplane_profile import XPlaneProfile

from annot.agents.folders import Folders, RefusedError
from annot.agents.tools import Tools

_PROGRAM = """
import os, sys
from pathlib import Path
from annot.agents.folders import Folders
from annot.agents.tools import Tools

runs, opened = Path(sys.argv[1]), []

def note(event, arguments):
    if event in ("open", "os.listdir", "os.scandir") and isinstance(arguments[0], (str, bytes, os.PathLike)):
        opened.append(Path(os.path.realpath(os.fsdecode(arguments[0]))))

tools = Tools(Folders([runs], 1 << 30))
sys.addaudithook(note)
print(tools.open())
for profile in sys.argv[2:]:
    print(tools.summary(profile))
assert all(runs / name in opened for name in sys.argv[2:])
around = [path for path in opened if path.is_relative_to(runs.parents[1])]
print("outside:", [str(path) for path in around if not path.is_relative_to(runs)])
"""


def test_folders_of_the_server_are_always_listed(tmp_path: Path) -> None:
    """Also with XPlane files, which make a folder a profile; a folder of parts, such as a Parquet export, is listed."""
    tools = Tools(Folders([tmp_path], largest=1 << 30))
    (tmp_path / "NVTX_EVENTS.parquet").touch()
    assert [row["profile"] for row in json.loads(tools.open())["profiles"]] == ["."]
    training(device=True).write(tmp_path / "run.sqlite")
    for count in (1, 2):
        file = XPlaneProfile()
        file.plane("/device:GPU:0")
        file.write(tmp_path / f"{count}.xplane.pb")
        expected = [*(f"{number + 1}.xplane.pb" for number in range(count)), "run.sqlite"]
        assert [row["profile"] for row in json.loads(tools.open())["profiles"]] == expected


def test_a_layer_without_a_phase_says_its_phases(tmp_path: Path) -> None:
    """Its name is right, so that none like it is proposed."""
    training(device=True).write(tmp_path / "run.sqlite")
    tools = Tools(Folders([tmp_path], largest=1 << 30))
    said = "layer 'features.0' has no row with phase 'recompute'. It has phase 'forward' or 'backward'"
    with pytest.raises(RefusedError, match=f"^{said}$"):
        tools.explain_row("run.sqlite", layer="features.0", phase="recompute")


def test_nothing_outside_is_opened(tmp_path: Path) -> None:
    """Neither where links to captures, journals and folders lead, nor in the folders around that of the server."""
    runs, outside = tmp_path / "around/runs", tmp_path / "around/capture_traces"
    runs.mkdir(parents=True)
    outside.mkdir()
    trace = unpacked("kineto/tracelens_mi300_sglang_decode_graph_exec.json.gz", runs).rename(runs / "trace.json")
    file = XPlaneProfile()
    gpu = file.plane("/device:GPU:0")
    gpu.event(gpu.line("Stream #1(Compute)", 1), "gemm", 9_000_000, 4_000_000, tf_op="net/fc/MatMul:MatMul")
    file.write(runs / "xplane.pb")
    training(device=True).write(runs / "run.sqlite")
    for path in (outside / "bs_32_rank0.json", outside / "run.sqlite-wal", outside / "execution_details.json"):
        path.write_bytes(trace.read_bytes())
    for path in (runs.parent, runs.parent.parent):
        (path / "annot_scopes.txt").write_text("Scope net/fc = other Dense |fwd\n")
    (runs / "capture.json").symlink_to(outside / "bs_32_rank0.json")
    (runs / "run.sqlite-wal").symlink_to(outside / "run.sqlite-wal")
    (runs / "execution_details.json").symlink_to(outside / "execution_details.json")
    (runs / "annot_scopes.txt").symlink_to(runs.parent / "annot_scopes.txt")
    (runs / "capture_traces").symlink_to(outside)
    profiles = ("trace.json", "xplane.pb", "run.sqlite")
    command = [sys.executable, "-c", _PROGRAM, runs, *profiles]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.stdout.splitlines()[-1:] == ["outside: []"], result.stdout + result.stderr
    assert all(f'"profile":"{name}"' in result.stdout.replace(" ", "") for name in profiles)
    assert "capture.json" not in result.stdout
