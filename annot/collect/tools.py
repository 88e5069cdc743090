"""What this machine has to collect with: Nsight Systems, the GPU driver, packages of an interpreter."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "WRITER_BACKEND", "Nsys", "find_ncu", "find_nsys", "has_gpu_driver", "has_nsys_writer", "loses_nvtx_package",
    "nvtx_release", "nvtx_version_of", "python_of",
]  # fmt: skip

WRITER_BACKEND = "NSYS_WRITER_BACKEND"
"""The variable that tells nsys_writer which library to write with."""

_ANSWER_SECONDS = 60
# Neither libcuda.so.1 nor /dev/nvidiactl is a sign: Debian installs the one along with Nsight Systems, and that
# makes the other. The last two are those of WSL and Jetson.
_DRIVER_SIGNS = ("proc/driver/nvidia", "dev/dxg", "dev/nvhost-gpu")
_USUAL_PLACES = (
    "opt/nvidia/nsight-systems/*/bin/nsys",
    "opt/nvidia/nsight-systems/*/target-linux-*/nsys",
    "opt/nvidia/nsight-systems-cli/*/bin/nsys",
    "opt/nvidia/nsight-systems-cli/*/target-linux-*/nsys",
    "usr/local/cuda*/bin/nsys",
    "usr/lib/nsight-systems/bin/nsys",
)
_USUAL_PLACES_OF_NCU = ("opt/nvidia/nsight-compute/*/ncu", "usr/local/cuda*/bin/ncu", "usr/lib/nsight-compute/ncu")


@dataclass(frozen=True, slots=True)
class Nsys:
    """An Nsight Systems that answers."""

    path: Path
    """The command, as found."""
    version: tuple[int, ...]
    """Year, minor, patch; empty if its answer held none."""

    @property
    def version_text(self) -> str:
        """The version as NVIDIA writes it."""
        return ".".join(map(str, self.version)) or "of unknown version"

    @property
    def knows_domain_is_enabled(self) -> bool:
        """Whether it implements nvtxDomainIsEnabled, which 2022.4 and 2023.4 were seen not to do."""
        return self.version >= (2024,)

    @property
    def imports_by_itself(self) -> bool:
        """Whether `nsys profile` finds its importer, and so leaves a report instead of a ``.qdstrm`` file."""
        return any(folder.is_dir() for folder in self._host_folders_beside())

    def importer(self) -> Path | None:
        """Return its QdstrmImporter, or None if the part that holds it is not installed."""
        return self._host_program("QdstrmImporter")

    def nvtxt_importer(self) -> Path | None:
        """Return its ImportNvtxt, or None if it has none or the part that holds it is not installed."""
        return self._host_program("ImportNvtxt")

    def link_command(self) -> str | None:
        """Return the shell command that lets `nsys profile` import by itself, None if no link does."""
        importer = self.importer()
        if importer is None or self.imports_by_itself:
            return None
        return f"sudo ln -s {importer.parent} {self.path.resolve().parent.parent / importer.parent.name}"

    def writer_backend(self) -> Path | None:
        """Return the library by which nsys_writer writes into reports, or None if this release has none."""
        found = (folder / "libNvtxwBackend.so" for folder in self._host_folders_beside())
        return next((path for path in found if path.exists()), None)

    def writer_package(self) -> Path | None:
        """Return the folder from which pip installs nsys_writer, or None if this release has none."""
        folder = self.path.resolve().parent.parent
        return next(iter(sorted(folder.glob("target-linux-*/python/packages/nsys_writer"))), None)

    def _host_program(self, name: str) -> Path | None:
        packaged = sorted(Path("/usr/lib/nsight-systems").glob("host-linux-*"))
        for folder in [*self._host_folders_beside(), *packaged]:
            if os.access(folder / name, os.X_OK):
                return folder / name
        return None

    def _host_folders_beside(self) -> list[Path]:
        return sorted(self.path.resolve().parent.parent.glob("host-linux-*"))


def find_nsys(environ: Mapping[str, str] = os.environ, root: Path = Path("/")) -> Nsys | None:
    """Find an Nsight Systems that answers: on PATH, then in the usual folders.

    Args:
        environ: read for ``PATH``, and for ``ANNOT_NSYS``, which names the only one to try.
        root: where the usual folders are looked for.
    """
    for path in _candidates("nsys", _USUAL_PLACES, environ, root):
        answer = _ask([str(path), "--version"])
        if answer is not None:
            return Nsys(path, parse_version(answer))
    return None


def find_ncu(environ: Mapping[str, str] = os.environ, root: Path = Path("/")) -> tuple[Path, str] | None:
    """Find a Nsight Compute that answers: on PATH, then in the usual folders; ``ANNOT_NCU`` names the only one to try.

    Returns:
        The command and its version as a text.
    """
    for path in _candidates("ncu", _USUAL_PLACES_OF_NCU, environ, root):
        answer = _ask([str(path), "--version"])
        if answer is not None:
            return path, ".".join(map(str, parse_version(answer))) or "of unknown version"
    return None


def parse_version(text: str) -> tuple[int, ...]:
    """Return year, minor and patch from the answer of ``nsys --version``, or of ``ncu --version``.

    Example:
        >>> parse_version("NVIDIA Nsight Systems version 2022.4.2.1-df9881f")
        (2022, 4, 2)
    """
    found = re.search(r"\b(20\d\d)\.(\d+)(?:\.(\d+))?", text)
    return tuple(int(part) for part in found.groups() if part is not None) if found else ()


def has_gpu_driver(root: Path = Path("/")) -> bool:
    """Return whether an NVIDIA driver is on this machine.

    Args:
        root: the folder that stands for ``/``.
    """
    return any((root / sign).exists() for sign in _DRIVER_SIGNS)


def has_nsys_writer() -> bool:
    """Return whether the package that writes into reports of Nsight Systems is installed here."""
    return importlib.util.find_spec("nsys_writer") is not None


def python_of(command: str) -> Path | None:
    """Return the Python interpreter that `command` is or names in its first line, None if there is none."""
    found = shutil.which(command)
    if found is None:
        return None
    if _is_python(Path(found).name):
        return Path(found)
    try:
        with open(found, "rb") as file:
            first = file.readline(512)
    except OSError:
        return None
    if not first.startswith(b"#!"):
        return None
    for word in first[2:].decode("utf-8", "replace").split():
        if _is_python(Path(word).name):
            return Path(shutil.which(word) or word)
    return None


def nvtx_version_of(python: Path) -> str | None:
    """Return the version of the `nvtx` package that an interpreter would import, None if it has none."""
    if python == Path(sys.executable):
        try:
            return importlib.metadata.version("nvtx")
        except importlib.metadata.PackageNotFoundError:
            return None
    return _ask([str(python), "-c", "import importlib.metadata as m; print(m.version('nvtx'))"])


def loses_nvtx_package(nsys: Nsys, nvtx_version: str | None) -> bool:
    """Return whether ranges that go through this `nvtx` package do not reach this Nsight Systems.

    From 0.2.12 on the package asks nvtxDomainIsEnabled first, and takes a tool without an answer for a no.
    """
    if nvtx_version is None or nsys.knows_domain_is_enabled:
        return False
    return nvtx_release(nvtx_version) >= (0, 2, 12)


def nvtx_release(version: str) -> tuple[int, ...]:
    """Return the numbers of a version of the `nvtx` package.

    Example:
        >>> nvtx_release("0.2.12.post1")
        (0, 2, 12)
    """
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])


def _candidates(name: str, places: Iterable[str], environ: Mapping[str, str], root: Path) -> Iterator[Path]:
    if named := environ.get(f"ANNOT_{name.upper()}"):
        yield Path(named)
        return
    on_path = shutil.which(name, path=environ.get("PATH", os.defpath))
    if on_path:
        yield Path(on_path)
    for pattern in places:
        yield from sorted(root.glob(pattern), key=lambda path: parse_version(str(path)), reverse=True)


def _ask(command: list[str]) -> str | None:
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_ANSWER_SECONDS,
            stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None


def _is_python(name: str) -> bool:
    return re.fullmatch(r"(python|pypy)\d*(\.\d+)*t?", name) is not None
