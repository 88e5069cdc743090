"""The environment of the tests and of their child processes."""

from __future__ import annotations

import os
from tempfile import TemporaryDirectory
from typing import Final

import pytest

_DATA: Final = TemporaryDirectory(prefix="annot-tests-data-", ignore_cleanup_errors=True)
# Tests read no peaks and no results of `annot try` that the developer or earlier tests have measured.
os.environ["XDG_DATA_HOME"] = _DATA.name
# Otherwise Inductor compiles and loads a program for each instruction set of the CPU, again in each cache folder.
os.environ["TORCHINDUCTOR_VEC_ISA_OK"] = "1"

_LONG = tuple(f"tests/{folder}/" for folder in ("testing", "packaging", "documents", "live", "cli", "pytorch"))
"""Folders with tests that start compilers and many processes."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the tests that take longest first: otherwise one core waits for them at the end."""
    items.sort(key=lambda item: not item.nodeid.startswith(_LONG))
