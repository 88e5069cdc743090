"""macOS and Windows, imitated on Linux: reports work, and what needs Linux says so."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import forked
import pytest
import system_reports
from commands import needs_recorder
from other_system import missing_names
from shared_data import unpacked
from sqlite_profile import SqliteProfile

from annot import native

pytest.importorskip("mypy", reason="its stubs say what systems lack")

SYSTEMS = {"darwin": "macOS", "win32": "Windows"}
KILLED = "import annot, os\nwith annot.trace('killed'): os.kill(os.getpid(), 9)"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two profiles of Nsight Systems, one of torch.profiler, and the parts of a killed recording."""
    folder = tmp_path_factory.mktemp("profiles")
    for name, length in (("a", 100), ("b", 150)):
        profile = SqliteProfile()
        for step in range(4):
            begin = 1000 * step
            profile.layer(f"Batch {step} |step", begin, begin + 900)
            profile.layer("größe.fc Linear [8,64]f32 out=10 |fwd", begin + 10, begin + 60)
            profile.call(begin + 20, begin + 30, step + 1)
            profile.kernel(begin + 40, begin + 40 + length, step + 1)
        profile.write(folder / f"{name}.sqlite")
    unpacked("kineto/hta_alexnet_a100_train.json", folder).rename(folder / "a.json")
    parts = folder / "killed.parts"
    parts.mkdir()
    tool = {"NVTX_INJECTION64_PATH": str(native.recorder_library()), "ANNOT_RECORD_DIR": str(parts)}
    killed = subprocess.run([sys.executable, "-c", KILLED], env=os.environ | tool, check=False)
    assert killed.returncode == -signal.SIGKILL
    return folder


@pytest.fixture(scope="module")
def on_linux(folder: Path) -> dict[str, str]:
    """The reports of this system."""
    with contextlib.chdir(folder):
        return system_reports.reports()


@needs_recorder
@pytest.mark.parametrize("system", SYSTEMS)
def test_reports_are_those_of_linux(system: str, folder: Path, on_linux: dict[str, str]) -> None:
    """Formats, comparisons, baselines and notebooks are the same; commands that record end with one line."""
    command = [sys.executable, "-X", "warn_default_encoding", system_reports.__file__, system]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    made, answers = json.loads(done.stdout)
    assert made == on_linux
    for words, (status, printed, error) in answers.items():
        verb = "annot compare --repeat" if "--repeat" in words else f"annot {words.split()[0]}"
        sentence = f"needs Linux: on {SYSTEMS[system]}, annot only reads profiles"
        if verb == "annot doctor":
            [check] = json.loads(printed)
            assert (status, check["text"]) == (1, f"recording NVTX ranges {sentence}")
        else:
            assert (status, printed, error) == (2, "", f"annot: error: {verb} {sentence}\n")


def test_systems_lack_what_they_lack() -> None:
    """The stubs know the modules and functions that made reading fail."""
    assert missing_names("fcntl", "win32")[1]
    assert not missing_names("fcntl", "darwin")[1]
    assert "F_SETSIG" in missing_names("fcntl", "darwin")[0]
    assert {"pread", "sched_getaffinity"} <= missing_names("os", "win32")[0]
    assert {"pread", "sched_getaffinity"} & missing_names("os", "darwin")[0] == {"sched_getaffinity"}
    assert "SIGQUIT" in missing_names("signal", "win32")[0]


EMIT = """
import sys, warnings
import other_system, torch
other_system.imitate(sys.argv[1])
import annot
model = torch.nn.Sequential(torch.nn.Linear(3, 2))
def train():
    with annot.emit_ranges(model, memory=True):
        for batch in annot.batches([torch.ones(4, 3)] * 2):
            with annot.trace("step", color="red"):
                model(batch).sum().backward()
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    train()
    train()
print(*(str(one.message) for one in caught), sep="\\n")
try:
    with annot.record("run.sqlite"):
        pass
except annot.AnnotError as error:
    print(error)
with torch.profiler.profile() as profiler:
    train()
print(*{event.name for event in profiler.events()}, sep="\\n")
"""


@pytest.mark.parametrize("system", SYSTEMS)
def test_ranges(system: str, tmp_path: Path) -> None:
    """A training runs as without annot. One line says what ranges need; torch.profiler gets them."""
    environment = {**os.environ, "ANNOT_DISABLE_NATIVE": "1", "PYTHONPATH": str(Path(forked.__file__).parent)}
    done = forked.python(EMIT, system, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    name = SYSTEMS[system]
    lines = done.stdout.splitlines()
    assert lines[:2] == [
        f"NVTX ranges need Linux: on {name}, only torch.profiler receives ranges",
        f"recording a profile needs Linux: on {name}, annot only reads profiles",
    ]
    assert {"0 Linear [4,3]f32 out=2 |fwd", "Forward Sequential [4,3]f32 |fwd"} <= set(lines[2:])
