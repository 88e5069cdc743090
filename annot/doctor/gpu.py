"""Checks of the GPU driver, the CUDA runtimes, and the CUDA versions of the frameworks."""

from __future__ import annotations

import ctypes
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from annot.doctor.finding import Check, Machine, folder_of
from annot.util.installed_tools import Nsys, has_gpu_driver, version_of

_DRIVER: Final = "/proc/driver/nvidia/version"
_INSTALL_DRIVER: Final = "sudo apt install nvidia-driver && sudo reboot"
_RUNTIME_PACKAGES: Final = ("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12", "nvidia-cuda-runtime-cu11")
# Nsight Systems in the first toolkit of each major CUDA version, from the release notes of CUDA 12.0 and 13.0. An
# older Nsight Systems predates that CUDA interface and may not record kernels.
_FIRST_NSYS: Final = {12: (2022, 4), 13: (2025, 3)}


@dataclass(frozen=True, slots=True)
class Build:
    """An installed framework."""

    name: str
    version: str
    cuda: tuple[int, ...] | None
    """CUDA version that it is built for, as (major, minor); None: without CUDA."""
    other: str | None = None
    """Other platform that it is built for, such as ROCm."""


def examine(machine: Machine, nsys: Nsys | None) -> list[Check]:
    """Check the driver and the software that must match it. `nsys` is the one that `annot run` uses."""
    cuda = _cuda_of_driver() if has_gpu_driver(machine.root) else None
    keras = Check("keras", "ok", version_of("keras") or "not installed")
    return [*checks_of(machine, cuda, list(builds()), nsys), keras]


def checks_of(machine: Machine, cuda: tuple[int, ...] | None, installed: list[Build], nsys: Nsys | None) -> list[Check]:
    """Compare the frameworks and Nsight Systems with the driver. `cuda` is the newest CUDA version that it supports."""
    there = has_gpu_driver(machine.root)
    names = {build.name for build in installed}
    missing = [Check(name, "ok", "not installed") for name in ("torch", "tensorflow") if name not in names]
    return [
        _driver(machine, cuda, there),
        *_runtime(machine),
        *(_framework(build, cuda, there) for build in installed),
        *missing,
        *_nsys_and_cuda(nsys, cuda),
    ]


def _cuda_of_driver() -> tuple[int, ...] | None:
    """Return the newest CUDA version that the driver supports, such as ``(12, 4)``; None if it does not respond."""
    number = ctypes.c_int()
    try:
        if ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(number)):
            return None
    except (OSError, AttributeError):
        return None
    return number.value // 1000, number.value % 1000 // 10


def builds() -> Iterator[Build]:
    """Yield the installed frameworks. Their CUDA versions are read from files, without an import."""
    if folder := folder_of("torch"):
        text = Machine().text(f"{folder}/version.py")
        hip = _assigned(text, "hip")
        yield Build("torch", version_of("torch") or "", _numbers(_assigned(text, "cuda")), hip and f"ROCm {hip}")
    if folder := folder_of("tensorflow"):
        text = Machine().text(f"{folder}/python/platform/build_info.py")
        version = next(filter(None, map(version_of, ("tensorflow", "tensorflow-cpu"))), "")
        cuda = re.search(r"'cuda_version', '([\d.]+)'", text)
        yield Build("tensorflow", version, _numbers(cuda[1] if cuda else None))


def _driver(machine: Machine, cuda: tuple[int, ...] | None, there: bool) -> Check:
    if not there:
        return Check("GPU driver", "ok", "no NVIDIA driver: profiles contain host times only")
    version = re.search(r"Kernel Module.*?\s(\d+\.\d+(?:\.\d+)*)\s", machine.text(_DRIVER))
    name = f"NVIDIA {version[1]}" if version else "an NVIDIA driver"
    if cuda is None:
        text = f"{name} is installed, but libcuda.so.1 does not respond: kernels cannot run"
        return Check("GPU driver", "problem", text, _INSTALL_DRIVER)
    return Check("GPU driver", "ok", f"{name}, supports CUDA up to {_dotted(cuda)}: kernels are traced")


def _runtime(machine: Machine) -> list[Check]:
    """Check the toolkits in ``/usr/local`` and the runtime packages of the frameworks."""
    toolkits = [path.parent for path in sorted(machine.root.glob("usr/local/cuda*/version.json"))]
    versions = {f"/{path.relative_to(machine.root)}": _toolkit(path) for path in toolkits if not path.is_symlink()}
    versions |= {f"the package {name}": version_of(name) for name in _RUNTIME_PACKAGES}
    text = "; ".join(f"{version} in {location}" for location, version in versions.items() if version)
    return [Check("CUDA runtime", "ok", text)] if text else []


def _toolkit(folder: Path) -> str | None:
    try:
        return str(json.loads((folder / "version.json").read_text(encoding="utf-8"))["cuda"]["version"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _framework(build: Build, cuda: tuple[int, ...] | None, there: bool) -> Check:
    name, text = build.name, build.version
    reinstall = f"pip install --force-reinstall {name}"
    if build.cuda is None:
        if there and build.other is None:
            remedy = "pip install --force-reinstall " + ("tensorflow[and-cuda]" if name == "tensorflow" else name)
            return Check(name, "note", f"{text} is built without CUDA and cannot use the GPU", remedy)
        return Check(name, "ok", f"{text}, for {build.other}" if build.other else text)
    text = f"{text}, for CUDA {_dotted(build.cuda)}"
    # CUDA minor version compatibility: a driver runs builds for later minor versions of its major version.
    if cuda is not None and build.cuda[0] > cuda[0]:
        if name == "torch":
            reinstall += f" --index-url https://download.pytorch.org/whl/cu{cuda[0]}{cuda[1]}"
        text += f", but the driver supports CUDA up to {_dotted(cuda)} only"
        return Check(name, "problem", text, f"{_INSTALL_DRIVER}  # or: {reinstall}")
    return Check(name, "ok", text)


def _nsys_and_cuda(nsys: Nsys | None, cuda: tuple[int, ...] | None) -> list[Check]:
    if nsys is None or cuda is None or nsys.version >= _FIRST_NSYS.get(cuda[0], ()):
        return []
    first = _dotted(_FIRST_NSYS[cuda[0]])
    text = f"{nsys.version_text} is older than CUDA {_dotted(cuda)} of the driver and may not record kernels"
    remedy = f"sudo apt install nsight-systems-cli  # {first} or later, from NVIDIA's repository"
    return [Check("Nsight Systems and CUDA", "note", text, remedy)]


def _assigned(text: str, name: str) -> str | None:
    match = re.search(rf"^{name}\b[^=\n]*= '([^']+)'", text, re.MULTILINE)
    return match[1] if match else None


def _numbers(text: str | None) -> tuple[int, ...] | None:
    return tuple(map(int, re.findall(r"\d+", text)[:2])) if text else None


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
