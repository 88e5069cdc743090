"""Folders to which the server is confined: it reads no file outside, also not through symbolic links."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from annot.errors import AnnotError
from annot.read.beside import only_inside
from annot.read.formats import is_profile
from annot.report.units import amount, printable
from annot.runs.profile_files import profiles_below

LIST = 'Call open with path "." for the profiles that it can read.'
"""The next call after a wrong path."""


class RefusedError(AnnotError):
    """A request is refused. The message says the next call."""


class Folders:
    """Folders whose profiles may be read.

    Args:
        folders: the folders. Relative paths count from the first.
        largest: maximum size of a profile in bytes.

    Raises:
        AnnotError: a folder does not exist.

    Example:
        >>> folders = Folders(["."], largest=1 << 30)
        >>> folders.contain(folders.first / "run.sqlite"), folders.contain(folders.first.parent / "run.sqlite")
        (True, False)
    """

    def __init__(self, folders: Sequence[str | os.PathLike[str]], largest: int) -> None:
        for folder in folders:
            if not os.path.isdir(folder):
                raise AnnotError(f"{os.fspath(folder)} is not a folder")
        self.paths = tuple(Path(os.path.realpath(folder)) for folder in folders)
        self._largest = largest

    @property
    def first(self) -> Path:
        """The folder from which relative paths count."""
        return self.paths[0]

    def resolve(self, name: str) -> Path:
        """Return the path of a name, without symbolic links; raise RefusedError if it is outside the folders."""
        try:
            path = Path(os.path.realpath(self.first / name))
        except (OSError, ValueError) as error:  # ValueError: a NUL in the name
            raise RefusedError(f"{printable(name)[:100]} is not a path: {error}. {LIST}") from None
        if not self.contain(path):
            raise RefusedError(f"{printable(name)[:100]} is outside the folders of this server. {LIST}")
        return path

    def existing(self, name: str) -> Path:
        """Return the path of an existing file or folder inside the folders."""
        path = self.resolve(name)
        if not os.path.exists(path):
            raise RefusedError(f"{printable(name)[:100]} does not exist. {LIST}")
        return path

    def profile(self, name: str) -> Path:
        """Return the path of a profile inside the folders, of at most the maximum size."""
        path = self.existing(name)
        if path.is_dir() and not is_profile(path):
            raise RefusedError(f"{printable(name)[:100]} is a folder without a profile of its own. {LIST}")
        size = sum(self._size(file) for file in (path.rglob("*") if path.is_dir() else [path]))
        if size > self._largest:
            most = f"more than the {amount(self._largest)}B that `annot mcp --max-gib` allows"
            raise RefusedError(f"{printable(name)[:100]} has {amount(size)}B, {most}. {LIST}")
        return path

    def profiles(self, folder: Path) -> list[Path]:
        """Return the profiles in a folder and below, without links that lead outside the folders.

        A profile of several files, such as a Parquet export, is a folder: the folder itself, if nothing else is there.
        """
        with only_inside(self.paths):
            return [*map(Path, profiles_below(folder))] or ([folder] if is_profile(folder) else [])

    def is_listed(self, path: Path) -> bool:
        """Return whether to list what a path contains: a folder of the server, or one that is not a profile."""
        return path in self.paths or (path.is_dir() and not is_profile(path))

    def contain(self, path: Path) -> bool:
        """Return whether a path without symbolic links is inside the folders."""
        return any(path.is_relative_to(folder) for folder in self.paths)

    def name(self, path: Path) -> str:
        """Return the name of a path: relative to the first folder, or else absolute."""
        return str(path.relative_to(self.first) if path.is_relative_to(self.first) else path)

    def _size(self, path: Path) -> int:
        if path.is_symlink():
            self.resolve(str(path))
        return path.stat().st_size if path.is_file() else 0
