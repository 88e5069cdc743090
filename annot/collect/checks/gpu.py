"""The driver, the CUDA that it brings, the CUDA runtimes that are installed, and what frameworks were built for."""

from __future__ import annotations

import ctypes
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Final

from annot.collect.checks.finding import Check, Machine, version_of
from annot.collect.tools import Nsys, has_gpu_driver

__all__ = ["Build", "builds", "checks_of", "cuda_of_driver", "examine"]

_DRIVER: Final = "/proc/driver/nvidia/version"
_INSTALL_DRIVER: Final = "sudo apt install nvidia-driver && sudo reboot"
_RUNTIME_PACKAGES: Final = ("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12", "nvidia-cuda-runtime-cu11")
# The Nsight Systems that NVIDIA ships with the first toolkit of each major version of CUDA, from the toolkits' release
# notes (CUDA 12.0, 13.0): an older one was made before that interface to CUDA and may record no kernels.
_FIRST_NSYS: Final = {12: (2022, 4), 13: (2025, 3)}


@dataclass(frozen=True, slots=True)
class Build:
    """A framework that is installed.

    Args:
        name: of its package.
        version: as its package says.
        cuda: what it was built for, as major and minor; None: no CUDA.
        other: another device that it was built for, such as ROCm.
    """

    name: str
    version: str
    cuda: tuple[int, ...] | None
    other: str | None = None


def examine(machine: Machine, nsys: Nsys | None) -> list[Check]:
    """Look at the driver and at everything that has to fit it."""
    cuda = cuda_of_driver() if has_gpu_driver(machine.root) else None
    return [*checks_of(machine, cuda, list(builds()), nsys), _keras()]


def checks_of(machine: Machine, cuda: tuple[int, ...] | None, found: list[Build], nsys: Nsys | None) -> list[Check]:
    """Hold what is installed against the driver.

    Args:
        machine: where the driver's files are.
        cuda: the newest CUDA that the driver can run, as it says itself; None: it does not say, or there is none.
        found: the frameworks.
        nsys: the Nsight Systems that `annot run` would use.
    """
    there = has_gpu_driver(machine.root)
    missing = [Check(name, "ok", "not installed") for name in ("torch", "tensorflow") if not _has(found, name)]
    return [
        _driver(machine, cuda, there),
        *_runtime(machine),
        *(_framework(build, cuda, there) for build in found),
        *missing,
        *_nsys_and_cuda(nsys, cuda),
    ]


def cuda_of_driver() -> tuple[int, ...] | None:
    """Return the newest CUDA that the driver on this machine runs, as ``(12, 4)``; None if it does not answer."""
    number = ctypes.c_int()
    try:
        if ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(number)):
            return None
    except (OSError, AttributeError):
        return None
    return number.value // 1000, number.value % 1000 // 10


def builds() -> Iterator[Build]:
    """Yield the frameworks that are installed; what they were built for is read from their files, without an import."""
    if folder := _folder("torch"):
        said = _text(folder / "version.py")
        hip = _assigned(said, "hip")
        yield Build("torch", version_of("torch") or "", _numbers(_assigned(said, "cuda")), hip and f"ROCm {hip}")
    if folder := _folder("tensorflow"):
        said = _text(folder / "python/platform/build_info.py")
        version = next(filter(None, map(version_of, ("tensorflow", "tensorflow-cpu"))), "")
        cuda = re.search(r"'cuda_version', '([\d.]+)'", said)
        yield Build("tensorflow", version, _numbers(cuda[1] if cuda else None))


def _has(found: list[Build], name: str) -> bool:
    return any(build.name == name for build in found)


def _keras() -> Check:
    return Check("keras", "ok", version_of("keras") or "not installed")


def _driver(machine: Machine, cuda: tuple[int, ...] | None, there: bool) -> Check:
    if not there:
        return Check("GPU driver", "ok", "no NVIDIA driver: profiles hold host times only")
    version = re.search(r"Kernel Module.*?\s(\d+\.\d+(?:\.\d+)*)\s", machine.text(_DRIVER))
    name = f"NVIDIA {version[1]}" if version else "an NVIDIA driver"
    if cuda is None:
        text = f"{name} is there, but its library libcuda.so.1 does not answer: no kernel can run"
        return Check("GPU driver", "problem", text, _INSTALL_DRIVER)
    return Check("GPU driver", "ok", f"{name}, for CUDA up to {_dotted(cuda)}: kernels will be traced")


def _runtime(machine: Machine) -> list[Check]:
    """The toolkits in ``/usr/local``, and the runtime that frameworks bring as a package."""
    toolkits = [path.parent for path in sorted(machine.root.glob("usr/local/cuda*/version.json"))]
    found = {f"/{folder.relative_to(machine.root)}": _toolkit(folder) for folder in toolkits if not folder.is_symlink()}
    found |= {f"the package {name}": version_of(name) for name in _RUNTIME_PACKAGES}
    text = "; ".join(f"{version} in {place}" for place, version in found.items() if version)
    return [Check("CUDA runtime", "ok", text)] if text else []


def _toolkit(folder: Path) -> str | None:
    try:
        return str(json.loads((folder / "version.json").read_text(encoding="utf-8"))["cuda"]["version"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _framework(build: Build, cuda: tuple[int, ...] | None, there: bool) -> Check:
    name, text = build.name, build.version
    again = f"pip install --force-reinstall {name}"
    if build.cuda is None:
        if there and build.other is None:
            mend = "pip install --force-reinstall " + ("tensorflow[and-cuda]" if name == "tensorflow" else name)
            return Check(name, "note", f"{text} cannot use the GPU: it was built without CUDA", mend)
        return Check(name, "ok", f"{text}, for {build.other}" if build.other else text)
    text = f"{text}, for CUDA {_dotted(build.cuda)}"
    # Within a major version of CUDA a driver runs what was built for a later minor one.
    if cuda is not None and build.cuda[0] > cuda[0]:
        if name == "torch":
            again += f" --index-url https://download.pytorch.org/whl/cu{cuda[0]}{cuda[1]}"
        text += f", which this driver cannot run: it knows CUDA up to {_dotted(cuda)}"
        return Check(name, "problem", text, f"{_INSTALL_DRIVER}  # or: {again}")
    return Check(name, "ok", text)


def _nsys_and_cuda(nsys: Nsys | None, cuda: tuple[int, ...] | None) -> list[Check]:
    if nsys is None or cuda is None or nsys.version >= _FIRST_NSYS.get(cuda[0], ()):
        return []
    first = ".".join(map(str, _FIRST_NSYS[cuda[0]]))
    text = f"{nsys.version_text} is older than CUDA {_dotted(cuda)} of the driver: it may record no kernels"
    mend = f"sudo apt install nsight-systems-cli  # {first} or later, from NVIDIA's repository"
    return [Check("Nsight Systems and CUDA", "note", text, mend)]


def _folder(package: str) -> Path | None:
    spec = PathFinder.find_spec(package)
    return Path(spec.origin).parent if spec and spec.origin else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _assigned(said: str, name: str) -> str | None:
    found = re.search(rf"^{name}\b[^=\n]*= '([^']+)'", said, re.MULTILINE)
    return found[1] if found else None


def _numbers(text: str | None) -> tuple[int, ...] | None:
    return tuple(map(int, re.findall(r"\d+", text)[:2])) if text else None


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
