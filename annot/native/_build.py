"""Build commands for the C extensions, used by setuptools only.

They select the extensions for this platform, find the NVTX headers of the PyPI package `nvidia-nvtx`, and tag the wheel
depending on which extensions were built. An extension that cannot be built is left out; with the environment variable
``ANNOT_REQUIRE_NATIVE=1``, which wheels for publication use, the build fails instead.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import sysconfig
from pathlib import Path
from typing import Final

from setuptools import Extension
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


def calls_python(extension: Extension) -> bool:
    """Return whether an extension is a module that calls Python, and not only a shared library."""
    return any(name == "Py_LIMITED_API" for name, *_ in extension.define_macros)


def is_supported(extension: Extension) -> bool:
    """Return whether an extension is for this platform and this Python.

    Emitting and recording need Linux; macOS has the tables of reports, Windows no extension. Free-threaded Python has
    the libraries that do not call Python: importing the others would enable the global interpreter lock for the whole
    program.
    """
    if calls_python(extension) and is_free_threaded():
        return False
    return sys.platform == "linux" or (sys.platform == "darwin" and extension.name == "annot.native._tables")


class BuildNative(build_ext):
    """`build_ext` for the extensions of this platform, with the NVTX headers on the include path."""

    def finalize_options(self) -> None:
        """Select the extensions, and add the NVTX header folders to the include path of setuptools."""
        self.distribution.ext_modules = list(filter(is_supported, self.distribution.ext_modules or ()))
        for extension in self.distribution.ext_modules:
            extension.optional = not os.environ.get("ANNOT_REQUIRE_NATIVE")
            extension.py_limited_api = not is_free_threaded()
            extension.define_macros = [tuple(macro) for macro in extension.define_macros]  # lists before setuptools 83
        super().finalize_options()
        self.include_dirs: list[str] = [*nvtx_include_dirs(), *(self.include_dirs or [])]


class BuildWheel(bdist_wheel):
    """`bdist_wheel` whose tag says what the built C extensions need; all of them are optional.

    Modules need the limited API of Python, shared libraries only the platform, and a wheel without them neither.
    """

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
            build = self.get_finalized_command("build_ext")
            extensions = self.distribution.ext_modules
            built = [one for one in extensions if Path(build.get_ext_fullpath(one.name)).exists()]
            self.distribution.ext_modules = built
            self.root_is_pure = not built
        super().run()

    def get_tag(self) -> tuple[str, str, str]:
        """Return the tag: Python, its ABI and the platform."""
        tag: tuple[str, str, str] = super().get_tag()
        return tag if any(map(calls_python, self.distribution.ext_modules)) else ("py3", "none", tag[2])
