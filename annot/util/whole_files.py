"""Files that are complete or absent: a write that fails leaves no part of a file."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from annot.errors import writing

_log: Final = logging.getLogger(__name__)


@contextmanager
def created(path: str | os.PathLike[str], *, force: bool) -> Iterator[BinaryIO]:
    """Open a file to write. After an error in the block, a new file is removed and an existing file is unchanged.

    Args:
        path: the file. A pipe or device is written directly.
        force: replace an existing file.

    Raises:
        OSError: the file exists and `force` is false, or it cannot be written.
    """
    out = Path(os.path.realpath(path))  # unlike Path.resolve, without an exception for links in a circle
    replaces = force and (out.is_file() or not out.exists())  # two processes that write one file do not mix
    target = out.with_name(f".{out.name}.{os.getpid()}.tmp") if replaces else out
    file = target.open("wb" if force else "xb")
    try:
        with file:
            yield file
        if replaces:
            if out.exists():
                shutil.copymode(out, target)
            target.replace(out)
    except BaseException:
        if target.is_file():
            target.unlink()
        raise
    _log.info("wrote %s", out)


def write_file(path: str | os.PathLike[str], content: Iterable[bytes], *, force: bool) -> None:
    """Write a file in parts; arguments as in `created`.

    Raises:
        AnnotError: the file exists and `force` is false, or it cannot be written.
    """
    with writing(path), created(path, force=force) as file:
        file.writelines(content)
