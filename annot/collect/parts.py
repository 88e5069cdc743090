"""What the recorder wrote: a file per process in the parts folder, made by ``annot/native/recorder_file.c``.

A file is a header page and then chunks of 32-byte records. The records of a thread come in numbered sections,
and each section tells how deep the thread's ranges were nested when it began. A process may have been killed
at any moment, so every file may end anywhere; what is readable of it is read.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import BinaryIO, Final

__all__ = [
    "MAX_TIME", "PART_SUFFIX", "RECORD", "Definition", "Kind", "Part", "Section", "UnreadableError", "read_part",
    "read_text", "retire",
]  # fmt: skip

PART_SUFFIX: Final = ".part"
RECORD: Final = 32
"""Bytes of a record."""

MAX_TIME: Final = 1 << 62
"""No clock shows more, in ns: it would be damage."""

_PAGE: Final = 4096
_MAGIC: Final = b"annotrec"
_VERSION: Final = 1
_MAX_CHUNK: Final = 1 << 22
_TEXT_ROOM: Final = RECORD - 1
_MAX_TEXT: Final = 65535
_HEADER: Final = struct.Struct("<8sIIQQQQQ")
_RETIRED: Final = _HEADER.size + 2048
"""Where a header says that its file is no longer wanted: after the name of the program."""
_RECORD: Final = struct.Struct("<BBHIQIIQ")
_CHUNK: Final = struct.Struct("<B7x8s8xQ")
_GAP: Final = 0x40


class Kind(IntEnum):
    """What a record says; its first byte."""

    NONE = 0
    CHUNK = 1
    THREAD = 2
    LEVEL = 3
    TEXT = 4
    PUSH = 5
    POP = 6
    STRAY_POP = 7
    START = 8
    END = 9
    MARK = 10
    EXTRA = 11
    STRING = 12
    DOMAIN_NAME = 13
    DOMAIN_END = 14
    CATEGORY = 15
    THREAD_NAME = 16


class UnreadableError(Exception):
    """Nothing of a file can be read; the message says why."""


@dataclass(frozen=True, slots=True)
class Definition:
    """The name of something."""

    kind: Kind
    domain: int
    number: int
    """Of the string or category."""
    thread: int
    """That named it, or that is named."""
    time: int
    text: str


@dataclass(frozen=True, slots=True)
class Section:
    """Records of one thread, from first to last without a gap."""

    serial: int
    """Of the thread: unique in its process, which the operating system's numbers are not."""
    number: int
    """Of the section, counted from 0 per thread."""
    thread: int
    """The operating system's number of the thread."""
    time: int
    gap: bool
    """Whether events of the thread were lost just before."""
    levels: dict[int, tuple[int, int]]
    """Per domain, how many ranges were open throughout the gap before, and how many were at its end."""
    offset: int
    """Of the first record, in bytes from the start of the file."""
    count: int
    """How many records there are."""


@dataclass(slots=True)
class Part:
    """What one process recorded."""

    path: Path
    pid: int
    program: str
    started: int
    """When the recording began, in ns on the monotonic clock, which all processes share."""
    started_utc: int
    """The same in ns since 1970."""
    stopped: int
    """When it ended; 0 if the process was killed."""
    lost_events: int
    lost_names: int
    sections: list[Section] = field(default_factory=list)
    """In the order in which they must be read."""
    definitions: list[Definition] = field(default_factory=list)
    thread_names: dict[int, str] = field(default_factory=dict)
    """What the operating system calls the threads."""

    def read(self, sections: list[Section]) -> bytes:
        """Return the records of some sections, one after the other; those that are gone read as zeros."""
        with self.path.open("rb") as file:
            return b"".join(
                os.pread(file.fileno(), section.count * RECORD, section.offset).ljust(section.count * RECORD, b"\0")
                for section in sections
            )


def read_part(path: Path) -> Part:
    """Read all of a file but its events.

    Raises:
        UnreadableError: it is no file of the recorder, or cut within its header.
        OSError: it cannot be opened.
    """
    with path.open("rb") as file:
        part = _read_header(path, file.read(_PAGE))
        for offset, chunk in _chunks(file):
            _read_chunk(part, offset, chunk)
    part.sections.sort(key=lambda section: (section.serial, section.number))
    return part


def retire(path: Path) -> None:
    """Tell the process that writes a file to stop, since the file is about to be deleted.

    A process that was forked inside `record` may outlive it. As long as it has the file mapped, the file keeps its
    blocks on the disk.
    """
    with contextlib.suppress(OSError), path.open("r+b") as file:
        file.seek(_RETIRED)
        file.write(b"\1\0\0\0")


def _read_header(path: Path, page: bytes) -> Part:
    if len(page) < _HEADER.size or not page.startswith(_MAGIC):
        raise UnreadableError("it is empty or cut" if len(page) < _HEADER.size else "the recorder did not write it")
    _, version, pid, *numbers = _HEADER.unpack_from(page)
    if version != _VERSION:
        raise UnreadableError(f"it has version {version}, and this is for version {_VERSION}")
    if max(numbers[:3]) > MAX_TIME:
        raise UnreadableError("its header is damaged")
    program = page[_HEADER.size :].split(b"\0", 1)[0].decode("utf-8", "replace")
    return Part(path, pid, program, *numbers)


def _chunks(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Find the chunks: what is reserved but not in use yet is zeros, and chunks begin on page boundaries."""
    size = os.fstat(file.fileno()).st_size
    offset = _PAGE
    while offset + RECORD <= size:
        kind, magic, length = _CHUNK.unpack(os.pread(file.fileno(), RECORD, offset))
        if kind != Kind.CHUNK or magic != _MAGIC or length % _PAGE or not 0 < length <= _MAX_CHUNK:
            offset += _PAGE
            continue
        yield offset, os.pread(file.fileno(), length, offset)
        offset += length


def _read_chunk(part: Part, offset: int, chunk: bytes) -> None:
    kinds = chunk[: len(chunk) // RECORD * RECORD : RECORD]
    written = kinds.find(Kind.NONE)
    if written >= 0:
        kinds = kinds[:written]
    if kinds[1:2] != bytes([Kind.THREAD]):
        part.definitions.extend(_read_definitions(chunk, len(kinds)))
        return
    begin = 1
    while begin >= 0:
        end = kinds.find(Kind.THREAD, begin + 1)
        _read_section(part, offset, chunk, begin, end if end >= 0 else len(kinds))
        begin = end


def _read_section(part: Part, offset: int, chunk: bytes, begin: int, end: int) -> None:
    _, flags, _, length, time, serial, number, thread = _RECORD.unpack_from(chunk, begin * RECORD)
    name, at = _read_text(chunk, begin + 1, length)
    if name:
        part.thread_names[thread] = name
    levels = {}
    while at < end and chunk[at * RECORD] == Kind.LEVEL:
        _, _, domain, floor, _, level, _, _ = _RECORD.unpack_from(chunk, at * RECORD)
        levels[domain] = floor, level
        at += 1
    gap, time, first = bool(flags & _GAP), min(time, MAX_TIME), offset + at * RECORD
    part.sections.append(Section(serial, number, thread, time, gap, levels, first, max(end - at, 0)))


def _read_definitions(chunk: bytes, end: int) -> Iterator[Definition]:
    at = 1
    while at < end:
        kind, _, domain, length, time, number, _, thread = _RECORD.unpack_from(chunk, at * RECORD)
        text, at = _read_text(chunk, at + 1, length)
        if Kind.STRING <= kind <= Kind.THREAD_NAME and at <= end:
            yield Definition(Kind(kind), domain, number, thread & 0xFFFFFF, min(time, MAX_TIME), text)


def _read_text(chunk: bytes, at: int, length: int) -> tuple[str, int]:
    """Return the text in the records from `at`, and where they end."""
    end = at + -(-min(length, _MAX_TEXT) // _TEXT_ROOM)
    return read_text(chunk, at, length), end


def read_text(records: bytes, at: int, length: int) -> str:
    """Return the text of `length` bytes in the TEXT records from the record `at`."""
    length = min(length, _MAX_TEXT)
    if length <= _TEXT_ROOM:
        text = records[at * RECORD + 1 : at * RECORD + 1 + length]
    else:
        count = -(-length // _TEXT_ROOM)
        text = b"".join(records[slot * RECORD + 1 : (slot + 1) * RECORD] for slot in range(at, at + count))[:length]
    return text.decode("utf-8", "replace")
