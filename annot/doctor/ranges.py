"""Checks of range recording: environment variables, annot's C extensions, the nvtx package, and a self-test."""

from __future__ import annotations

import importlib.util
import mmap
import os
import shutil
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Final

from annot import native
from annot.collect.collectors import choose, collect
from annot.doctor.finding import Check, Machine, State, folder_of
from annot.errors import AnnotError
from annot.util.installed_tools import Nsys, loses_nvtx_package, nvtx_release, version_of

_SELF_TEST: Final = """
import annot
for name in ("one", "two", "three"):
    with annot.trace(name):
        pass
"""
_SELF_TEST_RANGES: Final = 3
_LEAST_NVTX: Final = (0, 2, 11)
"""Minimum version in pyproject.toml."""
_SWITCHES: Final = ("ANNOT_DISABLE", "NVTX_DISABLE")
# Each variable names a library that NVTX or CUDA loads into the process. Only one library can be loaded.
_INJECTIONS: Final = {
    "NVTX_INJECTION64_PATH": "annot run overrides it",
    "CUDA_INJECTION64_PATH": "it receives the kernels, and Nsight Systems or torch.profiler may record none",
}
_LIBRARY: Final = "libtensorflow_framework.so.2"
_REQUIRED: Final = {
    "NVTX (GPU builds only)": b"NVTX_INJECTION64_PATH",  # every NVTX client reads this environment variable
    "the symbol that enables its annotations": b"_ZN3tsl8profiler15AnnotationStack6EnableEb",
}
"""Features that TensorFlow's own ranges need, and byte strings that its library contains if it has them."""


def examine(machine: Machine, nsys: Nsys | None) -> list[Check]:
    """Check everything about ranges except the self-test. `nsys` is the one that `annot run` uses."""
    built = {
        "recorder": any(Path(native.__file__).parent.glob("_recorder*.so")),
        "fast call path": importlib.util.find_spec("annot.native._emit") is not None,
        "fast reading": importlib.util.find_spec("annot.native._tables") is not None,
    }
    native_parts = [_native_part(name, is_built) for name, is_built in built.items()]
    return [*switches(machine), *native_parts, nvtx_package(version_of("nvtx"), nsys), *_tensorflow_modes()]


def switches(machine: Machine) -> list[Check]:
    """Check for variables that disable ranges or pass them to another tool."""
    environ = machine.environ
    checks = [
        Check("environment", "problem", f"{name}={environ[name]} disables annot's ranges", f"unset {name}")
        for name in filter(machine.has_switch, _SWITCHES)
    ]
    if machine.has_switch("ANNOT_DISABLE_NATIVE"):
        text = "ANNOT_DISABLE_NATIVE disables the C extensions: ranges cost more, and reports take longer"
        checks.append(Check("environment", "note", text, "unset ANNOT_DISABLE_NATIVE"))
    for name, consequence in _INJECTIONS.items():
        tool = environ.get(name)
        # The loader searches a bare name in its library paths.
        if tool and ("/" not in tool or machine.exists(os.path.abspath(tool))):
            text = f"{name} is already set to {tool}: {consequence}"
            checks.append(Check("environment", "note", text, f"unset {name}"))
        elif tool:
            checks.append(Check("environment", "problem", f"{name} is {tool}, which does not exist", f"unset {name}"))
    return checks or [Check("environment", "ok", "no variable disables ranges")]


def _native_part(name: str, built: bool) -> Check:
    if built:
        return Check(name, "ok", "built")
    if name != "recorder" and sysconfig.get_config_var("Py_GIL_DISABLED"):
        return Check(name, "note", "not built: annot uses its Python fallback on free-threaded Python")
    compiler, build = next(filter(shutil.which, ("cc", "gcc", "clang")), None), native.build_command()
    if compiler:
        return Check(name, "note", f"not built, although a compiler is installed ({compiler})", build)
    return Check(name, "note", "not built: a C compiler is missing", f"sudo apt install gcc && {build}")


def nvtx_package(version: str | None, nsys: Nsys | None) -> Check:
    """Check whether this version of the `nvtx` package works with annot and Nsight Systems. None: not installed."""
    if version is None:
        remedy = f"{sys.executable} -m pip install nvtx"
        return Check("nvtx package", "note", "not installed. annot needs it if its C extension is not built", remedy)
    if nvtx_release(version) < _LEAST_NVTX:
        text = f"{version} is too old. annot needs a newer version if its C extension is not built"
        remedy = f"{sys.executable} -m pip install 'nvtx>={'.'.join(map(str, _LEAST_NVTX))},!=0.2.12'"
        return Check("nvtx package", "note", text, remedy)
    if nsys is None or not loses_nvtx_package(nsys, version):
        return Check("nvtx package", "ok", version)
    text = (
        f"{version} calls nvtxDomainIsEnabled, which Nsight Systems {nsys.version_text} does not implement. "
        "annot's ranges are recorded; ranges of other libraries that use the package are lost"
    )
    return Check("nvtx package", "note", text, f"{sys.executable} -m pip install nvtx==0.2.11")


def _tensorflow_modes() -> list[Check]:
    if importlib.util.find_spec("tensorflow") is None:
        return []
    problem = None
    if Machine().has_switch("ANNOT_DISABLE_NATIVE"):
        problem = "no ranges, because ANNOT_DISABLE_NATIVE is set"
    elif native.emitter() is None or native.tf_library() is None:
        problem = "no ranges, because annot's C extensions are not built"
    graphs = problem or "ranges from annot's C library"
    text = f"graphs: {graphs}; XLA: {_names_mode()}; eager mode: ranges from Python"
    return [Check("TensorFlow ranges", "note" if problem else "ok", text, native.build_command() if problem else None)]


def self_test(name: str) -> Check:
    """Record three ranges as `annot run` does with this collector, and count the recorded ranges."""
    command = [sys.executable, "-c", _SELF_TEST]
    with tempfile.TemporaryDirectory(prefix="annot-doctor-") as folder:
        try:
            collector = choose(name)
            if collector.name == "recorder" and importlib.util.find_spec("polars") is None:
                text = "annot run uses recorder; without polars, another machine reports what it records"
                return Check("self-test", "note", text)
            outcome = collect(command, collector, out=Path(folder) / f"test{collector.suffix}")
        except AnnotError as error:
            return Check("self-test", "problem", f"annot run fails: {error}", _alternative(name))
    used = f"annot run uses {collector.name}"
    if outcome.collected is None or outcome.status:
        reason = outcome.problem or f"exit status {outcome.status} of the test script"
        return Check("self-test", "problem", f"{used}, which failed: {reason}", _alternative(collector.name))
    recorded = outcome.collected.ranges
    state: State = "ok" if recorded == _SELF_TEST_RANGES else "problem"
    remedy = None if state == "ok" else _alternative(collector.name)
    return Check("self-test", state, f"{used}: {recorded} of {_SELF_TEST_RANGES} ranges recorded", remedy)


def _alternative(failed: str) -> str:
    """Return the command to try after a collector failed. The recorder needs only annot's C extension."""
    if off := [*filter(Machine().has_switch, _SWITCHES)]:
        return f"unset {' '.join(off)}"
    if failed == "recorder" or native.recorder_library() is None:
        return native.build_command()
    return "annot run --collector recorder -- python train.py"


def _names_mode() -> str:
    """Return whether TensorFlow emits its own ranges, the only ranges under XLA, as text."""
    folder = folder_of("tensorflow")
    if folder is None or not (folder / _LIBRARY).exists():
        return f"no ranges, because {_LIBRARY} was not found"
    library = folder / _LIBRARY
    try:
        with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            missing = [feature for feature, symbol in _REQUIRED.items() if content.find(symbol) < 0]
    except (OSError, ValueError) as error:
        return f"no ranges, because {library} cannot be read: {error}"
    if missing:
        return f"no ranges, because this TensorFlow lacks {' and '.join(missing)}"
    return "ranges from TensorFlow"
