"""Exports of a profile to files that other tools open: trace, TensorBoard log, enriched report of Nsight Systems."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from annot.attribution import Attribution, summarize

__all__ = ["write_tensorboard", "write_trace_file"]


def write_trace_file(attribution: Attribution, source: str, path: Path, *, force: bool) -> None:
    """Write a timeline in Chrome's trace event format, compressed if the name ends in .gz.

    `source` is the name of the profile for the metadata; `force` replaces an existing file.

    Raises:
        OSError: the file exists, or cannot be written.
    """
    from annot.analyze.trace_events import Events
    from annot.report.export.chrome_trace import write_trace

    meta = summarize(attribution) | {"source": source}
    with _created(path, force=force) as file:
        write_trace(Events(attribution), meta, file.write)


def write_tensorboard(attribution: Attribution, source: str, folder: Path, *, force: bool) -> None:
    """Write a log folder for TensorBoard; arguments as in `write_trace_file`."""
    from annot.report.export.tensorboard import FILE, event_file

    content = b"".join(event_file(attribution, source))  # before mkdir, so that an error leaves no folder
    folder.mkdir(parents=True, exist_ok=True)
    with _created(folder / FILE, force=force) as file:
        file.write(content)


@contextmanager
def _created(path: Path, *, force: bool) -> Iterator[BinaryIO]:
    """Open a new file, compressed if it ends in .gz; remove it after an error."""
    with path.open("wb" if force else "xb") as file:
        try:
            if path.suffix == ".gz":
                with gzip.GzipFile("", "wb", compresslevel=6, fileobj=file, mtime=0) as packed:
                    yield cast(BinaryIO, packed)
            else:
                yield file
        except BaseException:
            if path.is_file():  # not a pipe or device
                path.unlink()
            raise
