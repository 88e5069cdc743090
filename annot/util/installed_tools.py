"""Profiling tools installed on this machine: Nsight Systems, Nsight Compute, the GPU driver and Python packages."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

_log: Final = logging.getLogger(__name__)

WRITER_BACKEND = "NSYS_WRITER_BACKEND"
"""The environment variable with the path of the library that nsys_writer uses."""

_TIMEOUT_SECONDS = 60
# libcuda.so.1 and /dev/nvidiactl do not prove a driver: Debian installs libcuda.so.1 with Nsight Systems, and that
# creates /dev/nvidiactl. WSL has /dev/dxg, Jetson has /dev/nvhost-gpu.
_DRIVER_FILES = ("proc/driver/nvidia", "dev/dxg", "dev/nvhost-gpu")
_NSYS_PATTERNS = (
    "opt/nvidia/nsight-systems/*/bin/nsys",
    "opt/nvidia/nsight-systems/*/target-linux-*/nsys",
    "opt/nvidia/nsight-systems-cli/*/bin/nsys",
    "opt/nvidia/nsight-systems-cli/*/target-linux-*/nsys",
    "usr/local/cuda*/bin/nsys",
    "usr/lib/nsight-systems/bin/nsys",
)
_NCU_PATTERNS = ("opt/nvidia/nsight-compute/*/ncu", "usr/local/cuda*/bin/ncu", "usr/lib/nsight-compute/ncu")


@dataclass(frozen=True, slots=True)
class Nsys:
    """An installed Nsight Systems whose `nsys --version` succeeds."""

    path: Path
    """Path of the `nsys` command."""
    version: tuple[int, ...]
    """Year, minor and patch; empty if `nsys --version` prints no version."""

    @property
    def version_text(self) -> str:
        """The version in NVIDIA's notation, such as ``2022.4.2``."""
        return ".".join(map(str, self.version)) or "of unknown version"

    @property
    def knows_domain_is_enabled(self) -> bool:
        """Whether it implements nvtxDomainIsEnabled. Releases 2022.4 and 2023.4 do not."""
        return self.version >= (2024,)

    @property
    def imports_by_itself(self) -> bool:
        """Whether `nsys profile` finds its importer and writes a report. Otherwise it writes a ``.qdstrm`` file."""
        return any(folder.is_dir() for folder in self._host_folders_beside())

    def importer(self) -> Path | None:
        """Return the path of its QdstrmImporter, or None if that component is not installed."""
        return self._host_program("QdstrmImporter")

    def nvtxt_importer(self) -> Path | None:
        """Return the path of its ImportNvtxt, or None if the release lacks it or the component is not installed."""
        return self._host_program("ImportNvtxt")

    def link_command(self) -> str | None:
        """Return the shell command that links the importer to where `nsys profile` finds it; None if no link helps."""
        importer = self.importer()
        if importer is None or self.imports_by_itself:
            return None
        return f"sudo ln -s {importer.parent} {self.path.resolve().parent.parent / importer.parent.name}"

    def writer_backend(self) -> Path | None:
        """Return the library that nsys_writer needs to write reports, or None if this release lacks it."""
        paths = (folder / "libNvtxwBackend.so" for folder in self._host_folders_beside())
        return next((path for path in paths if path.exists()), None)

    def writer_package(self) -> Path | None:
        """Return the folder of the pip package nsys_writer, or None if this release lacks it."""
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
    """Find a working Nsight Systems on PATH, or else in the default installation folders.

    Args:
        environ: environment variables. ``ANNOT_NSYS`` names the only command to try; otherwise ``PATH`` is searched.
        root: the folder that contains the default installation folders.

    Returns:
        The first one whose `nsys --version` succeeds; None if there is none.
    """
    return next((Nsys(*tool) for tool in _working("nsys", _NSYS_PATTERNS, environ, root)), None)


def find_ncu(environ: Mapping[str, str] = os.environ, root: Path = Path("/")) -> tuple[Path, str] | None:
    """Find a working Nsight Compute as `find_nsys` finds Nsight Systems; ``ANNOT_NCU`` names the only command to try.

    Returns:
        The path of the `ncu` command and its version; None if there is none.
    """
    tools = _working("ncu", _NCU_PATTERNS, environ, root)
    return next(((path, ".".join(map(str, version)) or "of unknown version") for path, version in tools), None)


def parse_version(text: str) -> tuple[int, ...]:
    """Return year, minor and patch from the output of ``nsys --version`` or ``ncu --version``; empty if it has none."""
    match = re.search(r"\b(20\d\d)\.(\d+)(?:\.(\d+))?", text)
    return tuple(int(number) for number in match.groups() if number is not None) if match else ()


def has_gpu_driver(root: Path = Path("/")) -> bool:
    """Return whether an NVIDIA driver is installed on this machine.

    Args:
        root: the root of the file system.
    """
    return any((root / name).exists() for name in _DRIVER_FILES)


def has_nsys_writer() -> bool:
    """Return whether the package nsys_writer, which writes Nsight Systems reports, is installed."""
    return importlib.util.find_spec("nsys_writer") is not None


def python_of(command: str) -> Path | None:
    """Return the Python interpreter that `command` is or names in its ``#!`` line; None for other commands."""
    executable = shutil.which(command)
    if executable is None:
        return None
    if _is_python(Path(executable).name):
        return Path(executable)
    try:
        with open(executable, "rb") as file:
            line = file.readline(512)
    except OSError:
        return None
    if not line.startswith(b"#!"):
        return None
    for word in line[2:].decode("utf-8", "replace").split():
        if _is_python(Path(word).name):
            return Path(shutil.which(word) or word)
    return None


def nvtx_version_of(python: Path) -> str | None:
    """Return the version of the `nvtx` package that an interpreter imports; None if it is not installed."""
    if python == Path(sys.executable):
        return version_of("nvtx")
    return _output_of([str(python), "-c", "import importlib.metadata as m; print(m.version('nvtx'))"])


def version_of(package: str) -> str | None:
    """Return the version of an installed package, None if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def loses_nvtx_package(nsys: Nsys, nvtx_version: str | None) -> bool:
    """Return whether this Nsight Systems misses the ranges of this version of the `nvtx` package.

    Since 0.2.12 the package calls nvtxDomainIsEnabled first. It emits nothing if the tool does not implement it.
    """
    if nvtx_version is None or nsys.knows_domain_is_enabled:
        return False
    return nvtx_release(nvtx_version) >= (0, 2, 12)


def nvtx_release(version: str) -> tuple[int, ...]:
    """Return the version of the `nvtx` package as up to three integers.

    Example:
        >>> nvtx_release("0.2.12.post1")
        (0, 2, 12)
    """
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])


def _working(
    name: str, patterns: Iterable[str], environ: Mapping[str, str], root: Path
) -> Iterator[tuple[Path, tuple[int, ...]]]:
    """Yield path and version of each tool whose ``--version`` succeeds."""
    for path in _candidates(name, patterns, environ, root):
        output = _output_of([str(path), "--version"])
        if output is not None:
            yield path, parse_version(output)


def _candidates(name: str, patterns: Iterable[str], environ: Mapping[str, str], root: Path) -> Iterator[Path]:
    if named := environ.get(f"ANNOT_{name.upper()}"):
        yield Path(named)
        return
    on_path = shutil.which(name, path=environ.get("PATH", os.defpath))
    if on_path:
        yield Path(on_path)
    for pattern in patterns:
        yield from sorted(root.glob(pattern), key=lambda path: parse_version(str(path)), reverse=True)


def _output_of(command: list[str]) -> str | None:
    try:
        done = run_tool(command, _TIMEOUT_SECONDS, stderr=subprocess.PIPE)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode("utf-8", "replace").strip() if done.returncode == 0 else None


def run_tool(command: list[str], seconds: float, **options: Any) -> subprocess.CompletedProcess[bytes]:
    r"""Run a program without input, and return its output, to which errors belong.

    Args:
        command: the program with its arguments.
        seconds: time after which it is ended.
        options: other arguments of `subprocess.run`.

    Raises:
        OSError: the program does not start.
        subprocess.TimeoutExpired: it ran out of time.

    Example:
        >>> run_tool(["echo", "annot"], 10).stdout
        b'annot\n'
    """
    _log.info("running %s", shlex.join(command))
    streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.run(command, timeout=seconds, check=False, **(streams | options))


def _is_python(name: str) -> bool:
    return re.fullmatch(r"(python|pypy)\d*(\.\d+)*t?", name) is not None
