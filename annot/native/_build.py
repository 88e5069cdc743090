"""The build step of the C parts: finds the NVTX headers of the PyPI package `nvidia-nvtx`; read by setuptools only."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from setuptools.command.build_ext import build_ext


def nvtx_include_dirs() -> list[str]:
    """Return the folders that hold `nvtx3/nvToolsExt.h`, newest package layout first."""
    spec = importlib.util.find_spec("nvidia")
    roots = [Path(root) for root in (spec.submodule_search_locations or [])] if spec else []
    headers = [header for root in roots for header in root.glob("*/include/nvtx3/nvToolsExt.h")]
    return [str(header.parent.parent) for header in sorted(headers, reverse=True)]


class BuildNative(build_ext):
    """`build_ext` with the NVTX headers on the include path."""

    def finalize_options(self) -> None:
        """Add the header folders after setuptools has set its own."""
        super().finalize_options()
        self.include_dirs: list[str] = [*nvtx_include_dirs(), *(self.include_dirs or [])]
