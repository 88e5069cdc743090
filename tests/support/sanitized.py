"""Run a program with the C call path built with AddressSanitizer and UndefinedBehaviorSanitizer."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest

from annot import native

SOURCES = (
    "client.c", "around.c", "torch_notes.c", "torch_calls.c", "torch_events.c", "torch_walk.c", "torch_graph.c",
)  # fmt: skip
# Stack variables stay uninstrumented: greenlets copy stacks including ASan's redzones.
FLAGS = (
    "-O1", "-g", "-std=gnu11", "-shared", "-fPIC", "-fsanitize=address,undefined", "-fno-sanitize-recover=all",
    "--param=asan-stack=0",
)  # fmt: skip
PRELUDE = """\
import importlib.util, sys
spec = importlib.util.spec_from_file_location("annot.native._emit", {library!r})
fast = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(fast)
"""


def run_sanitized(program: str, folder: Path, *, limit_s: int = 300) -> str:
    """Return the output of `program`. Fails on an invalid memory access, and skips the test without sanitizers."""
    library, runtime = _built()
    environ = {
        **os.environ,
        "LD_PRELOAD": runtime,
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
        "PYTHONMALLOC": "malloc",  # pymalloc would hide use after free
        "PYTHONPATH": os.pathsep.join(sys.path),
        "ANNOT_ENABLE": "1",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE.format(library=library) + program],
        cwd=folder, env=environ, capture_output=True, text=True, timeout=limit_s, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    return done.stdout


@cache
def _built() -> tuple[str, str]:
    """Return the library, and the runtime of the sanitizer, which must be preloaded."""
    from annot.native._build import nvtx_include_dirs

    compiler = next(filter(None, map(shutil.which, ("gcc", "cc"))), None)
    if compiler is None:
        pytest.skip("no C compiler")
    folder = Path(native.__file__).parent / "emit"
    library = Path(mkdtemp(prefix="annot-sanitized-")) / "_emit.abi3.so"
    include = [f"-I{path}" for path in (*nvtx_include_dirs(), sysconfig.get_paths()["include"])]
    sources = [str(folder / name) for name in SOURCES]
    command = [compiler, *FLAGS, "-DPy_LIMITED_API=0x030B0000", *include, *sources, "-o", str(library), "-ldl"]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    if built.returncode:
        pytest.skip(f"{compiler} cannot build with sanitizers: {built.stderr.strip()[-300:]}")
    runtime = subprocess.run([compiler, "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    return str(library), os.path.realpath(runtime.stdout.strip())
