"""How the operations get into a process: prebuilt, compiled at first use, or registered from Python."""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("tensorflow")

from commands import annot, needs_recorder

from annot import native
from annot.tf import by_ctypes, library

needs_compiler = pytest.mark.skipif(not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="no C compiler")
RANGES = ["block |fwd", "block |bwd"] * 3


def begin(folder: Path, *words: str, **environ: str) -> subprocess.Popen[str]:
    """Start tests/tf_roads.py."""
    return subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("tf_roads.py")), *words],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TF_ROADS_FOLDER": str(folder), **environ},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def finish(process: subprocess.Popen[str]) -> tuple[str, list[str]]:
    """Return the road and the ranges."""
    stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == 0, stderr
    road, _file, *texts = stdout.splitlines()
    return road, texts


@needs_recorder
@needs_compiler
@pytest.mark.skipif(native.fast() is None, reason="the C parts are not built or switched off")
def test_two_processes_compile_at_first_use(tmp_path: Path) -> None:
    """The library that one leaves is the one that all use; nothing else is left behind."""
    cache = tmp_path / "cache"
    processes = [begin(tmp_path, "hide", XDG_CACHE_HOME=str(cache)) for _ in range(2)]
    assert [finish(process) for process in processes] == [("compiled", RANGES)] * 2
    left = sorted(path.name for path in (cache / "annot").iterdir())
    assert len(left) == 2
    assert left[1] == "tf_ops.lock"
    assert re.fullmatch(r"tf_ops-\w+-[0-9a-f]{16}\.so", left[0])


@needs_recorder
@pytest.mark.parametrize("off", ["compiler", "native"])
def test_without_a_compiler_python_registers_them(tmp_path: Path, off: str) -> None:
    environ = {"PATH": str(tmp_path)} if off == "compiler" else {"ANNOT_DISABLE_NATIVE": "1"}
    cache = str(tmp_path / "cache")
    assert finish(begin(tmp_path, "hide", XDG_CACHE_HOME=cache, **environ)) == ("ctypes", RANGES)


def test_the_library_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compilers = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compilers is None:
        pytest.skip("no C compiler")
    first = library.compiled(tmp_path)
    assert first is not None
    assert ctypes.CDLL(str(first)).annot_tf_close_all() == 0
    written = first.stat().st_mtime_ns
    monkeypatch.setenv("PATH", str(tmp_path))  # without a compiler too
    assert library.compiled(tmp_path) == first
    assert first.stat().st_mtime_ns == written


def test_a_compiler_that_fails_is_said_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "cc"
    compiler.write_text("#!/bin/sh\necho no space left >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.warns(RuntimeWarning, match="no space left"):
        assert library.compiled(tmp_path / "cache") is None
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["tf_ops.lock"]


def test_both_twins_define_the_same_operations() -> None:
    source = (Path(native.__file__).parent / "tf_ops.c").read_text()
    for one in by_ctypes.DEFINITIONS:
        (text,) = re.findall(rf'{{"{one.name}",(.*?)shapes_', source, re.DOTALL)
        specs = re.findall(r'"([^"]*)"', text)
        assert specs == [*one.attributes, *one.inputs, *one.outputs, *one.host, *one.follow]


def test_both_twins_ask_tensorflow_for_the_same_functions() -> None:
    """But for the number of outputs, which the Python twin asks for when the graph is made: each call there is dear."""
    source = (Path(native.__file__).parent / "tf_ops.c").read_text()
    asked = set(re.findall(r"X\([\w *]+, (TF_\w+),", source))
    assert asked - {"TF_NumOutputs"} == set(by_ctypes.FUNCTIONS)


@pytest.mark.parametrize("mode", ["native", "python"])
def test_the_doctor_says_which_way_will_be_taken(tmp_path: Path, mode: str) -> None:
    """And does not import TensorFlow, which would take seconds."""
    environ = {"ANNOT_DISABLE_NATIVE": "1"} if mode == "python" else {"ANNOT_DISABLE_NATIVE": ""}
    done = annot("doctor", "--format", "json", cwd=tmp_path, PYTHONPROFILEIMPORTTIME="1", **environ)
    (check,) = [one for one in json.loads(done.stdout) if one["name"] == "TensorFlow ranges"]
    if mode == "python":
        assert "registered from Python" in check["text"]
        assert check["state"] == "note"
    elif native.tf_library() is not None:
        assert "prebuilt" in check["text"]
        assert check["state"] == "ok"
    assert b"annot.collect.checks" in done.stderr
    assert not re.search(rb"\| +tensorflow\b", done.stderr)
