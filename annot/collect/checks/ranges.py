"""Whether ranges would get through: switches, tools already named, annot's C parts, the nvtx package, and a try."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Final

from annot import native
from annot.collect import choose, collect
from annot.collect.checks.finding import Check, Machine, State, version_of
from annot.collect.tensorflow_roads import names_road, operations_road
from annot.collect.tools import Nsys, loses_nvtx_package, nvtx_release
from annot.errors import AnnotError

__all__ = ["examine", "nvtx_package", "self_test", "switches"]

_SELF_TEST: Final = """
import annot
for name in ("one", "two", "three"):
    with annot.trace(name):
        pass
"""
_SELF_TEST_RANGES: Final = 3
_LEAST_NVTX: Final = (0, 2, 11)
"""As in pyproject.toml."""
_SWITCHES: Final = ("ANNOT_DISABLE", "NVTX_DISABLE")
# Each names a library that NVTX or CUDA loads into a process; there is room for one.
_INJECTIONS: Final = {
    "NVTX_INJECTION64_PATH": "annot run replaces it",
    "CUDA_INJECTION64_PATH": "kernels go to that tool, and Nsight Systems or torch.profiler may get none",
}


def examine(machine: Machine, nsys: Nsys | None) -> list[Check]:
    """Look at everything about ranges but the try itself."""
    return [*switches(machine), *_native_parts(), nvtx_package(version_of("nvtx"), nsys), *_tensorflow_roads()]


def switches(machine: Machine) -> list[Check]:
    """Look for variables that switch ranges off, or give them to another tool."""
    environ = machine.environ
    checks = [
        Check("environment", "problem", f"{name}={environ[name]} switches annot's ranges off", f"unset {name}")
        for name in _SWITCHES
        if environ.get(name, "") not in ("", "0")
    ]
    if environ.get("ANNOT_DISABLE_NATIVE", "") not in ("", "0"):
        text = "ANNOT_DISABLE_NATIVE switches the fast C parts off: ranges cost more, reports take longer"
        checks.append(Check("environment", "note", text, "unset ANNOT_DISABLE_NATIVE"))
    for name, consequence in _INJECTIONS.items():
        if tool := environ.get(name):
            checks.append(_injection(machine, name, tool, consequence))
    return checks or [Check("environment", "ok", "no variable switches ranges off")]


def _injection(machine: Machine, name: str, tool: str, consequence: str) -> Check:
    if "/" not in tool or machine.exists(os.path.abspath(tool)):  # a bare name is looked up as any library
        return Check("environment", "note", f"{name} already names a tool, {tool}; {consequence}", f"unset {name}")
    return Check("environment", "problem", f"{name} names {tool}, which is not there", f"unset {name}")


def _native_parts() -> list[Check]:
    built = {
        "recorder": any(Path(native.__file__).parent.glob("_recorder*.so")),
        "fast call path": importlib.util.find_spec("annot.native._fast") is not None,
        "fast reading": importlib.util.find_spec("annot.native._tables") is not None,
    }
    return [_native_part(name, there) for name, there in built.items()]


def _native_part(name: str, built: bool) -> Check:
    if built:
        return Check(name, "ok", "built")
    if name != "recorder" and sysconfig.get_config_var("Py_GIL_DISABLED"):
        return Check(name, "note", "not built: this Python is free-threaded, and annot uses its Python fallback")
    compiler = next(filter(shutil.which, ("cc", "gcc", "clang")), None)
    if compiler:
        return Check(name, "note", f"not built, though there is a compiler ({compiler})", native.build_command())
    return Check(name, "note", "not built: no C compiler", f"sudo apt install gcc && {native.build_command()}")


def nvtx_package(version: str | None, nsys: Nsys | None) -> Check:
    """Hold the `nvtx` package against what annot and Nsight Systems take.

    Args:
        version: of the package; None: it is not installed.
        nsys: the Nsight Systems that `annot run` would use.
    """
    if version is None:
        mend = f"{sys.executable} -m pip install nvtx"
        return Check("nvtx package", "note", "not installed; without annot's C part it is needed", mend)
    if nvtx_release(version) < _LEAST_NVTX:
        text = f"{version} is older than annot needs: without annot's C part no range can be made"
        mend = f"{sys.executable} -m pip install 'nvtx>={'.'.join(map(str, _LEAST_NVTX))},!=0.2.12'"
        return Check("nvtx package", "note", text, mend)
    if nsys is None or not loses_nvtx_package(nsys, version):
        return Check("nvtx package", "ok", version)
    text = (
        f"{version} asks nvtxDomainIsEnabled, which Nsight Systems {nsys.version_text} does not implement: "
        "annot's own ranges get through, those of other libraries that use the package do not"
    )
    return Check("nvtx package", "note", text, f"{sys.executable} -m pip install nvtx==0.2.11")


def _tensorflow_roads() -> list[Check]:
    if importlib.util.find_spec("tensorflow") is None:
        return []
    operations, fast = operations_road()
    text = f"graphs: {operations}; under XLA: {names_road()}; eager mode: from Python"
    return [Check("TensorFlow ranges", "ok" if fast else "note", text, None if fast else native.build_command())]


def self_test(name: str) -> Check:
    """Record three ranges as `annot run` would, and count what arrived.

    Args:
        name: the collector, or ``auto``.
    """
    command = [sys.executable, "-c", _SELF_TEST]
    with tempfile.TemporaryDirectory(prefix="annot-doctor-") as folder:
        try:
            collector = choose(name)
            outcome = collect(command, collector, out=Path(folder) / f"test{collector.suffix}")
        except AnnotError as error:
            return Check("self-test", "problem", f"annot run would fail: {error}", _other_way(name))
    used = f"annot run would use {collector.name}"
    if outcome.collected is None or outcome.status:
        reason = outcome.problem or f"the test script ended with status {outcome.status}"
        return Check("self-test", "problem", f"{used}, which failed: {reason}", _other_way(collector.name))
    arrived = outcome.collected.ranges
    state: State = "ok" if arrived == _SELF_TEST_RANGES else "problem"
    mend = None if state == "ok" else _other_way(collector.name)
    return Check("self-test", state, f"{used}: {arrived} of {_SELF_TEST_RANGES} ranges recorded", mend)


def _other_way(failed: str) -> str:
    """Return what to try where a collector does not work; the recorder needs nothing but annot's C part."""
    off = [name for name in _SWITCHES if os.environ.get(name, "") not in ("", "0")]
    if off:
        return f"unset {' '.join(off)}"
    if failed == "recorder" or native.recorder_library() is None:
        return native.build_command()
    return "annot run --collector recorder -- python train.py"
