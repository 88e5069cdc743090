"""The build step of the C parts; read by setuptools only.

It finds the NVTX headers of the PyPI package `nvidia-nvtx`, and tags the wheel by what could be built.
"""

from __future__ import annotations

import importlib.util
import sysconfig
from pathlib import Path
from typing import Final

from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

LIMITED_API: Final = "cp311"
"""The release of Python from which on one wheel serves all."""


def nvtx_include_dirs() -> list[str]:
    """Return the folders that hold `nvtx3/nvToolsExt.h`, newest package layout first."""
    spec = importlib.util.find_spec("nvidia")
    roots = [Path(root) for root in (spec.submodule_search_locations or [])] if spec else []
    headers = [header for root in roots for header in root.glob("*/include/nvtx3/nvToolsExt.h")]
    return [str(header.parent.parent) for header in sorted(headers, reverse=True)]


def is_free_threaded() -> bool:
    """Return whether this Python is built without the global interpreter lock; it has no limited API."""
    return bool(sysconfig.get_config_var("Py_GIL_DISABLED"))


class BuildNative(build_ext):
    """`build_ext` with the NVTX headers on the include path.

    A free-threaded Python builds only the libraries that make no call to Python: importing the others would switch
    the interpreter lock on for the whole program.
    """

    def finalize_options(self) -> None:
        """Add the header folders after setuptools has set its own."""
        if is_free_threaded():
            self.distribution.ext_modules = [one for one in self.distribution.ext_modules or () if not _needs_lock(one)]
            for one in self.distribution.ext_modules:
                one.py_limited_api = False
        super().finalize_options()
        self.include_dirs: list[str] = [*nvtx_include_dirs(), *(self.include_dirs or [])]


def _needs_lock(extension: object) -> bool:
    return any(name == "Py_LIMITED_API" for name, *_ in getattr(extension, "define_macros", ()))


class BuildWheel(bdist_wheel):
    """`bdist_wheel` whose wheel is for any platform if no C part could be built: all of them are optional."""

    skip_build: bool

    def finalize_options(self) -> None:
        """Choose the limited API where there is one."""
        self.py_limited_api = False if is_free_threaded() else LIMITED_API
        super().finalize_options()

    def run(self) -> None:
        """Build first, so that the tag can follow from what is there."""
        if not self.skip_build:
            self.run_command("build")
            self.skip_build = True
            built = self.get_finalized_command("build_ext").get_outputs()
            if not any(map(Path.exists, map(Path, built))):
                self.distribution.ext_modules = []
                self.root_is_pure = True
        super().run()
