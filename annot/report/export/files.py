"""Exports of a profile to files that other tools open: trace, TensorBoard log, enriched report of Nsight Systems."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import BinaryIO, cast

from annot.attribution.attribute import Attribution
from annot.attribution.summary import summarize
from annot.util.whole_files import created

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
    with created(path, force=force) as file:
        if path.suffix != ".gz":
            write_trace(Events(attribution), meta, file.write)
            return
        with gzip.GzipFile("", "wb", compresslevel=6, fileobj=file, mtime=0) as packed:
            write_trace(Events(attribution), meta, cast(BinaryIO, packed).write)


def write_tensorboard(attribution: Attribution, source: str, folder: Path, *, force: bool) -> None:
    """Write a log folder for TensorBoard; arguments as in `write_trace_file`."""
    from annot.report.export.tensorboard import FILE, event_file

    content = b"".join(event_file(attribution, source))  # before mkdir, so that an error leaves no folder
    folder.mkdir(parents=True, exist_ok=True)
    with created(folder / FILE, force=force) as file:
        file.write(content)
