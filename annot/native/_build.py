"""Build commands for the C extensions, used by setuptools only.

They find the NVTX headers of the PyPI package `nvidia-nvtx` and tag the wheel depending on which extensions were built.
"""

from __future__ import annotations

import importlib.util
import sysconfig
from pathlib import Path
from typing import Final

from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

LIMITED_API: Final = "cp311"
"""Oldest supported CPython version: a wheel for the limited API works with it and all later versions."""


def nvtx_include_dirs() -> list[str]:
    """Return the folders with `nvtx3/nvToolsExt.h`, newest package layout first."""
    spec = importlib.util.find_spec("nvidia")
    roots = [Path(root) for root in (spec.submodule_search_locations or [])] if spec else []
    headers = [header for root in roots for header in root.glob("*/include/nvtx3/nvToolsExt.h")]
    return [str(header.parent.parent) for header in sorted(headers, reverse=True)]


def is_free_threaded() -> bool:
    """Return whether this is a free-threaded Python build, which lacks the limited API."""
    return bool(sysconfig.get_config_var("Py_GIL_DISABLED"))


class BuildNative(build_ext):
    """`build_ext` with the NVTX headers on the include path.

    On free-threaded Python, builds only the libraries that do not call Python: importing the others would enable the
    global interpreter lock for the whole program.
    """

    def finalize_options(self) -> None:
        """Add the NVTX header folders to the include path of setuptools."""
        if is_free_threaded():
            self.distribution.ext_modules = [
                extension for extension in self.distribution.ext_modules or () if not _needs_lock(extension)
            ]
            for extension in self.distribution.ext_modules:
                extension.py_limited_api = False
        for extension in self.distribution.ext_modules or ():  # setuptools before 83 keeps the lists of TOML
            extension.define_macros = [tuple(macro) for macro in extension.define_macros]
        super().finalize_options()
        self.include_dirs: list[str] = [*nvtx_include_dirs(), *(self.include_dirs or [])]


def _needs_lock(extension: object) -> bool:
    return any(name == "Py_LIMITED_API" for name, *_ in getattr(extension, "define_macros", ()))


class BuildWheel(bdist_wheel):
    """`bdist_wheel` that creates a pure-Python wheel if all C extensions, which are optional, fail to build."""

    skip_build: bool

    def finalize_options(self) -> None:
        """Set the tag of the limited API if this Python supports it."""
        self.py_limited_api = False if is_free_threaded() else LIMITED_API
        super().finalize_options()

    def run(self) -> None:
        """Build first, because the tag of the wheel depends on the built extensions."""
        if not self.skip_build:
            self.run_command("build")
            self.skip_build = True
            built = self.get_finalized_command("build_ext").get_outputs()
            if not any(map(Path.exists, map(Path, built))):
                self.distribution.ext_modules = []
                self.root_is_pure = True
        super().run()
