"""Export a recording to an SQLite file in the layout of an Nsight Systems export.

The file contains the tables that `annot.read.nsys.sqlite_export` reads.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import adbc_driver_manager as adbc
import polars as pl

from annot.errors import AnnotError
from annot.read.notes import counted
from annot.read.recording.events import Tally, read_events
from annot.read.recording.files import PART_SUFFIX, Part, UnreadableError, read_part
from annot.read.recording.sqlite_schema import EventsFile, Names, events_table, global_tid

__all__ = ["Recording", "assemble"]


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

    Returns:
        The summary of the recording.

    Raises:
        AnnotError: no part can be read, or `out` cannot be written.
    """
    found, notes = _read_parts(parts)
    temporary = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    try:
        with EventsFile(temporary) as file:
            recording = _Assembly(file, found, notes).run(meta or {})
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


class _Assembly:
    """State of `assemble`."""

    def __init__(self, file: EventsFile, parts: list[Part], notes: list[str]) -> None:
        self.file = file
        self.parts = parts
        self.notes = notes
        self.names = Names()
        self.tally = Tally()
        self.ranges = self.marks = 0
        self.threads: set[int] = set()
        self.unended: list[pl.DataFrame] = []

    def run(self, meta: Mapping[str, str]) -> Recording:
        """Write all tables and return the summary."""
        origin = self.parts[0].started if self.parts else 0
        for part in self.parts:
            self._add(part, origin)
        end = max([self.tally.last_time, *(part.stopped for part in self.parts), origin]) - origin
        for frame in self.unended:
            self.file.insert(frame.with_columns(end=pl.max_horizontal("start", pl.lit(end))))
        recording = self._summary()
        self.file.describe(self.parts, self.names, end, {**_counts(recording), **meta}, recording.notes)
        return recording

    def _add(self, part: Part, origin: int) -> None:
        domains = self.names.add(part)
        self.file.insert(self.names.rows(part, domains, origin))
        strings = self.names.strings_of(part)
        tally = Tally()
        for events in read_events(part, tally):
            if events.is_empty():
                continue
            table = events_table(events, part.pid, origin, domains, strings)
            unended = table["end"].is_null() & (table["eventType"] != 34)
            marks = int((table["eventType"] == 34).sum())
            self.marks += marks
            self.ranges += table.height - marks
            if unended.any():
                self.unended.append(table.filter(unended))
                table = table.filter(~unended)
            self.file.insert(table)
        self.threads.update(global_tid(part.pid, thread) for thread in tally.threads)
        self._count(tally)

    def _count(self, tally: Tally) -> None:
        self.tally.last_time = max(self.tally.last_time, tally.last_time)
        self.tally.open_ranges += tally.open_ranges
        self.tally.unmatched_pops += tally.unmatched_pops
        self.tally.lost_ends += tally.lost_ends

    def _summary(self) -> Recording:
        lost_names = sum(part.lost_names for part in self.parts)
        pops, ends = self.tally.unmatched_pops, self.tally.lost_ends
        counts = [
            (
                pops,
                f"The recording contains {counted(pops, 'range end')} without a start, which was lost or not recorded.",
            ),
            (
                ends,
                f"The recorder lost the end of {counted(ends, 'range')}. annot uses the time when recording resumed.",
            ),
            (
                lost_names,
                f"The recorder could not write {counted(lost_names, 'name')} of ranges, domains or categories.",
            ),
        ]
        return Recording(
            events=self.ranges + self.marks,
            ranges=self.ranges,
            marks=self.marks,
            processes=len({part.pid for part in self.parts}),
            threads=len(self.threads),
            open_ranges=self.tally.open_ranges,
            unmatched_pops=self.tally.unmatched_pops,
            lost=sum(part.lost_events for part in self.parts),
            notes=[*self.notes, *(note for count, note in counts if count)],
        )


def _counts(recording: Recording) -> dict[str, str]:
    return {
        "ANNOT_LOST_EVENTS": str(recording.lost),
        "ANNOT_OPEN_RANGES": str(recording.open_ranges),
        "ANNOT_UNMATCHED_POPS": str(recording.unmatched_pops),
    }
