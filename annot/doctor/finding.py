"""Results of checks, and the machine that they inspect."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Literal

State = Literal["ok", "note", "problem"]


@dataclass(frozen=True, slots=True)
class Check:
    """Result of one check."""

    name: str
    state: State
    """``problem``: ranges are lost; ``note``: some ranges may be lost, or a feature is limited."""
    text: str
    mend: str | None = None
    """Command that fixes it."""


@dataclass(frozen=True)
class Machine:
    """Files below a root folder, and environment variables, of the machine to check."""

    root: Path = Path("/")
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)

    def exists(self, path: str) -> bool:
        """Return whether an absolute path exists below the root."""
        return (self.root / path.lstrip("/")).exists()

    def has_switch(self, name: str) -> bool:
        """Return whether an environment variable is set to a value other than 0."""
        return self.environ.get(name, "") not in ("", "0")

    def text(self, path: str) -> str:
        """Return the text of a file, empty if it cannot be read."""
        try:
            return (self.root / path.lstrip("/")).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""


def folder_of(package: str) -> Path | None:
    """Return the folder of an installed package, without an import. None if it is not installed."""
    spec = PathFinder.find_spec(package)
    return Path(spec.origin).parent if spec and spec.origin else None
