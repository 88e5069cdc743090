"""How the library gets into a process, and what there is without it."""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

tf = pytest.importorskip("tensorflow")

from commands import annot, needs_recorder  # noqa: E402
from recorded import while_held  # noqa: E402
from sanitized import ADDRESS, run_tests, sanitized_package  # noqa: E402

from annot import native  # noqa: E402
from annot.tf import library, operation_owners  # noqa: E402

COMPILER = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C compiler")
needs_native = pytest.mark.skipif(native.emitter() is None, reason="the C parts are not built or switched off")
RANGES = ["block |fwd", "block |bwd"] * 3


def begin(folder: Path, *words: str, **environ: str) -> subprocess.Popen[str]:
    """Start tests/support/tf_modes.py."""
    return subprocess.Popen(
        [sys.executable, str(Path(__file__).parents[1] / "support/tf_modes.py"), *words],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TF_MODES_FOLDER": str(folder), **environ},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def finish(process: subprocess.Popen[str]) -> tuple[str, list[str], list[str], list[str]]:
    """Return the mode, the ranges of the graph and of eager mode, and the warnings."""
    stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == 0, stderr
    mode, graph, eager, warnings = json.loads(stdout.splitlines()[-1])
    return mode, graph, eager, warnings


@needs_recorder
@needs_native
@pytest.mark.skipif(native.tf_library() is None, reason="the library was not built")
def test_the_library_gives_graphs_ranges(tmp_path: Path) -> None:
    assert finish(begin(tmp_path)) == ("loaded", RANGES, RANGES, [])


@pytest.mark.slow
@needs_recorder
def test_without_the_c_parts_graphs_have_no_ranges(tmp_path: Path) -> None:
    """A warning says so once; eager mode has them."""
    mode, graph, eager, warnings = finish(begin(tmp_path, ANNOT_DISABLE_NATIVE="1"))
    assert (graph, eager) == ([], RANGES)
    assert "TensorFlow graphs cannot have ranges" in mode
    assert warnings == [mode]


@pytest.mark.slow
@needs_recorder
@needs_compiler
@needs_native
def test_beside_another_graph_optimizer_graphs_have_no_ranges(tmp_path: Path) -> None:
    """TensorFlow takes one plug-in of a device type, and aborts the process on a second."""
    assert COMPILER is not None
    source, other = tmp_path / "other.c", tmp_path / "libother.so"
    source.write_text("void TF_InitGraph(void *registration, void *status) {}\n")
    subprocess.run([COMPILER, "-shared", "-fPIC", str(source), "-o", str(other)], check=True)
    mode, graph, eager, warnings = finish(begin(tmp_path, "other", str(other)))
    assert (graph, eager) == ([], RANGES)
    assert str(other) in mode
    assert warnings == [mode]


@needs_native
def test_what_uses_the_library_ends_with_its_last_user() -> None:
    loaded = library.load()
    assert not isinstance(loaded, str)
    assert_ends_with_its_last_user(
        lambda user: library.switch(user, on=True), lambda user: library.switch(user, on=False), loaded.users
    )


@needs_native
def test_graphs_stay_unread_without_a_user() -> None:
    """TensorFlow's interface keeps a plug-in for ever; annot's calls Python only while a block is open."""
    loaded = library.load()
    assert not isinstance(loaded, str)
    seen: list[int] = []

    def count(_optimizer: object, _graph: object, length: int, *_: object) -> int:
        seen.append(length)
        return 0

    def runs() -> int:
        seen.clear()
        x = tf.ones([4])
        assert tf.function(lambda x: tf.sin(tf.cos(x) + tf.tan(x)) * x)(x).shape == [4]
        return len(seen)

    callback, others = type(loaded.function)(count), set(loaded.users)
    state = ctypes.cast(ctypes.pythonapi.PyGILState_GetThisThreadState, ctypes.c_void_p)
    register = loaded._library.annot_tf_rewrite
    try:
        register(ctypes.cast(callback, ctypes.c_void_p), state)
        library.switch("a user", on=True)
        assert runs() > 0
        for user in ("a user", *others):
            library.switch(user, on=False)
        assert runs() == 0
    finally:
        register(ctypes.cast(loaded.function, ctypes.c_void_p), state)
        for user in others:
            library.switch(user, on=True)


def test_what_notes_owners_ends_with_its_last_user() -> None:
    assert_ends_with_its_last_user(operation_owners.install, operation_owners.remove, operation_owners._users)
    assert operation_owners._patches.live == bool(operation_owners._users)


def assert_ends_with_its_last_user(
    begin: Callable[[object], None], end: Callable[[object], None], users: set[object]
) -> None:
    """An interrupt may keep the end of a use from being noted, and it runs once more."""
    before, both = set(users), ["first", "second"]
    for user in both:
        begin(user)
    for left, user in ((1, "second"), (0, "first")):
        for _ in range(2):
            end(user)
        assert len(users - before) == left
    assert users == before


@pytest.mark.parametrize("mode", ["native", pytest.param("python", marks=pytest.mark.slow)])
@pytest.mark.slow
def test_the_doctor_says_which_way_will_be_taken(tmp_path: Path, mode: str) -> None:
    """And does not import TensorFlow, which would take seconds."""
    environ = {"ANNOT_DISABLE_NATIVE": "1"} if mode == "python" else {"ANNOT_DISABLE_NATIVE": ""}
    done = annot("doctor", "--format", "json", cwd=tmp_path, PYTHONPROFILEIMPORTTIME="1", **environ)
    (check,) = [one for one in json.loads(done.stdout) if one["name"] == "TensorFlow ranges"]
    if mode == "python":
        assert "no ranges" in check["text"]
        assert check["state"] == "note"
    elif native.tf_library() is not None:
        assert "C library" in check["text"]
        assert check["state"] == "ok"
    assert b"annot.doctor.checks" in done.stderr
    assert not re.search(rb"\| +tensorflow\b", done.stderr)


def build_caller(folder: Path, *flags: str) -> str:
    """Compile the C library into a program that calls it as TensorFlow does. Skip the test if the flags are unknown."""
    parts, program = Path(native.__file__).parent / "tf_ops", str(folder / "caller")
    sources = [Path(__file__).parents[1] / "support/tf_kernel_caller.c", parts / "operations.c", parts / "graphs.c"]
    words = [COMPILER, "-O1", "-g", "-std=gnu11", "-rdynamic", "-pthread", *flags, *map(str, sources), "-o", program]
    built = subprocess.run([*words, "-ldl"], capture_output=True, text=True, check=False)
    if built.returncode:
        pytest.skip(f"{COMPILER} cannot build with {flags}: {built.stderr.strip()[-200:]}")
    return program


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_the_library_under_sanitizers(tmp_path: Path, sanitizer: str) -> None:
    """Hostile attributes, shapes and graphs from four threads: no bad access, leak or race; all ranges are closed."""
    program = build_caller(tmp_path, f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all")
    done = subprocess.run([program], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@needs_compiler
def test_graphs_of_tensorflow_under_sanitizers() -> None:
    """Loops, branches, functions, sizes known only at run time: no bad access by operations that TensorFlow runs."""
    # A slow operation that ends a range can overlap the next operation, which does not wait for it.
    timed = "follow_each_other", "lie_where_their", "around_a_loop", "is_called_twice"
    package = sanitized_package(ADDRESS, ("_tf_ops",))
    run_tests(("tensorflow/test_graphs", "tensorflow/test_sizes"), timed, **package)


@needs_compiler
def test_forks_while_graphs_run(tmp_path: Path) -> None:
    """Children of forks during the critical sections of four threads close ranges and run graphs of their own."""
    program, environ = build_caller(tmp_path), {**os.environ, **while_held("caller", tmp_path / "held")}
    done = subprocess.run([program, "20"], env=environ, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert int((tmp_path / "held").read_text()) > 10
