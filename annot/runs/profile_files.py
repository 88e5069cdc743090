"""Files, local or in a store of fsspec: expand patterns, fetch, write and remove files, and number ranks."""

from __future__ import annotations

import glob
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import IO, Any, Final

from annot.errors import AnnotError
from annot.read.beside import is_permitted
from annot.util.distribution import install_command
from annot.util.progress import tell
from annot.util.whole_files import write_file

_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+(://|::)")
_RANK: Final = re.compile(r"rank\D?(\d{1,18})(?!\d)", re.IGNORECASE)
_NUMBER: Final = re.compile(r"(\d{1,18})")
_BLOCK: Final = 2**23
_KEPT_FREE: Final = 2**30
_MOST_FILES: Final = 100_000
"""Maximum number of files in a folder of profiles. The beginning of each is read."""


def is_url(path: str) -> bool:
    """Return whether a path is an fsspec URL, such as ``s3://bucket/run.sqlite``, and not a local file."""
    return _URL.match(path) is not None


def expand(patterns: Sequence[str]) -> list[str]:
    """Expand paths, patterns and URLs to profiles, without duplicates and in natural order (rank2 before rank10).

    Args:
        patterns: local paths, which may be missing; folders with profiles; local patterns with ``*``, ``?``, ``[...]``
            or ``**``; fsspec URLs with or without patterns.

    Raises:
        AnnotError: a pattern matches no file, or a URL cannot be listed.

    Example:
        >>> expand(["run_rank10.sqlite", "run_rank2.sqlite", "run_rank2.sqlite"])
        ['run_rank2.sqlite', 'run_rank10.sqlite']
    """
    paths: set[str] = set()
    for pattern in patterns:
        files = matches(pattern)
        if not files:
            raise AnnotError(f"{pattern} matches no file")
        paths.update(files)
    return sorted(paths, key=_natural)


def matches(pattern: str) -> list[str]:
    """Return the files of one pattern of `expand`; empty: it matches no file."""
    return _remote(pattern) if is_url(pattern) else _local(pattern)


def rank_numbers(paths: Sequence[str]) -> list[int]:
    """Return the rank of each file from the file names.

    The rank is the number after ``rank``, else the only number in which the names differ, else the position in the
    list.

    Args:
        paths: paths from `expand`.

    Example:
        >>> rank_numbers(["run_rank3_of_8.sqlite", "run_rank5_of_8.sqlite"])
        [3, 5]
        >>> rank_numbers(["n1_7.sqlite", "n1_9.sqlite"]), rank_numbers(["a.sqlite", "b.sqlite"])
        ([7, 9], [0, 1])
    """
    for numbers in (_numbers_after_rank(paths), _only_difference(paths)):
        if len(set(numbers)) == len(paths):
            return numbers
    return list(range(len(paths)))


@contextmanager
def local(path: str) -> Iterator[Path]:
    """Yield a local file: the file itself, or a temporary copy of a URL.

    Raises:
        AnnotError: the file cannot be fetched, or its copy would leave less than 1 GiB free on the disk.
    """
    path = without_file_scheme(path)
    if not is_url(path):
        yield Path(path)
        return
    filesystem, name = _filesystem(path)
    with tempfile.TemporaryDirectory(prefix="annot-") as folder:
        copy = Path(folder) / "profile"
        tell(f"copying {path}")
        with _errors_named(path, "read"), filesystem.open(name, "rb") as source:
            _copy(path, source, copy)
        yield copy


def without_file_scheme(path: str) -> str:
    """Return the path of a URL of a local file, such as ``file:///data/run.sqlite``; another path or URL is unchanged.

    Example:
        >>> without_file_scheme("run.sqlite")
        'run.sqlite'
    """
    if not is_url(path):
        return path
    filesystem, name = _filesystem(path)
    from fsspec.implementations.local import LocalFileSystem

    return name if isinstance(filesystem, LocalFileSystem) else path


def write(path: str, content: bytes) -> None:
    """Write a file or URL, and replace an existing one. A local file is complete or unchanged.

    Raises:
        AnnotError: it cannot be written.
    """
    path = without_file_scheme(path)
    if is_url(path):
        filesystem, name = _filesystem(path)
        with _errors_named(path, "written"):
            filesystem.pipe_file(name, content)
        return
    with _errors_named(path, "written"):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
    write_file(path, [content], force=True)


def remove(path: str) -> None:
    """Remove a file or URL.

    Raises:
        AnnotError: it cannot be removed.
    """
    path = without_file_scheme(path)
    with _errors_named(path, "removed"):
        if is_url(path):
            filesystem, name = _filesystem(path)
            filesystem.rm_file(name)
        else:
            Path(path).unlink()


def _copy(path: str, source: IO[bytes], copy: Path) -> None:
    with copy.open("wb") as out:
        while block := source.read(_BLOCK):
            if shutil.disk_usage(copy.parent).free < len(block) + _KEPT_FREE:
                raise AnnotError(f"{path} is too large for a copy in {copy.parent.parent}: set TMPDIR to another disk")
            out.write(block)


def _local(pattern: str) -> list[str]:
    if Path(pattern).is_dir():
        from annot.read.formats import is_profile

        return [pattern] if is_profile(Path(pattern)) else profiles_below(Path(pattern)) or [pattern]
    if Path(pattern).exists() or not glob.has_magic(pattern):
        return [pattern]
    return glob.glob(pattern, recursive=True)


def profiles_below(folder: Path) -> list[str]:
    """Return the profiles in a folder and below, in natural order.

    A report beside its export, and captures of graphs beside other profiles, are left out.

    Raises:
        AnnotError: the folder has too many files.
    """
    from annot.read.formats import is_profile
    from annot.runs.captures import is_capture

    files = list(islice(_files(folder), _MOST_FILES + 1))
    if len(files) > _MOST_FILES:
        raise AnnotError(f"{folder} has more than {_MOST_FILES:,} files. Pass a folder of profiles, or their paths.")
    exported = {path.with_suffix("") for path in files if path.suffix == ".sqlite"}
    reports = (".nsys-rep", ".qdrep")
    profiles = (path for path in files if path.suffix not in reports or path.with_suffix("") not in exported)
    paths = [path for path in profiles if is_profile(path)]
    return sorted(map(str, [path for path in paths if not is_capture(path)] or paths), key=_natural)


def _files(folder: Path) -> Iterator[Path]:
    """Yield the permitted regular files below a folder that can be listed, without hidden ones and links to folders."""
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            with suppress(OSError):
                if not name.startswith(".") and is_permitted(path) and path.is_file():
                    yield path


def _remote(pattern: str) -> list[str]:
    if not glob.has_magic(pattern):
        return [pattern]
    filesystem, name = _filesystem(pattern)
    with _errors_named(pattern, "read"):
        return [filesystem.unstrip_protocol(match) for match in filesystem.glob(name)]


def _filesystem(url: str) -> tuple[Any, str]:
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise AnnotError(f"{url} needs the fsspec package: {install_command('remote')}") from None
    with _errors_named(url, "read"):  # unknown protocol, missing package, wrong credentials, ...
        filesystem, name = url_to_fs(url)
    return filesystem, str(name)


@contextmanager
def _errors_named(path: str, done: str) -> Iterator[None]:
    """Raise AnnotError for every exception in the block: each fsspec backend raises its own exceptions."""
    try:
        yield
    except AnnotError:
        raise
    except Exception as error:
        reason = error.strerror if isinstance(error, OSError) else ""
        raise AnnotError(
            f"{path} cannot be {done}: {reason or ' '.join(str(error).split()) or type(error).__name__}"
        ) from None


def _natural(path: str) -> list[tuple[int, int, str]]:
    """Return a sort key that compares numbers in names by value."""
    tokens = enumerate(_NUMBER.split(path))  # split with one group: odd elements are the numbers
    return [(1, int(token), token) if index % 2 else (0, 0, token) for index, token in tokens]


def _numbers_after_rank(paths: Sequence[str]) -> list[int]:
    matches = [_RANK.findall(path) for path in paths]
    return [int(numbers[-1]) for numbers in matches if numbers] if all(matches) else []


def _only_difference(paths: Sequence[str]) -> list[int]:
    split = [_NUMBER.split(path) for path in paths]
    columns = list(zip(*split, strict=False))
    differ = [index for index, column in enumerate(columns) if len(set(column)) > 1]
    if len(set(map(len, split))) > 1 or len(differ) != 1 or not differ[0] % 2:
        return []
    return [int(number) for number in columns[differ[0]]]
