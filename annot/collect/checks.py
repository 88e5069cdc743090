"""The known reasons for missing ranges, looked for one by one on this machine; `annot doctor` shows them."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from annot import native
from annot.collect import choose, collect
from annot.collect.tensorflow_roads import names_road, operations_road
from annot.collect.tools import Nsys, find_nsys, has_gpu_driver, loses_nvtx_package
from annot.errors import AnnotError

__all__ = ["Check", "State", "examine"]

State = Literal["ok", "note", "problem"]
_FRAMEWORKS = ("torch", "tensorflow", "keras")
_SELF_TEST = """
import annot
for name in ("one", "two", "three"):
    with annot.trace(name):
        pass
"""
_SELF_TEST_RANGES = 3
_BUILD_AGAIN = "pip install --force-reinstall --no-deps annot"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at."""

    name: str
    state: State
    """``problem``: ranges will be missing; ``note``: some may be, or something works less well."""
    text: str
    mend: str | None = None
    """What to type to mend it."""


def examine(collector: str = "auto") -> list[Check]:
    """Look at everything that decides whether `annot run` would record ranges here, and try it.

    Args:
        collector: what `annot run` would be told to use.
    """
    nsys = find_nsys()
    return [
        *_switches(),
        *_native_parts(),
        _nsys(nsys),
        *_import_of(nsys),
        _nvtx_package(nsys),
        *map(_framework, _FRAMEWORKS),
        *_tensorflow_roads(),
        _driver(),
        _self_test(collector),
    ]


def _switches() -> list[Check]:
    checks = []
    for name in ("ANNOT_DISABLE", "NVTX_DISABLE"):
        if os.environ.get(name, "") not in ("", "0"):
            text = f"{name}={os.environ[name]} switches annot's ranges off"
            checks.append(Check("environment", "problem", text, f"unset {name}"))
    if os.environ.get("ANNOT_DISABLE_NATIVE", "") not in ("", "0"):
        text = "ANNOT_DISABLE_NATIVE switches the fast C parts off: ranges cost more, reports take longer"
        checks.append(Check("environment", "note", text, "unset ANNOT_DISABLE_NATIVE"))
    tool = os.environ.get("NVTX_INJECTION64_PATH")
    if tool and not Path(tool).exists():
        text = f"NVTX_INJECTION64_PATH names {tool}, which is not there"
        checks.append(Check("environment", "problem", text, "unset NVTX_INJECTION64_PATH"))
    elif tool:
        text = f"NVTX_INJECTION64_PATH already names a tool, {tool}; annot run replaces it"
        checks.append(Check("environment", "note", text))
    return checks or [Check("environment", "ok", "no variable switches ranges off")]


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
    compiler = next(filter(shutil.which, ("cc", "gcc", "clang")), None)
    if compiler:
        return Check(name, "note", f"not built, though there is a compiler ({compiler})", _BUILD_AGAIN)
    return Check(name, "note", "not built: no C compiler", f"sudo apt install gcc && {_BUILD_AGAIN}")


def _nsys(nsys: Nsys | None) -> Check:
    if nsys is not None:
        return Check("Nsight Systems", "ok", f"{nsys.version_text} at {nsys.path}")
    named = os.environ.get("ANNOT_NSYS")
    if named:
        text = f"ANNOT_NSYS names {named}, which does not answer"
        return Check("Nsight Systems", "note", text, "unset ANNOT_NSYS")
    text = "not found; GPU times need it or --collector torch, ranges do not"
    return Check("Nsight Systems", "note", text, "sudo apt install nsight-systems")


def _import_of(nsys: Nsys | None) -> list[Check]:
    if nsys is None:
        return []
    if nsys.imports_by_itself:
        return [Check("import of reports", "ok", "Nsight Systems finds its importer")]
    importer = nsys.importer()
    if importer is None:
        text = "the part that turns captures into reports is missing"
        return [Check("import of reports", "problem", text, "sudo apt install nsight-systems")]
    text = f"Nsight Systems does not find its importer; annot calls {importer}"
    return [Check("import of reports", "note", text, nsys.link_command())]


def _nvtx_package(nsys: Nsys | None) -> Check:
    version = _version("nvtx")
    if version is None:
        mend = f"{sys.executable} -m pip install nvtx"
        return Check("nvtx package", "note", "not installed; without annot's C part it is needed", mend)
    if nsys is None or not loses_nvtx_package(nsys, version):
        return Check("nvtx package", "ok", version)
    text = (
        f"{version} asks nvtxDomainIsEnabled, which Nsight Systems {nsys.version_text} does not implement: "
        "annot's own ranges get through, those of other libraries that use the package do not"
    )
    return Check("nvtx package", "note", text, f"{sys.executable} -m pip install nvtx==0.2.11")


def _framework(name: str) -> Check:
    version = _version(name) or _version(f"{name}-cpu")
    if version is None:
        return Check(name, "ok", "not installed")
    if name == "torch" and "+cpu" in version and has_gpu_driver():
        return Check(name, "note", f"{version} cannot use the GPU", "pip install torch  # a CUDA build")
    return Check(name, "ok", version)


def _tensorflow_roads() -> list[Check]:
    if importlib.util.find_spec("tensorflow") is None:
        return []
    operations, fast = operations_road()
    text = f"graphs: {operations}; under XLA: {names_road()}; eager mode: from Python"
    return [Check("TensorFlow ranges", "ok" if fast else "note", text, None if fast else _BUILD_AGAIN)]


def _driver() -> Check:
    if has_gpu_driver():
        return Check("GPU driver", "ok", "an NVIDIA driver is there: kernels will be traced")
    return Check("GPU driver", "ok", "no NVIDIA driver: profiles hold host times only")


def _self_test(name: str) -> Check:
    command = [sys.executable, "-c", _SELF_TEST]
    with tempfile.TemporaryDirectory(prefix="annot-doctor-") as folder:
        try:
            collector = choose(name)
            outcome = collect(command, collector, out=Path(folder) / f"test{collector.suffix}")
        except AnnotError as error:
            return Check("self-test", "problem", f"annot run would fail: {error}")
    if outcome.collected is None or outcome.status:
        reason = outcome.problem or f"the test script ended with status {outcome.status}"
        return Check("self-test", "problem", f"annot run would use {collector.name}, which failed: {reason}")
    arrived = outcome.collected.ranges
    state: State = "ok" if arrived == _SELF_TEST_RANGES else "problem"
    recorded = f"{arrived} of {_SELF_TEST_RANGES} ranges recorded"
    return Check("self-test", state, f"annot run would use {collector.name}: {recorded}")


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
