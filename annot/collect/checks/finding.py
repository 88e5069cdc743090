"""What a check found, and the machine that checks look at."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

__all__ = ["Check", "Machine", "State", "version_of"]

State = Literal["ok", "note", "problem"]


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at."""

    name: str
    state: State
    """``problem``: ranges will be missing; ``note``: some may be, or something works less well."""
    text: str
    mend: str | None = None
    """What to type to mend it."""


@dataclass(frozen=True)
class Machine:
    """Where files are looked for, and the variables that count.

    Args:
        root: the folder that stands for ``/``.
        environ: the environment variables.
    """

    root: Path = Path("/")
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)

    def exists(self, path: str) -> bool:
        """Return whether there is such a file, named from the root on."""
        return (self.root / path.lstrip("/")).exists()

    def text(self, path: str) -> str:
        """Return what a file says, the empty text if it cannot be read."""
        try:
            return (self.root / path.lstrip("/")).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""


def version_of(package: str) -> str | None:
    """Return the version of an installed package, None if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
