"""Parse the files of the recorder: a file per process in the parts folder, written by ``annot/native/recorder/file.c``.

A file is a header page followed by chunks of 32-byte records. The records of a thread are divided into numbered
sections. Each section stores the nesting depth of the thread's ranges at its beginning. A process can be killed at any
time, so a file can end anywhere. The reader returns all complete records.
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

PART_SUFFIX: Final = ".part"
RECORD: Final = 32
"""Size of a record in bytes."""

MAX_TIME: Final = 1 << 62
"""Maximum time in ns. Greater values are damage."""

MACHINE: Final = 1 << 48
"""The bits of the machine in a globalTid of Nsight Systems."""

_PAGE: Final = 4096
_MAGIC: Final = b"annotrec"
_VERSION: Final = 1
_MAX_CHUNK: Final = 1 << 22
_TEXT_ROOM: Final = RECORD - 1
_MAX_TEXT: Final = 65535
_HEADER: Final = struct.Struct("<8sIIQQQQQ")
_RETIRED: Final = _HEADER.size + 2048
"""Offset in the header of the flag that stops the writer, after the program name and the error number."""
_ERROR: Final = struct.Struct("<I")
_RECORD: Final = struct.Struct("<BBHIQIIQ")
_CHUNK: Final = struct.Struct("<B7x8s8xQ")
_GAP: Final = 0x40


class Kind(IntEnum):
    """Kind of a record: its first byte."""

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
    """A file is not a part of a recording, or its header is unreadable. The message states the reason."""


@dataclass(frozen=True, slots=True)
class Definition:
    """The name of a string, domain, category or thread."""

    kind: Kind
    domain: int
    number: int  # id of the string or category
    thread: int  # the thread that defined the name, or the thread with this name
    time: int
    text: str


@dataclass(frozen=True, slots=True)
class Section:
    """Consecutive records of one thread."""

    serial: int  # id of the thread, unique in its process, while operating systems reuse thread ids
    number: int  # index of the section in its thread, from 0
    thread: int  # thread id of the operating system
    time: int
    gap: bool  # whether events of the thread were lost directly before the section
    levels: dict[int, tuple[int, int]]
    """By domain: number of ranges that stayed open during the preceding gap, and number of open ranges at its end."""
    offset: int  # of the first record in the file, in bytes
    count: int  # number of records


@dataclass(slots=True)
class Part:
    """The recording of one process."""

    path: Path
    pid: int
    program: str
    started: int  # start of the recording in ns on CLOCK_MONOTONIC, which all processes of the machine share
    started_utc: int  # start of the recording in ns since 1970
    stopped: int  # end of the recording in ns on CLOCK_MONOTONIC, 0 if the process was killed
    lost_events: int
    lost_names: int
    error: int  # errno of the first failure of the recorder, or 0
    sections: list[Section] = field(default_factory=list)  # in reading order
    definitions: list[Definition] = field(default_factory=list)
    thread_names: dict[int, str] = field(default_factory=dict)  # of the operating system, by thread id

    def read(self, sections: list[Section]) -> bytes:
        """Return the records of sections, concatenated. Missing records are zeros."""
        with self.path.open("rb") as file:
            return b"".join(
                _read_at(file, section.offset, section.count * RECORD).ljust(section.count * RECORD, b"\0")
                for section in sections
            )


def global_tid(pid: int, thread: int = 0) -> int:
    """Return the globalTid of Nsight Systems, or the globalPid if `thread` is 0."""
    return MACHINE | (pid & 0xFFFFFF) << 24 | (thread & 0xFFFFFF)


def read_part(path: Path) -> Part:
    """Read a file except for its events. Raise UnreadableError for a file with another or a damaged header."""
    with path.open("rb") as file:
        process = _read_header(path, file.read(_PAGE))
        for offset, chunk in _chunks(file):
            _read_chunk(process, offset, chunk)
    process.sections.sort(key=lambda section: (section.serial, section.number))
    return process


def retire(path: Path) -> None:
    """Stop the process that writes a part, before the part is deleted.

    A process that was forked inside `record` can outlive it. A deleted file uses disk space while a process maps it.
    """
    with contextlib.suppress(OSError), path.open("r+b") as file:
        file.seek(_RETIRED)
        file.write(b"\1\0\0\0")


def _read_header(path: Path, page: bytes) -> Part:
    if len(page) < _HEADER.size or not page.startswith(_MAGIC):
        raise UnreadableError("it is empty or truncated" if len(page) < _HEADER.size else "annot did not write it")
    _, version, pid, *numbers = _HEADER.unpack_from(page)
    if version != _VERSION:
        raise UnreadableError(f"it has format version {version}; this version of annot supports {_VERSION}")
    if max(numbers[:3]) > MAX_TIME:
        raise UnreadableError("its header is damaged")
    end = _RETIRED - _ERROR.size
    program = page[_HEADER.size : end].split(b"\0", 1)[0].decode("utf-8", "replace")
    error = _ERROR.unpack_from(page, end) if len(page) >= _RETIRED else (0,)
    return Part(path, pid, program, *numbers, *error)


def _chunks(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield offset and content of the chunks. They begin on page boundaries; reserved pages without data are zeros."""
    size = os.fstat(file.fileno()).st_size
    offset = _PAGE
    while offset + RECORD <= size:
        kind, magic, length = _CHUNK.unpack(_read_at(file, offset, RECORD))
        if kind != Kind.CHUNK or magic != _MAGIC or length % _PAGE or not 0 < length <= _MAX_CHUNK:
            offset += _PAGE
            continue
        yield offset, _read_at(file, offset, length)
        offset += length


def _read_at(file: BinaryIO, offset: int, size: int) -> bytes:
    file.seek(offset)
    return file.read(size)


def _read_chunk(process: Part, offset: int, chunk: bytes) -> None:
    kinds = chunk[: len(chunk) // RECORD * RECORD : RECORD]
    written = kinds.find(Kind.NONE)
    if written >= 0:
        kinds = kinds[:written]
    if kinds[1:2] != bytes([Kind.THREAD]):
        process.definitions.extend(_read_definitions(chunk, len(kinds)))
        return
    begin = 1
    while begin >= 0:
        end = kinds.find(Kind.THREAD, begin + 1)
        _read_section(process, offset, chunk, begin, end if end >= 0 else len(kinds))
        begin = end


def _read_section(process: Part, offset: int, chunk: bytes, begin: int, end: int) -> None:
    _, flags, _, length, time, serial, number, thread = _RECORD.unpack_from(chunk, begin * RECORD)
    name, at = read_text(chunk, begin + 1, length)
    if name:
        process.thread_names[thread] = name
    levels = {}
    while at < end and chunk[at * RECORD] == Kind.LEVEL:
        _, _, domain, floor, _, level, _, _ = _RECORD.unpack_from(chunk, at * RECORD)
        levels[domain] = floor, level
        at += 1
    gap, time, first = bool(flags & _GAP), min(time, MAX_TIME), offset + at * RECORD
    process.sections.append(
        Section(
            serial=serial,
            number=number,
            thread=thread,
            time=time,
            gap=gap,
            levels=levels,
            offset=first,
            count=max(end - at, 0),
        )
    )


def _read_definitions(chunk: bytes, end: int) -> Iterator[Definition]:
    at = 1
    while at < end:
        kind, _, domain, length, time, number, _, thread = _RECORD.unpack_from(chunk, at * RECORD)
        text, at = read_text(chunk, at + 1, length)
        if Kind.STRING <= kind <= Kind.THREAD_NAME and at <= end:
            yield Definition(
                kind=Kind(kind),
                domain=domain,
                number=number,
                thread=thread & 0xFFFFFF,
                time=min(time, MAX_TIME),
                text=text,
            )


def read_text(records: bytes, at: int, length: int) -> tuple[str, int]:
    """Return a text of `length` bytes in the TEXT records from index `at`, and the index after them."""
    length = min(length, _MAX_TEXT)
    end = at + -(-length // _TEXT_ROOM)
    if length <= _TEXT_ROOM:  # most texts
        text = records[at * RECORD + 1 : at * RECORD + 1 + length]
    else:
        text = b"".join(records[slot * RECORD + 1 : (slot + 1) * RECORD] for slot in range(at, end))[:length]
    return text.decode("utf-8", "replace"), end
