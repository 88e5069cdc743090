"""Backwards on the threads that autograd has for devices, on a device type without hardware."""

from __future__ import annotations

import ast
import os
import shutil
from pathlib import Path
from typing import NamedTuple

import forked
import pytest
from matrices import every_third

torch = pytest.importorskip("torch")

from silent_device import build  # noqa: E402

COMPILER = shutil.which("c++") or shutil.which("g++")
pytestmark = [
    pytest.mark.skipif(COMPILER is None, reason="no C++ compiler"),
    pytest.mark.skipif(not hasattr(torch._C, "_acc"), reason="PyTorch before 2.9 takes no device from Python"),
]


class Seen(NamedTuple):
    """What `device_runs.py` prints."""

    owners: list[tuple[str, str, int]]
    late: list[str]
    same: bool
    names: list[str]


@pytest.fixture(scope="module")
def library() -> Path:
    """The device guard."""
    assert COMPILER is not None
    return build(COMPILER)


def run(library: Path, devices: int, name: str, folder: Path) -> Seen:
    """Run in a process of its own: devices and their threads are there for the life of a process."""
    here = Path(__file__).parents[1] / "support"
    environment = {**os.environ, "PYTHONPATH": str(here.parents[1])}
    done = forked.python(here / "device_runs.py", library, devices, name, folder, env=environment)
    assert done.returncode == 0, done.stderr
    return Seen(*ast.literal_eval(done.stdout))


ONE = [
    "one device",
    "ends on the CPU",
    "begins on the CPU",
    "a device in the middle",
    "an error",
    "some inputs",
    "kept",
    "twice",
    "checkpoint",
    "reentrant checkpoint",
    "two threads",
]
TWO = ["two devices in turn", "two devices at once", "an error on two devices"]


@pytest.mark.parametrize(("devices", "name"), every_third([*((1, name) for name in ONE), *((2, name) for name in TWO)]))
def test_layers_on_device_threads(library: Path, devices: int, name: str, tmp_path: Path) -> None:
    """Each node runs inside its layer, each range ends on its thread and within its backward, gradients are equal."""
    seen = run(library, devices, name, tmp_path)
    assert seen.owners
    assert [around for layer, around, _ in seen.owners if around != f"{layer}<"] == []
    assert seen.late == []
    assert seen.same


def test_each_device_has_its_thread(library: Path, tmp_path: Path) -> None:
    """Layers of one device run on one thread, those of another on another."""
    owners = run(library, 2, "two devices in turn", tmp_path).owners
    threads = {layer: {thread for one, _, thread in owners if one == layer} for layer in "0123"}
    assert threads["0"] == threads["2"] != threads["1"] == threads["3"]
    assert all(len(found) == 1 for found in threads.values())


def test_double_backward_on_a_device_thread(library: Path, tmp_path: Path) -> None:
    """The graph that a backward makes on a device thread belongs to the layers whose backward made it."""
    names = run(library, 1, "twice", tmp_path).names
    first, second = [place for place, name in enumerate(names) if name == "engine<"]
    assert {"2<", "1<", "0<"} <= set(names[first:second])
    assert {"2<", "1<", "0<"} <= set(names[second:])
