"""Export a recording to an SQLite file in the layout of an Nsight Systems export, and read an interrupted recording.

The file contains the tables that `annot.read.nsys.sqlite_export` reads.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import adbc_driver_manager as adbc
import polars as pl

from annot.errors import AnnotError
from annot.profile import Profile
from annot.read.notes import sentences
from annot.read.nsys import sqlite_export
from annot.read.recording.events import MARK, Tally, read_events
from annot.read.recording.files import PART_SUFFIX, Part, UnreadableError, read_part
from annot.read.recording.sqlite_schema import EventsFile, Names, events_table

__all__ = ["NAME", "Recording", "assemble", "read", "sniff"]

NAME: Final = "recording"


@dataclass(frozen=True, slots=True)
class Recording:
    """Summary of a recording."""

    events: int
    """Number of ranges and marks."""
    ranges: int
    marks: int
    processes: int
    threads: int
    open_ranges: int
    """Ranges that were open at the end of the recording. They end there."""
    unmatched_pops: int
    """Pops and range ends without a start in the recording."""
    lost: int
    """Events that the recorder could not write: pushes, pops, starts, ends and marks."""
    notes: list[str] = field(default_factory=list)
    """Sentences about data that could not be read, matched or written."""


def assemble(parts: Path, out: Path, *, meta: Mapping[str, str] | None = None) -> Recording:
    """Combine the files of the recorder into one profile.

    Args:
        parts: the folder with the parts.
        out: the SQLite file to write. An existing file is replaced when the new file is complete.
        meta: additional entries of the table META_DATA_CAPTURE.

    Raises:
        AnnotError: no part can be read, or `out` cannot be written.
    """
    found, notes = _read_parts(parts)
    temporary = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    try:
        with EventsFile(temporary) as file:
            recording = _write(file, found, notes, meta or {})
        os.replace(temporary, out)
    except (OSError, adbc.Error, *EventsFile.errors) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error).splitlines()[0]
        raise AnnotError(f"{out} cannot be written: {reason}") from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
    return recording


def _read_parts(folder: Path) -> tuple[list[Part], list[str]]:
    try:
        paths = sorted(folder.iterdir())
    except OSError as error:
        raise AnnotError(f"{folder} cannot be read: {error.strerror}") from None
    found, notes = [], []
    for path in paths:
        if path.suffix != PART_SUFFIX:
            continue
        try:
            found.append(read_part(path))
        except UnreadableError as error:
            notes.append(f"{path.name} cannot be read: {error}")
        except OSError as error:
            notes.append(f"{path.name} cannot be read: {error.strerror}")
    if notes and not found:
        raise AnnotError(f"{folder} has no readable part of a recording: {notes[0]}")
    found.sort(key=lambda part: part.started)
    return found, notes


def _write(file: EventsFile, parts: list[Part], notes: list[str], meta: Mapping[str, str]) -> Recording:
    """Write all tables and return the summary."""
    origin = parts[0].started if parts else 0
    names, tally = Names(), Tally()
    unended: list[pl.DataFrame] = []
    ranges = marks = 0
    for part in parts:
        domains = names.add(part)
        file.insert(names.rows(part, domains, origin))
        strings = names.strings_of(part)
        for events in read_events(part, tally):
            table = events_table(events, part.pid, origin, domains, strings)
            is_mark = table["eventType"] == MARK
            marks += int(is_mark.sum())
            ranges += int((~is_mark).sum())
            is_open = table["end"].is_null() & ~is_mark
            unended.append(table.filter(is_open))
            file.insert(table.filter(~is_open))
    end = max([tally.last_time, *(part.stopped for part in parts), origin]) - origin
    for frame in unended:
        file.insert(frame.with_columns(end=pl.max_horizontal("start", pl.lit(end))))
    recording = Recording(
        events=ranges + marks,
        ranges=ranges,
        marks=marks,
        processes=len({part.pid for part in parts}),
        threads=len(tally.threads),
        open_ranges=tally.open_ranges,
        unmatched_pops=tally.unmatched_pops,
        lost=sum(part.lost_events for part in parts),
        notes=[*notes, *_notes(tally, parts)],
    )
    counts = {
        "ANNOT_LOST_EVENTS": str(recording.lost),
        "ANNOT_OPEN_RANGES": str(recording.open_ranges),
        "ANNOT_UNMATCHED_POPS": str(recording.unmatched_pops),
    }
    file.describe(parts, names, end, {**counts, **meta}, recording.notes)
    return recording


def _notes(tally: Tally, parts: list[Part]) -> list[str]:
    counts = {
        "The recording contains {range end} without a start, which was lost or not recorded.": tally.unmatched_pops,
        "The recorder lost the end of {range}. annot uses the time when recording resumed.": tally.lost_ends,
        "The recorder could not write {name} of ranges, domains or categories.": sum(part.lost_names for part in parts),
    }
    return sentences(Counter(counts))


def sniff(path: Path, head: bytes) -> bool:
    """Return whether this is a folder with parts of a recording; see `annot.read.formats.Reader`."""
    return path.is_dir() and any(path.glob(f"*{PART_SUFFIX}"))


def read(path: Path) -> Profile:
    """Assemble the parts of a recording in a temporary folder and read the result."""
    if not sniff(path, b""):
        raise AnnotError(f"{path} is a folder without parts of an annot recording")
    with tempfile.TemporaryDirectory(prefix="annot-") as scratch:
        out = Path(scratch) / "recording.sqlite"
        assemble(path, out)
        profile = sqlite_export.read(out)
    return replace(profile, meta=profile.meta | {"source": str(path), "format": NAME})
